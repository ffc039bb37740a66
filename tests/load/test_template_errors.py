"""Errors in a config, in weights or in a template are reported with name, value and location."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from attacks import hostile_architectures
from attacks.hostile_configs import ATTACKS, write_llama
from attacks.hostile_folders import Attack
from ingot.errors import IngotError, InputError, LoadError, UnsupportedError
from ingot.load.hf import load_language_model, misfits, read_folder
from ingot.load.hf.contents import fingerprint
from ingot.load.hf.refused import REFUSED
from ingot.load.hf.template_file import FOLDER, parse_template, read_template, template_names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama."""
    return write_llama(tmp_path / "llama")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack[0])
def test_wrong_config(attack: Attack, tmp_path: Path):
    _, build, error, fragment = attack
    build(tmp_path / "model")
    with pytest.raises(IngotError) as raised:
        load_language_model(read_folder(tmp_path / "model"), context=None)
    assert type(raised.value) is error and fragment in str(raised.value), raised.value
    assert "config.json" in str(raised.value) or "model_type" in str(raised.value)


def load_with(tmp_path: Path, config: dict[str, Any] | None = None, **options: Any):
    """Loads the tiny Llama with another config."""
    folder = write_llama(tmp_path / "model", config)
    return load_language_model(read_folder(folder), **{"context": None} | options)


def test_window_of_nothing(tmp_path: Path):
    with pytest.raises(LoadError, match=r"sliding_window: out of range, got 0"):
        load_with(tmp_path, {"model_type": "mistral", "sliding_window": 0})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"context": 0}, r"context: out of range, got 0, expected 1\.\.128"),
        ({"context": 129}, r"got 129, expected 1\.\.128 .*max_position_embeddings = 128"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        load_with(tmp_path, **options)


def test_weights_that_do_not_fit_are_all_listed(folder: Path, tmp_path: Path):
    """S15: missing, mis-shaped, transposed and unexpected ones in one message, with the lines that ask for them."""
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    weights = load_file(model / "model.safetensors")
    del weights["lm_head.weight"], weights["model.layers.0.input_layernorm.weight"]
    weights["model.layers.1.mlp.down_proj.weight"] = np.zeros((48, 32), np.float32)
    weights["model.embed_tokens.weight"] = np.zeros((98, 32), np.float32)
    weights["model.layers.0.self_attn.q_proj.bias"] = np.zeros(32, np.float32)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
    save_file(weights, model / "model.safetensors")
    with pytest.raises(LoadError) as raised:
        load_language_model(read_folder(model), context=None)
    message = str(raised.value)
    for part in (
        "5 weights do not fit",
        "missing 'lm_head.weight', expected [99, 32] (templates/llama.yaml:",
        "missing 'model.layers.0.input_layernorm.weight', expected [32] (templates/llama.yaml:",
        "shape of 'model.layers.1.mlp.down_proj.weight': got [48, 32], expected [32, 48] (templates/llama.yaml:",
        "shape of 'model.embed_tokens.weight': got [98, 32], expected [99, 32] (templates/llama.yaml:",
        "unexpected 'model.layers.0.self_attn.q_proj.bias'",
    ):
        assert part in message
    assert "inv_freq" not in message


def test_integer_weights(folder: Path, tmp_path: Path):
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] = np.zeros(32, np.int8)
    save_file(weights, model / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"'model\.norm\.weight' is i8, expected f32, f16 or bf16"):
        load_language_model(read_folder(model), context=None)


BROKEN = [
    ("norm: {op: rms_norm, eps: eps}", "norm: {op: batch_norm, eps: eps}", "unknown word, got 'batch_norm'"),
    ("norm: {op: rms_norm, eps: eps}", "norm: {op: rms_norm, eps: eps, colour: 1}", "unknown key, got 'colour'"),
    ("norm: {op: rms_norm, eps: eps}", "norm: {op: rms_norm, eps: eps, eps: eps}", "key given twice, got 'eps'"),
    ("norm: {op: rms_norm, eps: eps}", "norm: {op: rms_norm}", "missing keys"),
    ("norm: {op: rms_norm, eps: eps}", "norm: [1, 2]", "wrong kind, got a list, expected a mapping"),
    ("    rope: rope", "    rope: __import__('os')", "not allowed in an expression"),
    ("    rope: rope", "    rope: (1).real", "not allowed in an expression"),
    ("    rope: rope", "    rope: 1 +", "not an expression"),
    ("- norm: input_layernorm", "- dance: input_layernorm", "unknown step, got 'dance'"),
    ("- norm: input_layernorm", "- {norm: input_layernorm, scale: 1}", "a step has one key"),
    ("type: positive", "type: nice", "unknown word, got 'nice'"),
    ("  q: self_attn.q_proj", "  qkv: self_attn.q_proj", "bad projections"),
    ("prefix: ", "suffix: ", "unknown key, got 'suffix'"),
    ("prefix: ", "prefix: [", "not YAML"),
]


@pytest.mark.parametrize("model_type", REFUSED)
def test_types_without_a_template_name_the_reason(model_type: str):
    assert model_type not in template_names()
    with pytest.raises(UnsupportedError, match=re.escape(f"got {model_type!r}: {REFUSED[model_type]}")):
        read_template(model_type)


@pytest.mark.parametrize("good, bad, message", BROKEN, ids=lambda value: str(value)[:40])
def test_broken_templates_name_the_line(good: str, bad: str, message: str, tmp_path: Path):
    text = (FOLDER / "llama.yaml").read_text()
    assert good in text
    line = text[: text.index(good)].count("\n") + 1
    path = tmp_path / "broken.yaml"
    path.write_text(text.replace(good, bad, 1))
    with pytest.raises(LoadError) as raised:
        parse_template(path)
    assert message in str(raised.value)
    assert "not YAML" in message or "missing" in message or f"broken.yaml:{line}:" in str(raised.value)


@pytest.mark.parametrize("attack", hostile_architectures.ATTACKS, ids=lambda attack: attack[0])
def test_wrong_template_of_a_model(attack: Attack, tmp_path: Path):
    _, build, error, fragment = attack
    build(tmp_path / "model")
    with pytest.raises(IngotError) as raised:
        load_language_model(read_folder(tmp_path / "model"), context=None)
    message = str(raised.value)
    assert type(raised.value) is error and fragment in message and "ingot.yaml" in message, message
    assert len(message) < 2000


def test_a_template_of_the_folder_or_of_the_user_is_used(folder: Path, tmp_path: Path):
    """A model type that Ingot lacks, read by a template in its folder, and by one that is given; they are the same
    model as the one that Ingot knows, but for their fingerprint.
    """
    own = write_llama(tmp_path / "own", {"model_type": "mine"})
    with pytest.raises(UnsupportedError, match=r"no template, got 'mine'.* --template FILE"):
        load_language_model(read_folder(own), context=None)
    given = tmp_path / "mine.yaml"
    given.write_text("extends: llama\n")
    plain = load_language_model(read_folder(folder), context=None).graph
    by_user = load_language_model(read_folder(own, given), context=None).graph
    before = fingerprint(read_folder(own))
    shutil.copy(given, own / "ingot.yaml")
    by_folder = load_language_model(read_folder(own), context=None).graph
    assert [node.outputs for node in plain.nodes] == [node.outputs for node in by_user.nodes]
    assert [node.outputs for node in plain.nodes] == [node.outputs for node in by_folder.nodes]
    assert fingerprint(read_folder(own)) != before
    given.write_text("extends: llama\nprefix: other.\n")
    with pytest.raises(LoadError, match="weights do not fit"):
        load_language_model(read_folder(own, given), context=None)
    with pytest.raises(FileNotFoundError):
        load_language_model(read_folder(own, tmp_path / "nothing.yaml"), context=None)


def test_misfits_name_the_line_of_the_template(tmp_path: Path):
    folder = write_llama(tmp_path / "model")
    assert misfits(read_folder(folder))[1] == []
    (folder / "ingot.yaml").write_text("extends: llama\noutput:\n  - norm: other\n  - norm: lm_head\n")
    template, found = misfits(read_folder(folder))
    where = folder / "ingot.yaml"
    assert template.file == str(where)
    assert [(m.kind, m.name, m.got, m.expected, m.where) for m in found] == [
        ("missing", "model.other.weight", None, (32,), f"{where}:3"),
        ("missing", "model.lm_head.weight", None, (32,), f"{where}:4"),
        ("unexpected", "model.norm.weight", (32,), None, ""),
    ]
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = np.zeros(5, np.float32)
    save_file(weights, folder / "model.safetensors")
    (folder / "ingot.yaml").unlink()
    ((kind, got, expected),) = [(m.kind, m.got, m.expected) for m in misfits(read_folder(folder))[1]]
    assert (kind, got, expected) == ("shape", (5,), (32,))

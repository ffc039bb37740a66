"""What is wrong with a config, with weights or with a template is said with its name, value and place."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.hf_models import CASES, save_model

from ingot.errors import IngotError, InputError, LimitError, LoadError, UnsupportedError
from ingot.load.hf import load_language_model, read_folder
from ingot.load.hf.template import FOLDER, parse_template


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    path = tmp_path_factory.mktemp("llama")
    save_model(CASES[0], path)
    return path


def load_with(folder: Path, tmp_path: Path, config: dict[str, Any] | None = None, **options: Any):
    """Loads a copy of `folder` whose config is changed; None deletes a key."""
    shutil.copytree(folder, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    changed = json.loads(path.read_text()) | (config or {})
    path.write_text(json.dumps({k: v for k, v in changed.items() if v != "absent"}))
    return load_language_model(read_folder(tmp_path / "model"), **{"context": None} | options)


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 100.0, **parameters}}


WRONG = [
    ({"hidden_size": 0}, LoadError, r"hidden_size: out of range, got 0"),
    ({"hidden_size": -1}, LoadError, r"hidden_size: out of range, got -1"),
    ({"hidden_size": 1 << 40}, LoadError, r"hidden_size: out of range, got 1099511627776"),
    ({"hidden_size": 32.0}, LoadError, r"hidden_size: got 32\.0, expected an integer"),
    ({"hidden_size": True}, LoadError, r"hidden_size: got True, expected an integer"),
    ({"hidden_size": "absent"}, LoadError, r"hidden_size: missing"),
    ({"hidden_size": None}, LoadError, r"hidden_size: null"),
    ({"num_attention_heads": 5, "head_dim": "absent"}, LoadError, r"num_attention_heads, hidden_size: .*32 // 5"),
    ({"num_key_value_heads": 3}, LoadError, r"num_attention_heads, num_key_value_heads: .*got 4 and 3"),
    ({"num_key_value_heads": 8}, LoadError, r"num_attention_heads, num_key_value_heads: .*got 4 and 8"),
    ({"num_key_value_heads": 0}, LoadError, r"num_key_value_heads: out of range"),
    ({"head_dim": 7}, LoadError, r"head_dim: bad rotary dim, got 7"),
    ({"num_hidden_layers": 10**9}, LoadError, r"num_hidden_layers: out of range, got 1000000000"),
    ({"num_hidden_layers": 5000}, LimitError, r"num_hidden_layers: too many, got 5000"),
    ({"rms_norm_eps": 0}, LoadError, r"rms_norm_eps: got 0, expected a number above 0"),
    ({"rms_norm_eps": -1e-5}, LoadError, r"rms_norm_eps: got -1e-05"),
    ({"hidden_act": "mish"}, UnsupportedError, r"hidden_act: got 'mish', expected one of silu"),
    ({"hidden_act": 3}, LoadError, r"hidden_act: got 3"),
    ({"tie_word_embeddings": "no"}, LoadError, r"tie_word_embeddings: got 'no', expected true or false"),
    ({"dtype": "float4"}, LoadError, r"dtype: unknown dtype, got 'float4'"),
    ({"torch_dtype": 16}, LoadError, r"torch_dtype: unknown dtype, got 16"),
    ({"max_position_embeddings": 1 << 25}, LimitError, r"max_position_embeddings: too long, got 33554432"),
    ({"quantization_config": {"bits": 4}}, UnsupportedError, r"quantization_config"),
    ({"model_type": "mamba"}, UnsupportedError, r"model_type: no template, got 'mamba', expected one of .*llama"),
    ({"model_type": "../llama"}, UnsupportedError, r"model_type: no template"),
    ({"model_type": None}, LoadError, r"model_type: missing"),
    ({"rope_parameters": [1]}, LoadError, r"rope_parameters: wrong kind, got \[1\]"),
    ({"rope_parameters": {"rope_theta": 0}}, LoadError, r"rope_parameters\.rope_theta: got 0"),
    ({"rope_parameters": {"rope_theta": -1.0}}, LoadError, r"rope_parameters\.rope_theta: got -1\.0"),
    ({"rope_parameters": None, "rope_theta": "10000"}, LoadError, r"rope_theta: got '10000'"),
    (rope(rope_type="dynamic", factor=2.0), UnsupportedError, r"rope_parameters\.rope_type: 'dynamic'"),
    (rope(rope_type="spiral"), UnsupportedError, r"rope_type: not supported, got 'spiral'"),
    (rope(rope_type=["linear"]), UnsupportedError, r"rope_type: not supported, got \['linear'\]"),
    (rope(rope_type="linear", factor=0), LoadError, r"rope_parameters\.factor: got 0"),
    (rope(rope_type="linear"), LoadError, r"rope_parameters\.factor: got None"),
    (
        rope(rope_type="llama3", factor=8, low_freq_factor=4, high_freq_factor=1),
        LoadError,
        r"high_freq_factor: got 1\.0, expected more than low_freq_factor, 4\.0",
    ),
    (rope(rope_type="longrope", short_factor=[1.0]), LoadError, r"short_factor: got \[1\.0\], expected 4 numbers"),
    (rope(rope_type="yarn", factor=2, original_max_position_embeddings=0), LoadError, r"original_max_.*: got 0"),
]


@pytest.mark.parametrize("config, error, message", WRONG, ids=lambda value: str(value)[:60])
def test_wrong_config(config: dict[str, Any], error: type[IngotError], message: str, folder: Path, tmp_path: Path):
    with pytest.raises(error, match=message) as raised:
        load_with(folder, tmp_path, config)
    assert "config.json" in str(raised.value) or "model_type" in str(raised.value)


def test_window_of_nothing(folder: Path, tmp_path: Path):
    with pytest.raises(LoadError, match=r"sliding_window: out of range, got 0"):
        load_with(folder, tmp_path, {"model_type": "mistral", "sliding_window": 0})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"context": 0}, r"context: out of range, got 0, expected 1\.\.128"),
        ({"context": 129}, r"got 129, expected 1\.\.128 .*max_position_embeddings = 128"),
        ({"sequences": 0}, r"sequences: out of range"),
        ({"cache_dtype": "f64"}, r"cache_dtype: got 'f64'"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str, folder: Path, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        load_with(folder, tmp_path, **options)


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

"""GGUF files: what is read, what is refused, and that damaged ones end in a typed error, in little time and memory."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from attacks.hostile_gguf import ACCEPTED, ATTACKS, TOKENIZERS, Attack
from gguf_damage import files, header_bytes, open_model, survive
from ingot.errors import IngotError
from ingot.llm.tokenizer import Tokenizer
from ingot.load.gguf import read_gguf
from ingot.load.gguf.file import SIZES, TYPES
from ingot.load.hf import load_language_model
from ingot.load.language import read_model
from onnx_damage import places

STRIDE = 61  # a prime, so that bytes are tried at every bit


def expect_refusal(attack: Attack, folder: Path, open_model) -> None:
    _, build, error, fragment = attack
    build(folder)
    with pytest.raises(IngotError) as caught:
        open_model(folder / "model.gguf")
    assert type(caught.value) is error and fragment in str(caught.value)
    assert str(caught.value).startswith(f"{folder / 'model.gguf'}: ")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack[0])
def test_hostile_files(attack: Attack, tmp_path: Path) -> None:
    expect_refusal(attack, tmp_path, lambda path: load_language_model(read_model(path), context=None))


@pytest.mark.parametrize("attack", TOKENIZERS, ids=lambda attack: attack[0])
def test_hostile_tokenizers(attack: Attack, tmp_path: Path) -> None:
    expect_refusal(attack, tmp_path, lambda path: Tokenizer.read(read_model(path)))


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case[0])
def test_files_that_are_odd_and_right(case, tmp_path: Path) -> None:
    _, content, keys, tensors = case
    (tmp_path / "model.gguf").write_bytes(content)
    file = read_gguf(tmp_path / "model.gguf")
    assert len(file.metadata.entries) == keys
    assert {name: tensor.shape for name, tensor in file.tensors.items()} == tensors
    assert all(tensor.offset + tensor.nbytes <= len(content) for tensor in file.tensors.values() if tensor.nbytes)


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    """Every type of a key and of a tensor, of random contents."""
    random = np.random.default_rng(1)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "odd")
    values = {"text": "größer", "flag": True, "number": 0.5, "count": 7, "texts": ["a", "", "東京"], "numbers": [1, -2]}
    for add, name in zip("string bool float32 uint64 array array".split(), values, strict=True):
        getattr(writer, f"add_{add}")(name, values[name])
    kinds = [kind for kind in gguf.GGMLQuantizationType if int(kind) in TYPES]
    stored = {}
    for kind in kinds:
        elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
        assert SIZES[TYPES[int(kind)]] == (elements, nbytes)
        stored[kind.name] = random.integers(0, 256, (3, 2 * nbytes), np.uint8)
        writer.add_tensor(kind.name, stored[kind.name], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    metadata = file.metadata
    assert (file.version, metadata.text("general.architecture"), metadata.text("text")) == (3, "odd", "größer")
    assert (metadata.flag("flag"), metadata.number("number"), metadata.integer("count")) == (True, 0.5, 7)
    assert (metadata.texts("texts"), metadata.integers("numbers").tolist()) == (values["texts"], values["numbers"])
    assert metadata.text("none") is None and "none" not in metadata
    for kind in kinds:
        tensor = file.tensors[kind.name]
        assert tensor.type == kind.name.lower() and tensor.shape == (3, 2 * gguf.GGML_QUANT_SIZES[kind][0])
        data = np.frombuffer(tensor.content, np.uint8, tensor.nbytes, tensor.offset)
        np.testing.assert_array_equal(data, stored[kind.name].reshape(-1))


@pytest.mark.parametrize("name", files())
def test_some_damages(name: str) -> None:
    """Cuts and flipped bits: an error of ours or none, in limits of time and memory."""
    assert open_model(files()[name], lambda state: None) == ("refused" if name == "metadata" else "opened")
    expect_survival(name, range(0, places(files()[name][: header_bytes(name)]), STRIDE))


@pytest.mark.slow
@pytest.mark.parametrize("name", files())
def test_every_damage(name: str) -> None:
    expect_survival(name, range(places(files()[name][: header_bytes(name)])))


def expect_survival(name: str, chosen: range) -> None:
    outcomes = survive(name, chosen)
    assert set(outcomes) == set(chosen)
    assert not [f"{place}: {outcome}" for place, outcome in outcomes.items() if outcome.startswith("!")]

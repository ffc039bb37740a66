"""Saved sequences: what is written is read, and nothing else is."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ingot.errors import IngotError, InputError, LimitError, LoadError, OutputError
from ingot.ir.dtype import DType, bf16, f32, i8
from ingot.ir.graph import TensorType
from ingot.llm.saved_state import read_state, write_state

TOKENS = [5, 0, 31, 7]
VOCAB_SIZE = 32
BLOCK = 4  # positions of a block; 64 in a model


def types(dtype: DType) -> Callable[[int], Mapping[str, TensorType]]:
    def expected(count: int) -> dict[str, TensorType]:
        blocks = -(-count // BLOCK)
        return {
            "keys.0": TensorType(dtype, (blocks, 1, 3, BLOCK)),
            "values.0": TensorType(dtype, (blocks, 1, BLOCK, 3)),
            "key_scales.0": TensorType(f32, (blocks, 1, BLOCK)),
        }

    return expected


def arrays(dtype: DType, count: int = len(TOKENS)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {n: (100 * rng.standard_normal(t.dims)).astype(t.dtype.numpy) for n, t in types(dtype)(count).items()}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write_state(tmp_path / "state", "model", TOKENS, arrays(f32))
    return tmp_path / "state"


@pytest.mark.parametrize("dtype", [f32, bf16, i8], ids=lambda d: d.name)
@pytest.mark.parametrize("count", [0, 1, 4, 9])
def test_round_trip(dtype: DType, count: int, tmp_path: Path) -> None:
    expected = arrays(dtype, count)
    tokens = [i % VOCAB_SIZE for i in range(count)]
    # Strided, as blocks of a cache are, and ids as numpy has them.
    strided = {name: np.repeat(array, 2, -1)[..., ::2] for name, array in expected.items()}
    write_state(tmp_path / "state", "model", np.array(tokens, np.int32), strided)
    assert os.stat(tmp_path / "state").st_mode & 0o077 == 0 and os.listdir(tmp_path) == ["state"]
    got, found = read_state(tmp_path / "state", "model", VOCAB_SIZE, types(dtype))
    assert got == tokens and list(found) == list(expected)
    for name, array in found.items():
        assert array.dtype == expected[name].dtype and array.shape == expected[name].shape
        assert array.tobytes() == expected[name].tobytes()


def refused(path: Path, error: type[IngotError] = LoadError, **changes) -> str:
    """The message with which a state is refused."""
    arguments = {"fingerprint": "model", "vocab_size": VOCAB_SIZE, "expected": types(f32)} | changes
    with pytest.raises(IngotError) as caught:
        read_state(path, **arguments)
    assert type(caught.value) is error and str(caught.value).startswith(str(path))
    return str(caught.value)


def test_other_models(saved: Path) -> None:
    assert "saved by another model, got 'model', expected 'other'" in refused(saved, fingerprint="other")
    assert "expected ids of 0..30" in refused(saved, vocab_size=31)
    assert "arrays are" in refused(saved, expected=types(bf16))
    assert "arrays are" in refused(saved, expected=lambda n: types(f32)(n + BLOCK))
    assert "arrays are" in refused(saved, expected=lambda n: dict(list(types(f32)(n).items())[:2]))


def test_expected_may_refuse(saved: Path) -> None:
    def too_many(count: int) -> Mapping[str, TensorType]:
        raise InputError(f"{count} tokens, context 2")

    with pytest.raises(InputError, match="4 tokens, context 2"):
        read_state(saved, "model", VOCAB_SIZE, too_many)


def test_every_truncation(saved: Path) -> None:
    content = saved.read_bytes()
    for length in range(len(content)):
        saved.write_bytes(content[:length])
        refused(saved)
    saved.write_bytes(content + b"\0")
    assert "wrong size" in refused(saved)


def test_every_flipped_bit(saved: Path) -> None:
    content = saved.read_bytes()
    with open(saved, "r+b", buffering=0) as file:
        for place in range(8 * len(content)):
            byte = place // 8
            os.pwrite(file.fileno(), bytes([content[byte] ^ 1 << place % 8]), byte)
            refused(saved)
            os.pwrite(file.fileno(), content[byte : byte + 1], byte)
    read_state(saved, "model", VOCAB_SIZE, types(f32))


HEADER = {"format": 1, "model": "model", "tokens": [], "arrays": {}}


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"format": 2}, "saved in another format, got 2, expected 1"),
        ({"format": True}, "expected format, model"),
        ({"model": ["model"]}, "saved by another model"),
        ({"tokens": None}, "tokens are None"),
        ({"tokens": [-1]}, "tokens are [-1], expected ids of 0..31"),
        ({"tokens": [32]}, "tokens are [32]"),
        ({"tokens": [1.0]}, "tokens are [1.0]"),
        ({"tokens": [True]}, "tokens are [True]"),
        ({"tokens": ["1"]}, "tokens are ['1']"),
        ({"arrays": []}, "arrays are []"),
        ({"arrays": {"keys.0": ["f32", [0, 1, 3]]}}, "arrays are {'keys.0'"),
        ({"more": 1}, "expected format, model, tokens and arrays"),
    ],
    ids=str,
)
def test_headers(change: dict, fragment: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    text = json.dumps(HEADER | change).encode()
    path.write_bytes(b"INGOTSEQ" + len(text).to_bytes(8, "little") + text + bytes(32))
    assert fragment in refused(path)


@pytest.mark.parametrize(
    ("content", "error", "fragment"),
    [
        (b"", LoadError, "not a saved sequence"),
        (b"INGOTSEQ" + b"\xff" * 8, LoadError, "header has 18446744073709551615 bytes, file has 16"),
        (b"INGOTSEQ" + (2).to_bytes(8, "little") + b"[]", LoadError, "expected a JSON object"),
        (b"INGOTSEQ" + (20).to_bytes(8, "little") + b'{"format":1,"format":1}', LoadError, "not JSON"),
        (b"INGOTSEQ" + (1 << 27).to_bytes(8, "little") + bytes(1 << 27), LimitError, "header too large"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
def test_other_files(content: bytes, error: type[IngotError], fragment: str, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(content)
    assert fragment in refused(tmp_path / "state", error)


def test_vast_arrays_are_not_allocated(tmp_path: Path) -> None:
    """A file may be sparse: only what the model expects is believed, and then the file's size must fit."""
    path = tmp_path / "state"
    vast = {"x": TensorType(f32, (1 << 40,))}
    text = json.dumps(HEADER | {"arrays": {"x": ["f32", [1 << 40]]}}).encode()
    path.write_bytes(b"INGOTSEQ" + len(text).to_bytes(8, "little") + text)
    assert "wrong size" in refused(path, expected=lambda n: vast)
    os.truncate(path, 1 << 42)
    assert "arrays are" in refused(path)


def test_file_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "absent", "model", VOCAB_SIZE, types(f32))
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in refused(tmp_path / "fifo")
    with pytest.raises(OutputError):
        write_state(tmp_path / "absent" / "state", "model", TOKENS, {})


def test_a_failed_write_leaves_the_old_state(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(KeyError):
        write_state(saved, "model", TOKENS, {"x": np.zeros(2, ml_dtypes.float8_e4m3)})
    assert saved.read_bytes() == before and os.listdir(saved.parent) == ["state"]

"""Model folders: what is read, what is refused, and that nothing is read before it is asked for."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ingot.errors import LoadError
from ingot.load.hf.folder import read_folder

RANDOM = np.random.default_rng(0)
TENSORS = {
    "w": RANDOM.standard_normal((3, 5)).astype(np.float32),
    "h": RANDOM.standard_normal((2, 2, 4)).astype(np.float16),
    "b": RANDOM.standard_normal(7).astype(ml_dtypes.bfloat16),
    "mask": np.array([True, False, True]),
    "ids": np.arange(6, dtype=np.int64).reshape(2, 3),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(2.5),
}
CONFIG = {"model_type": "llama", "hidden_size": 8}


def make_folder(folder: Path, tensors: dict[str, np.ndarray] = TENSORS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, folder / "model.safetensors")
    return folder


def expect_tensors(folder: Path) -> None:
    read = read_folder(folder)
    assert set(read.tensors) == set(TENSORS)
    for name, expected in TENSORS.items():
        stored = read.tensors[name]
        array = stored.array()
        assert (stored.name, stored.shape, stored.nbytes) == (name, expected.shape, expected.nbytes)
        assert array.dtype == stored.dtype.numpy == expected.dtype and not array.flags.writeable
        np.testing.assert_array_equal(array, expected)


def test_single_file(tmp_path: Path) -> None:
    expect_tensors(make_folder(tmp_path))
    folder = read_folder(tmp_path)
    assert folder.config == CONFIG
    assert folder.text("chat_template.jinja", 100) is None and folder.json("generation_config.json", 100) is None


def test_shards(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    parts = {"model-00001-of-00002.safetensors": ["w", "h", "b"], "model-00002-of-00002.safetensors": list(TENSORS)[3:]}
    for file, names in parts.items():
        save_file({name: TENSORS[name] for name in names}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {name: file for file, names in parts.items() for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    expect_tensors(tmp_path)


def test_pickled_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(LoadError, match=r"pickled.*convert"):
        read_folder(tmp_path)

"""What weights hold: the name of a model, and numbers that are none."""

import json
import resource
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ingot.load.hf.contents import Nonfinite, fingerprint, nonfinite_tensors
from ingot.load.hf.folder import Folder
from ingot.support.files import MappedFile

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def folder_of(path: Path, tensors: dict[str, np.ndarray], config: object = None) -> Folder:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"} if config is None else config))
    save_file(tensors, path / "model.safetensors")
    return Folder(path)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_nonfinite(dtype: type, tmp_path: Path, rng: np.random.Generator) -> None:
    largest = np.array([ml_dtypes.finfo(dtype).max, -0.0, ml_dtypes.finfo(dtype).smallest_subnormal], dtype)
    bad = rng.standard_normal(3_000_001).astype(dtype)
    places = rng.choice(bad.size, 5, replace=False)
    bad[places] = [np.nan, np.inf, -np.inf, -np.nan, np.nan]
    bad[-1] = np.inf
    nans, infinities = int(np.isnan(bad).sum()), int(np.isinf(bad).sum())
    tensors = {"fine": largest, "bad": bad, "all": np.full((2, 3), np.nan, dtype), "ids": np.array([2**31 - 1])}
    found = list(nonfinite_tensors(folder_of(tmp_path, tensors | {"none": np.zeros((0, 2), dtype)})))
    assert sorted(found, key=lambda f: f.name) == [Nonfinite("all", 6, 0), Nonfinite("bad", nans, infinities)]
    assert str(found[0]).startswith("weight '") and "infinite" in str(found[0])


def test_fingerprint(tmp_path: Path, rng: np.random.Generator) -> None:
    """The same for equal contents, however they lie in files; another for any change that training makes."""
    tensors = {"a": rng.standard_normal((300, 70)).astype(np.float32), "b": np.arange(8), "c": np.zeros((0, 2))}
    expected = fingerprint(folder_of(tmp_path / "one", tensors))
    assert expected == fingerprint(folder_of(tmp_path / "two", tensors)) and len(expected) == 64
    split = folder_of(tmp_path / "split", {})
    (tmp_path / "split" / "model.safetensors").unlink()
    for name, array in tensors.items():
        save_file({name: array}, tmp_path / "split" / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in reversed(tensors)}}
    (tmp_path / "split" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert expected == fingerprint(Folder(split.path))
    first, middle, last = (tensors["a"].copy() for _ in range(3))
    for array, place in ((first, 0), (middle, 149), (last, -1)):
        array[place] += 1
    others = [
        tensors | {"a": first},
        tensors | {"a": middle},
        tensors | {"a": last},
        tensors | {"a": tensors["a"].reshape(70, 300)},
        tensors | {"b": tensors["b"].view(np.float64)},
        tensors | {"d": tensors["c"]},
        {"x": tensors["a"], "b": tensors["b"], "c": tensors["c"]},
    ]
    found = {fingerprint(folder_of(tmp_path / "other", other)) for other in others}
    found.add(fingerprint(folder_of(tmp_path / "other", tensors, {"model_type": "mistral"})))
    assert len(found) == 8 and expected not in found


def test_reading_lets_go(tmp_path: Path) -> None:
    """Looking at all weights leaves them out of memory."""
    folder = folder_of(tmp_path, {"w": np.zeros(64 << 20, np.uint8).view(np.float32)})
    before = resident_file_bytes()
    assert list(nonfinite_tensors(folder)) == []
    fingerprint(folder)
    assert isinstance(folder.tensors["w"].content, MappedFile)
    assert resident_file_bytes() - before < 16 << 20


def resident_file_bytes() -> int:
    """Bytes of mapped files in this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * resource.getpagesize()

"""The program that judges models of other projects tells what became of each."""

from pathlib import Path

import numpy as np
import pytest

from foreign_models import BOTH, EQUAL, difference, found, judge_files, page
from onnx_models import text_model

FILES = {
    "a+one/plain.onnx": ("g (float[n, 3] x) => (y) { y = Relu (x) }", EQUAL),
    "a+one/unsorted.onnx": ("g (float[n, 3] x) => (y) { y = Neg (a) a = Relu (x) }", EQUAL),
    "b+two/deep/own.onnx": ("g (float[2] x) => (y) { y = ai.onnx.contrib.Nothing (x) }", BOTH),
    "b+two/deep/alone.onnx": ("g (float[2] x) => (y) { a = Neg (b) b = Relu (x) y = Celu <alpha = 0.5> (a) }", EQUAL),
}


def test_each_file_has_an_outcome(tmp_path: Path) -> None:
    for name, (body, _) in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text_model(body))
        (tmp_path / path.relative_to(tmp_path).parts[0] / "REVISION").write_text("0123456789abcdef\n")
    (tmp_path / "b+two" / "twice.onnx").write_bytes((tmp_path / "a+one" / "plain.onnx").read_bytes())
    (tmp_path / "b+two" / "lfs.onnx").write_bytes(b"version of a pointer")
    files, counts = found(tmp_path)
    outcomes = judge_files(files)
    told = {files[i].path.relative_to(tmp_path).as_posix(): outcome for i, outcome in outcomes.items()}
    assert {name: told[name].partition(":")[0] for name in told} == {
        name: wanted for name, (_, wanted) in FILES.items()
    }
    written = page(tmp_path, files, counts, outcomes)
    assert (
        "| a/one | 0123456789ab | 2 | 2 | 2 | 0 |" in written and "| b/two | 0123456789ab | 3 | 2 | 1 | 1 |" in written
    )


@pytest.mark.parametrize(
    ("got", "wanted", "said"),
    [
        (np.float32([1, 2]), np.float32([1, 2.0001]), ""),
        (np.float32([1, np.nan]), np.float32([1, 2]), "1 of 2 floats"),
        (np.float32([1]), np.float64([1]), "float32[1], expected float64[1]"),
        (np.uint8([3]), np.uint8([4]), ""),
        (np.int64([3]), np.int64([4]), "1 of 1 integers"),
        ([np.int64([3])], [], "1 elements, expected 0"),
        ({"a": 1.0}, {"b": 1.0}, "other keys"),
    ],
)
def test_differences_are_reported(got, wanted, said: str) -> None:
    assert difference(got, wanted) == said

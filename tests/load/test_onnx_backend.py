"""ONNX's own node tests through the loader and the interpreter: the list of those that pass may only grow."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase as NodeCase
from onnx.backend.test.loader import load_model_tests

from ingot.errors import IngotError
from ingot.load.onnx import load_onnx
from ingot.run.interpret import interpret

# By ONNX's word "for informational purpose": every implementation draws its own numbers, even from one seed.
RANDOM = ("test_bernoulli",)
PASSING = Path(__file__).with_name("onnx_backend_passing.txt")


def with_constants(proto: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The model with the integer and bool inputs of at most rank 1 as constants: the tests feed axes and shapes too.

    So they do with the region and the scales of Resize, and the edges of mel bands, which are floats.
    """
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    settled = ("MelWeightMatrix", "Resize", "Upsample")
    scales = {name for node in proto.graph.node if node.op_type in settled for name in node.input[1:]}
    for name, array in arrays.items():
        if (array.dtype.kind in "ib" and array.ndim < 2) or name in scales:
            result.graph.initializer.append(numpy_helper.from_array(array, name))
    return result


def passes(case: NodeCase) -> bool:
    """Whether every data set of a case gives the expected dtypes, shapes and values."""
    for given, wanted in case.data_sets:
        inputs, expected = tensors(given), tensors(wanted)
        if inputs is None or expected is None:
            return False  # sequences and optionals
        arrays = {i.name: a for i, a in zip(case.model.graph.input, inputs, strict=False)}
        try:
            graph = load_onnx(with_constants(case.model, arrays).SerializeToString())
            results = interpret(graph, {name: arrays[name] for name in graph.inputs})
        except IngotError:
            return False
        if not all(same(got, want, case) for got, want in zip(results.values(), expected, strict=True)):
            return False
    return True


def tensors(values: Sequence[object]) -> list[np.ndarray] | None:
    """The arrays of a data set; None where a value is no tensor."""
    if not all(isinstance(v, (np.ndarray, np.generic, onnx.TensorProto)) for v in values):
        return None
    arrays = [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for v in values]
    return [a if a.dtype.kind not in "SU" else a.astype(object) for a in arrays]


def same(got: np.ndarray, want: np.ndarray, case: NodeCase) -> bool:
    """Equal in dtype and shape, and within the case's tolerance; of random numbers, zeros and ones."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if case.name.startswith(RANDOM):
        return bool(np.isin(got, (0, 1)).all())
    if got.dtype == object:
        return got.tolist() == want.tolist()
    return np.allclose(got.astype(np.float64), want.astype(np.float64), case.rtol, case.atol, equal_nan=True)


def passing_cases() -> set[str]:
    """Names of the node tests that pass."""
    cases = [case for case in load_model_tests(kind="node") if case.model is not None]
    passing = {case.name for case in cases if passes(case)}
    print(f"{len(passing)} of {len(cases)} node tests pass")
    return passing


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_node_suite() -> None:
    """Another version of onnx brings other cases; `python tests/load/test_onnx_backend.py` writes the list anew."""
    passing, listed = passing_cases(), set(PASSING.read_text().split())
    assert not listed - passing, f"no longer pass: {sorted(listed - passing)}"
    assert not passing - listed, f"pass but are not listed: {sorted(passing - listed)}"


if __name__ == "__main__":
    PASSING.write_text("".join(f"{name}\n" for name in sorted(passing_cases())))

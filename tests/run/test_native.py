"""Every op sample through the whole native path: against float64, and the same bits on every ISA and thread count."""

import numpy as np
import pytest

from ingot.ir.dtype import f32, i64
from ingot.ir.graph import Graph, Op, Sample, TensorType
from ingot.run.interpret import interpret
from kernel_calls import ISAS
from op_cases import CASES, STATIC_CASES, build, case_id, one_node, run, same_bits

pytestmark = [pytest.mark.native, pytest.mark.checked]


def assert_close(op: Op, got: np.ndarray, exact: np.ndarray) -> None:
    if got.dtype.kind != "f":
        assert np.array_equal(got, exact.astype(got.dtype))
        return
    tolerance = op.tolerance[f32]
    finite = np.isfinite(exact)
    assert np.array_equal(np.isnan(got), np.isnan(exact.astype(np.float32)))
    error = np.abs(got[finite] - exact[finite]) / np.maximum(1, np.abs(exact[finite]))
    assert error.size == 0 or error.max() <= tolerance, f"error {error.max()}, tolerance {tolerance}"


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_sample(case: tuple[Op, Sample]) -> None:
    op, sample = case
    graph, feeds = one_node(op, sample)
    reference = interpret(graph, feeds, float64=True)
    results = []
    for isa in ISAS:
        for threads in (1, 2, 3):
            program = build(graph, isa=isa, threads=threads)
            results.append(run(program, feeds))
    for name, got in zip(graph.outputs, results[0], strict=True):
        assert got.shape == reference[name].shape
        assert_close(op, got, reference[name])
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("op, sample, static", STATIC_CASES, ids=lambda v: getattr(v, "operands", ""))
def test_sample_with_weights(op: Op, sample: Sample, static: tuple[int, ...]) -> None:
    graph, feeds = one_node(op, sample, static)
    reference = interpret(graph, feeds, float64=True)
    for isa in ISAS:
        results = run(build(graph, isa=isa, threads=2), feeds)
        for name, got in zip(graph.outputs, results, strict=True):
            assert_close(op, got, reference[name])


@pytest.mark.parametrize("name", ["div", "floor_div", "mod"])
def test_integer_division_is_total(name: str) -> None:
    """By zero it gives 0, and the smallest integer by -1 wraps: the reference and every kernel agree."""
    graph = Graph(name)
    for operand in "ab":
        graph.add_input(operand, TensorType(i64, (6,)))
    graph.set_output("y", graph.add(name, ["a", "b"]).output)
    low = np.iinfo(np.int64).min
    feeds = {"a": np.array([7, -7, 0, low, low, 5]), "b": np.array([0, 0, 0, -1, 0, -2])}
    expected = interpret(graph, feeds)["y"]
    assert expected[:3].tolist() == [0, 0, 0]
    for isa in ISAS:
        assert np.array_equal(run(build(graph, isa=isa), feeds)[0], expected)

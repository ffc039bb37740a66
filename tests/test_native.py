"""Every op sample through the whole native path: against float64, and the same bits on every ISA and thread count."""

import numpy as np
import pytest

from ingot.compile import compile_mode
from ingot.dtype import f32, from_numpy, i64
from ingot.ir import OPS, Graph, Op, Sample, TensorType
from ingot.lower import Target
from ingot.ops.define import draw
from ingot.run.arena import Arena
from ingot.run.interpret import interpret
from ingot.run.library import load
from ingot.run.program import Program
from ingot.run.store import WeightStore

CASES = [(op, sample) for op in OPS.values() for sample in op.samples]
ISAS = load().isas()


def case_id(case: tuple[Op, Sample]) -> str:
    op, sample = case
    return f"{op.name}({sample.operands}){'' if not sample.attributes else sample.attributes}"


def one_node(op: Op, sample: Sample, static: tuple[int, ...] = ()) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of one node; operands listed in `static` are weights."""
    graph, feeds = Graph(op.name), {}
    names: list[str | None] = []
    for i, array in enumerate(draw(sample.operands, np.random.default_rng(7), op.domain)):
        if array is None:
            names.append(None)
        elif i in static:
            names.append(graph.add_weight(f"w{i}", array))
        else:
            names.append(graph.add_input(f"x{i}", TensorType(from_numpy(array.dtype), array.shape)))
            feeds[f"x{i}"] = array
    node = graph.add(op.name, names, **sample.attributes)
    for i, output in enumerate(node.outputs):
        graph.set_output(f"y{i}", output)
    return graph, feeds


def build(graph: Graph, **target: object) -> Program:
    return Program(compile_mode(graph.copy(), Target(**target)), WeightStore(), Arena())  # type: ignore[arg-type]


def run(program: Program, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return program.run([feeds[name] for name in program.graph.inputs])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit, NaN payloads aside."""
    a, b = np.atleast_1d(a), np.atleast_1d(b)
    if a.dtype.kind == "f":
        both_nan = np.isnan(a) & np.isnan(b)
        return np.array_equal(np.where(both_nan, 0, a).view(np.uint8), np.where(both_nan, 0, b).view(np.uint8))
    return np.array_equal(a, b)


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


STATIC_CASES = [(OPS["matmul"], s, (1,)) for s in OPS["matmul"].samples] + [
    (OPS["conv"], s, (1, 2)) for s in OPS["conv"].samples
]


@pytest.mark.parametrize("op, sample, static", STATIC_CASES, ids=lambda v: getattr(v, "operands", ""))
def test_sample_with_weights(op: Op, sample: Sample, static: tuple[int, ...]) -> None:
    graph, feeds = one_node(op, sample, static)
    reference = interpret(graph, feeds, float64=True)
    for isa in ISAS:
        (got,) = run(build(graph, isa=isa, threads=2), feeds)
        assert_close(op, got, reference["y0"])


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

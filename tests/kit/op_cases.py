"""Every sample of every op as a graph of one node, compiled and run."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ingot.compile import compile_mode
from ingot.ir.dtype import from_numpy
from ingot.ir.graph import OPS, Graph, Op, Sample, TensorType
from ingot.lower import Target
from ingot.ops.define import draw
from ingot.run.arena import Arena
from ingot.run.library import load
from ingot.run.program import Program
from ingot.run.store import WeightStore

CASES = [(op, sample) for op in OPS.values() for sample in op.samples]
# With weights among the operands, whose numbers are given.
STATIC_CASES = [
    (OPS[name], sample, static)
    for name, static in {
        "matmul": (1,),
        "conv": (1, 2),
        "lstm": (1,),
        "gru": (1, 2),
        "rnn": (1,),
        "matmul_integer": (1, 2, 4),
        "conv_integer": (1, 2, 4),
    }.items()
    for sample in OPS[name].samples
]
Operands = Sequence[np.ndarray | None]


def case_id(case: tuple[Op, Sample]) -> str:
    op, sample = case
    return f"{op.name}({sample.operands}){'' if not sample.attributes else sample.attributes}"


def one_node(
    op: Op, sample: Sample, static: Collection[int] = (), operands: Operands | None = None
) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of one node, and what it is fed. Raises ShapeError.

    static: the numbers of operands that are weights. operands: others than are drawn for the sample.
    """
    graph, feeds = Graph(op.name), {}
    names: list[str | None] = []
    drawn = draw(sample.operands, np.random.default_rng(7), op.domain) if operands is None else operands
    for i, array in enumerate(drawn):
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


def side_by_side(cases: Sequence[tuple[Op, Sample]], most_steps: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """Those of the cases that have a kernel and take at most so many steps, in one graph, and what it is fed."""
    kept = {}
    for number, (op, sample) in enumerate(cases):
        alone = build(one_node(op, sample)[0], isa="scalar", threads=1).single
        if alone is not None and len(alone.plan.steps) <= most_steps:
            kept[number] = op, sample
    return in_one_graph(kept)


def in_one_graph(cases: Mapping[int, tuple[Op, Sample]]) -> tuple[Graph, dict[str, np.ndarray]]:
    """Cases as one graph, with numbered operands and results, and its feeds."""
    graph, feeds = Graph("samples"), {}
    for number, (op, sample) in cases.items():
        count = len(one_node(op, sample)[0].outputs)
        names: list[str | None] = []
        for i, array in enumerate(draw(sample.operands, np.random.default_rng(7), op.domain)):
            name = f"x{number}.{i}"
            names.append(None if array is None else name)
            if array is not None:
                graph.add_input(name, TensorType(from_numpy(array.dtype), array.shape))
                feeds[name] = array
        node = graph.add(op.name, names, [f"y{number}.{i}" for i in range(count)], **sample.attributes)
        for output in node.outputs:
            graph.set_output(output, output)
    return graph, feeds


def build(graph: Graph, **target: object) -> Program:
    """The program of a graph, on this CPU's instruction set unless the target sets another."""
    wanted = Target(**{"isa": load().isa(), **target})  # type: ignore[arg-type]
    return Program(compile_mode(graph.copy(), wanted), WeightStore(), Arena())


def run(program: Program, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return program.run([feeds[name] for name in program.graph.inputs])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit, NaN payloads aside."""
    a, b = np.atleast_1d(a), np.atleast_1d(b)
    if a.dtype.kind == "f":
        both_nan = np.isnan(a) & np.isnan(b)
        return np.array_equal(np.where(both_nan, 0, a).view(np.uint8), np.where(both_nan, 0, b).view(np.uint8))
    return np.array_equal(a, b)

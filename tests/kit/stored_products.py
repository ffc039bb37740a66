"""A graph of products with matrices as some file stores them, and a static graph compiled as far as its program."""

from collections.abc import Callable

from ingot.compile import compile_mode
from ingot.dtype import i32
from ingot.ir import Graph, TensorType
from ingot.lower import Target
from ingot.passes import optimize
from ingot.run.arena import Arena
from ingot.run.program import Program
from ingot.run.store import WeightStore


def products_of(weight: Callable[[Graph, str, int, int], str], rows: int, k: int, half: int) -> Graph:
    """A tied and an untied table, parallel products that merge, a gated pair.

    weight: adds the matrix of a name, f32[n, k], to a graph.
    """
    graph = Graph("model")
    ids = graph.add_input("ids", TensorType(i32, (rows,)))

    def product(x: str, name: str, n: int, inputs: int = k) -> str:
        return graph.add("matmul", [x, weight(graph, name, n, inputs)], transpose_b=True).output

    table, other = weight(graph, "table", 100, k), weight(graph, "other", 100, k)
    x = graph.add("add", [graph.add("gather", [t, ids], axis=0).output for t in (table, other)]).output
    graph.set_output("k", product(x, "key", 32))
    x = graph.add("add", [x, product(x, "query", k)]).output
    gate, up = product(x, "gate", half), product(x, "up", half)
    x = graph.add("mul", [graph.add("silu", [gate]).output, up]).output
    graph.set_output("y", graph.add("matmul", [product(x, "down", k, half), table], transpose_b=True).output)
    return graph


def compiled(graph: Graph, **target: object) -> tuple[Program, list[str]]:
    """The program of a graph, in parts as small as can be, and the kernels of its steps."""
    graph = graph.copy()
    optimize(graph)
    options = {"threads": 2, "run_nanoseconds": 0, "part_nanoseconds": 1} | target
    program = Program(compile_mode(graph, Target(**options)), WeightStore(2), Arena())
    assert program.single is not None
    return program, [step.kernel for step in program.single.lowered.steps]

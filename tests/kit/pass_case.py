"""How a pass is tested: text in, text out, the same numbers before and after, and a second run that changes nothing."""

import numpy as np

import ingot.ops  # noqa: F401
from ingot.ir.graph import Graph
from ingot.ir.text import dump, parse
from ingot.passes import optimize
from ingot.run.interpret import interpret

SYMBOLS = {"B": 2, "S": 5, "T": 7}
TOLERANCE = 2e-5  # relative to max(1, |expected|): both sides compute in f32

Case = tuple[str, tuple[str, ...], str, str | None]  # name, passes, text before, text after (None: unchanged)


def random_array(rng: np.random.Generator, graph: Graph, name: str) -> np.ndarray:
    """Data for an input or weight; integers are small and not negative, floats positive where a norm divides."""
    type = graph.type(name)
    shape = tuple(SYMBOLS[str(d)] if not isinstance(d, int) else d for d in type.shape)
    if type.dtype.kind == "f":
        return rng.standard_normal(shape).astype(type.dtype.numpy)
    return rng.integers(0, 2, shape).astype(type.dtype.numpy)


def read(text: str) -> Graph:
    """A graph from its text without the head line, its weights filled with random numbers."""
    graph = parse("graph g\n" + text)
    rng = np.random.default_rng(1)
    for name, value in graph.values.items():
        if value.kind == "weight":
            value.data = random_array(rng, graph, name)
    return graph


def run(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return interpret(graph, {name: random_array(rng, graph, name) for name in graph.inputs})


def expect_equal(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> None:
    assert list(before) == list(after)
    for name, expected in before.items():
        got = after[name]
        assert got.dtype == expected.dtype and got.shape == expected.shape
        assert np.isfinite(expected).all() or not np.isfinite(got[~np.isfinite(expected)]).any()
        finite = np.isfinite(expected)
        error = np.abs(got[finite] - expected[finite]) / np.maximum(1, np.abs(expected[finite]))
        assert error.max(initial=0) <= TOLERANCE, name


def check_pass(passes: tuple[str, ...], before: str, after: str | None) -> None:
    """The named passes make `after` of `before`, keep its numbers, and then change nothing more."""
    graph = read(before)
    expected = run(graph)
    optimize(graph, passes)
    assert dump(graph) == dump(read(before if after is None else after))
    expect_equal(expected, run(graph))
    optimize(graph, passes)
    assert dump(graph) == dump(read(before if after is None else after))


def check_all_passes(before: str) -> None:
    """All passes together keep the numbers, and then change nothing more."""
    graph = read(before)
    expected = run(graph)
    optimize(graph)
    expect_equal(expected, run(graph))
    once = dump(graph)
    optimize(graph)
    assert dump(graph) == once

"""What the interpreter refuses: wrong feeds, symbols that contradict each other, weights without data."""

import weakref

import numpy as np
import pytest

from ingot.errors import InputError, LoadError
from ingot.ir.dim import symbol
from ingot.ir.dtype import bf16, f16, f32, i64
from ingot.ir.graph import OPS, Graph, TensorType
from ingot.ir.text import parse
from ingot.run.interpret import bind_symbols, interpret
from ingot.session.inference import InferenceSession

B, S, T = symbol("B"), symbol("S"), symbol("T")
FEEDS = {"x": ("f4", (2, 5, 4)), "ids": ("i8", (2, 6)), "past": ("f4", (2, 10))}


@pytest.fixture
def graph():
    graph = Graph("inputs")
    graph.add_input("x", TensorType(f32, (B, S, 4)))
    graph.add_input("ids", TensorType(i64, (B, S + 1)))
    graph.add_input("past", TensorType(f32, (2, 2 * T)))
    graph.add_state("cache", TensorType(f32, (B, 3)))
    graph.set_output("y", graph.add("relu", ["x"], "y").output)
    return graph


def feeds(**changes):
    return {name: np.zeros(shape, dtype) for name, (dtype, shape) in (FEEDS | changes).items() if dtype}


def test_symbols_follow_from_shapes(graph):
    assert bind_symbols(graph, feeds()) == {"B": 2, "S": 5, "T": 5}
    results = interpret(graph, feeds())
    assert results["y"].shape == (2, 5, 4) and results["state:cache"].shape == (2, 3)
    assert bind_symbols(graph, feeds(x=("f4", (2, 0, 4)), ids=("i8", (2, 1))))["S"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": (None, None)}, r"inputs: missing \['x'\], unknown \[\], expected \['x', 'ids', 'past', 'cache'\]"),
        ({"z": ("f4", (1,))}, r"unknown \['z'\]"),
        ({"x": ("f8", (2, 5, 4))}, r"input 'x': wrong dtype, got float64, expected f32 of f32\[B, S, 4\]"),
        ({"ids": ("i4", (2, 6))}, r"input 'ids': wrong dtype, got int32"),
        ({"x": ("f4", (5, 4))}, r"input 'x': wrong rank, got \[5, 4\]"),
        ({"x": ("f4", (2, 5, 3))}, r"input 'x': wrong dim 2, got 3, expected 4"),
        ({"ids": ("i8", (3, 6))}, r"input 'ids': dim 0 contradicts input 'x', got B = 3, expected 2"),
        ({"ids": ("i8", (2, 9))}, r"input 'ids': dim 1 contradicts input 'x', got S = 8, expected 5"),
        ({"ids": ("i8", (2, 0))}, r"input 'ids': dim 1 does not fit, got 0, expected S\+1"),
        ({"past": ("f4", (2, 9))}, r"input 'past': dim 1 does not fit, got 9, expected 2\*T"),
        ({"cache": ("f4", (3, 3))}, r"input 'cache': dim 0 contradicts input 'x', got B = 3, expected 2"),
    ],
)
def test_wrong_feeds(graph, changes, message):
    with pytest.raises(InputError, match=message):
        interpret(graph, feeds(**changes))


def test_feeds_are_arrays(graph):
    with pytest.raises(InputError, match="input 'x': wrong dtype, got list"):
        interpret(graph, feeds() | {"x": [[[1.0]]]})


def test_float64_takes_either(graph):
    for dtype in ("f4", "f8"):
        results = interpret(graph, feeds(x=(dtype, (2, 5, 4))), float64=True)
        assert results["y"].dtype == np.float64 and results["state:cache"].dtype == np.float64


def test_symbols_that_no_feed_gives():
    graph = Graph()
    graph.add_input("x", TensorType(f32, (B * S,)))
    with pytest.raises(InputError, match=r"wrong dim 0, got 6, expected B.S of .* leaves B, S undetermined"):
        interpret(graph, {"x": np.zeros(6, np.float32)})
    graph = Graph()
    graph.add_state("s", TensorType(f32, (B,)))
    with pytest.raises(InputError, match="no feed determines symbols, got none for B"):
        interpret(graph, {})


def test_a_weight_without_data():
    graph = Graph()
    graph.add_weight("w", None, TensorType(f32, (2,)))
    graph.set_output("y", graph.add("relu", ["w"], "y").output)
    with pytest.raises(LoadError, match=r"weight 'w': has no data, got only its type f32\[2\]"):
        interpret(graph, {})


def test_shapes_that_the_model_promised(graph):
    graph.set_output("tail", graph.add("reshape", ["past"], "tail", shape=(4, S)).output)
    assert interpret(graph, feeds())["tail"].shape == (4, 5)
    with pytest.raises(InputError, match="node 'tail': reshape: number of elements"):
        interpret(graph, feeds(past=("f4", (2, 12))))


def test_arrays_are_freed_after_their_last_use():
    """A chain of results holds only a few arrays at once."""
    graph = Graph()
    graph.add_input("x", TensorType(f32, (1,)))
    name = "x"
    for _ in range(50):
        name = graph.add("neg", [name]).output
    graph.set_output("y", name)
    alive, most = [], []

    def watch(name, array):
        alive.append(weakref.ref(array))
        most.append(sum(reference() is not None for reference in alive))

    interpret(graph, {"x": np.ones(1, np.float32)}, watch=watch)
    assert max(most) <= 3


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("op", ["elu", "gelu", "sigmoid", "softplus", "exp", "hard_swish"])
def test_half_types_round_once(op, dtype):
    """Whatever numpy widens to inside, the result has the operand's dtype."""
    x = np.linspace(-2, 2, 9).astype(dtype.numpy)
    graph = Graph(op)
    graph.add_input("x", TensorType(dtype, x.shape))
    attributes = {"elu": {"alpha": 1.0}}.get(op, {})
    graph.set_output("y", graph.add(op, ["x"], **attributes).output)
    wide = OPS[op].function(x.astype(np.float64), **(OPS[op].attributes | attributes))
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"].astype(np.float64), wide, rtol=2e-2, atol=1e-2)


def test_dictionaries_are_fed_and_returned():
    text = "input m: sequence<map<i64, f32>>\ninput p: i64[]\none = sequence_at(m, p)\noutput one = one\noutput m = m\n"
    graph, place = parse(text), np.array(-1)
    given = [{1: 0.5}, {2: 1.5, 3: -2.0}]
    for is_wide in (False, True):
        results = interpret(graph, {"m": given, "p": place}, float64=is_wide)
        assert results == {"one": given[1], "m": given} and results["one"] is not given[1]
    assert InferenceSession(graph).run(None, {"m": given, "p": place}) == [given[1], given]
    for wrong in ([{"a": 0.5}], [{1: "a"}], [0.5], {1: 0.5}, [None]):
        with pytest.raises(InputError, match=r"input 'm': got \w+, expected a (dictionary|list) for"):
            interpret(graph, {"m": wrong, "p": place})

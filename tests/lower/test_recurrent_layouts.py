"""Recurrent ops whose results other nodes read in another layout."""

import numpy as np
import pytest

from ingot import InferenceSession
from ingot.ir.dtype import f32, i32
from ingot.ir.graph import Graph, TensorType
from ingot.run.interpret import interpret

SHAPES = {"q": (7, 2, 8), "k": (7, 2, 8), "v": (7, 4, 20), "rest": (7, 4, 20)}


@pytest.mark.parametrize("reader", ["permute", "concat"])
def test_results_are_read_in_another_layout(rng, reader):
    graph = Graph()
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    feeds |= {"positions": np.arange(7, dtype=np.int32), "owners": np.zeros(7, np.int32)}
    feeds["slots"] = np.zeros(1, np.int32)
    for name, array in feeds.items():
        graph.add_input(name, TensorType(f32 if array.dtype == np.float32 else i32, array.shape))
    graph.add_state("state", TensorType(f32, (1, 4, 8, 20)))
    operands = ["state", "q", "k", "v", "positions", "owners", "slots"]
    graph.add("linear_attention_of_rows", operands, ["after", "result"], scale=0.5)
    graph.set_state("state", "after")
    if reader == "permute":
        graph.add("permute", ["result"], "y", axes=(1, 0, 2))
    else:
        graph.add("concat", ["result", "rest"], "y", axis=2)
    graph.set_output("y", "y")
    (expected,) = (interpret(graph, feeds)[name] for name in ("y",))
    found = InferenceSession(graph, threads=1, strict=True).run(None, feeds)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "activations"), [("lstm", ("sigmoid", "tanh", "tanh")), ("gru", ("sigmoid", "tanh")), ("rnn", ("tanh",))]
)
def test_layers_without_units_run(op, activations):
    graph, feeds = Graph(), {"gates": np.zeros((3, 2, 0), np.float32), "h": np.zeros((2, 0), np.float32)}
    if op == "lstm":
        feeds["c"] = np.zeros((2, 0), np.float32)
    for name, array in feeds.items():
        graph.add_input(name, TensorType(f32, array.shape))
    graph.add_weight("r", np.zeros((0, 0), np.float32))
    graph.add_weight("bias", np.zeros(0, np.float32))
    operands = ["gates", "r", *(["bias"] if op == "gru" else []), *(name for name in feeds if name != "gates")]
    numbers = (0.0,) * len(activations)
    outputs = ["y", "last_h", "last_c"][: len(feeds)]
    graph.add(op, operands, outputs, activations=activations, alphas=numbers, betas=numbers)
    graph.set_output("y", "y")
    assert InferenceSession(graph).run(None, feeds)[0].shape == (3, 2, 0)

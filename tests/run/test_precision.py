"""Precision as an option of sessions: what is rounded, against float64, what programs keep of it, who refuses it."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ingot
from ingot.compile import Mode
from ingot.dim import symbol
from ingot.dtype import bf16, f32
from ingot.errors import InputError, UnsupportedError
from ingot.ir import Graph, TensorType
from ingot.precision import PRECISIONS
from ingot.run.interpret import interpret
from ingot.run.library import load
from kernel_calls import LIBRARY

pytestmark = pytest.mark.native

ROUNDED = [name for name, precision in PRECISIONS.items() if precision.weights]
RUNNABLE = [name for name in ROUNDED if PRECISIONS[name].rows is None or LIBRARY.dots(LIBRARY.isa())]
TOLERANCE = 2**-7  # of the largest output: two roundings of 2^-9 for each of some layers


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def weight(graph: Graph, name: str, *shape: int) -> str:
    return graph.add_weight(name, random(*shape, seed=len(graph.values)) / np.float32(np.sqrt(np.prod(shape[1:]))))


def linear(width: int = 64) -> Graph:
    """Two layers with a residual between them, for any number of rows."""
    graph = Graph("linear")
    x = graph.add_input("x", TensorType(f32, (symbol("rows"), width)))
    up = graph.add("matmul", [x, weight(graph, "up", 96, width)], "h", transpose_b=True)
    h = graph.add("relu", [graph.add("add", [up.output, weight(graph, "bias", 96)]).output])
    down = graph.add("matmul", [h.output, weight(graph, "down", width, 96)], "d", transpose_b=True)
    graph.set_output("y", graph.add("add", [down.output, x]).output)
    return graph


def image() -> Graph:
    """A pointwise convolution between two of 3 x 3, the first of three channels."""
    graph = Graph("image")
    x = graph.add_input("x", TensorType(f32, (1, 3, 12, 12)))
    plain = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
    for name, (out, channels, size) in {"a": (32, 3, 3), "b": (48, 32, 1), "c": (16, 48, 3)}.items():
        pads = (size // 2,) * 4
        x = graph.add("conv", [x, weight(graph, name, out, channels, size, size)], pads=pads, **plain).output
        x = graph.add("relu", [x]).output
    graph.set_output("y", x)
    return graph


MODELS = {"linear": (linear, (5, 64)), "linear, odd": (lambda: linear(33), (40, 33)), "image": (image, (1, 3, 12, 12))}


@pytest.mark.parametrize("precision", RUNNABLE)
@pytest.mark.parametrize("name", MODELS)
def test_near_float64(name: str, precision: str) -> None:
    make, shape = MODELS[name]
    x = random(*shape, seed=9)
    exact = interpret(make(), {"x": x}, float64=True)["y"]
    (native,) = ingot.InferenceSession(make(), precision=precision, threads=2).run(None, {"x": x})
    (reference,) = ingot.InferenceSession(make(), precision=precision, executor="interpret").run(None, {"x": x})
    scale = abs(exact).max()
    assert 1e-5 * scale < abs(native - exact).max() < TOLERANCE * scale
    assert abs(native - reference).max() < 2e-3 * scale  # near ties are rounded one way or the other
    (plain,) = ingot.InferenceSession(make(), precision="f32").run(None, {"x": x})
    assert plain.tobytes() == ingot.InferenceSession(make()).run(None, {"x": x})[0].tobytes()


@pytest.mark.parametrize("precision", RUNNABLE)
def test_bits_of_threads_and_batch(precision: str) -> None:
    sessions = [ingot.InferenceSession(linear(), precision=precision, threads=threads) for threads in (1, 2, 3)]
    x = random(70, 64, seed=3)
    whole = {session.run(None, {"x": x})[0].tobytes() for session in sessions}
    assert len(whole) == 1
    if precision == "bf16":
        alone = np.concatenate([sessions[1].run(None, {"x": x[i : i + 1]})[0] for i in range(len(x))])
        assert whole == {alone.tobytes()}


def test_what_is_rounded() -> None:
    """Of the operands of products alone, those with an even number of elements a row; the graph itself stays."""
    whole = image()
    graph = Mode(precision=PRECISIONS["bf16"]).graph(whole)
    rounded = {node.operands[0] for node in graph.nodes if node.op.name == "cast" and node.dtype is bf16}
    convs = [node for node in whole.nodes if node.op.name == "conv"]
    assert rounded == {operand for node in convs[1:] for operand in node.operands[:2]}
    assert not any(node.op.name == "cast" for node in whole.nodes)
    x, w = random(4, 64, seed=1).astype(bfloat16), random(64, 32, seed=2)
    product = Graph("product")
    product.add_input("x", TensorType(f32, (4, 64)))
    product.set_output("y", product.add("matmul", ["x", product.add_weight("w", w)]).output)
    expected = x.astype(float) @ w.astype(bfloat16).astype(float)
    for precision in RUNNABLE:
        (y,) = ingot.InferenceSession(product, precision=precision).run(None, {"x": x.astype(np.float32)})
        assert abs(y - expected).max() < 1e-5


@pytest.mark.parametrize("precision", RUNNABLE)
def test_a_saved_program_keeps_it(tmp_path, precision: str) -> None:
    session, x = ingot.InferenceSession(linear(), precision=precision, dims={"rows": 5}), random(5, 64, seed=4)
    session.save(tmp_path / "program")
    loaded = ingot.InferenceSession(tmp_path / "program")
    assert loaded.precision is session.precision is PRECISIONS[precision]
    assert loaded.run(None, {"x": x})[0].tobytes() == session.run(None, {"x": x})[0].tobytes()
    with pytest.raises(InputError, match=f"not what was saved, got f32, expected {precision}"):
        ingot.InferenceSession(tmp_path / "program", precision="f32")


def test_without_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session refuses, and says what runs."""
    monkeypatch.setenv("INGOT_ISA", "scalar")
    assert not load().dots(load().isa())
    with pytest.raises(UnsupportedError, match="no dot products of bf16 here, got 'bf16', expected bf16w"):
        ingot.InferenceSession(linear(), precision="bf16")
    x = random(3, 64, seed=5)
    assert ingot.InferenceSession(linear(), precision="bf16w").run(None, {"x": x})[0].shape == (3, 64)

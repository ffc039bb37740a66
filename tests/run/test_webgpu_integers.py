"""WebGPU on adapters in software: quantized layers, trees, and what an epilogue leaves to other kernels."""

from pathlib import Path

import numpy as np
import pytest

from adapters import adapter
from forests import forest
from ingot.ir.dtype import DType, boolean, f32, from_numpy, i8, i64, u8
from ingot.ir.graph import Graph, TensorType
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from quantized_models import LAYERS, Layer, last_step, quantized

assert adapter
INFINITE = (np.inf, -np.inf, np.nan)
pytestmark = pytest.mark.usefixtures("adapter")


def expect_reference(graph: Graph, feeds: dict[str, np.ndarray], tolerance: float) -> None:
    expected = interpret(graph, feeds)
    for name, result in zip(graph.outputs, on_webgpu(graph).run(None, feeds), strict=True):
        np.testing.assert_allclose(result, expected[name], rtol=tolerance, atol=tolerance)


def on_webgpu(source: object) -> InferenceSession:
    return InferenceSession(source, executor="webgpu", strict=True)  # type: ignore[arg-type]


# The adapters compile each for seconds: a layer is signed or not in the quick tests, and both in the others.
QUANTIZED = [
    pytest.param(layer, signed, id=f"{index}-{layer.op}", marks=[pytest.mark.slow] if signed == bool(index % 2) else [])
    for index, layer in enumerate(LAYERS)
    for signed in (False, True)
]


@pytest.mark.parametrize(("layer", "signed"), QUANTIZED)
def test_quantised_layers_are_native_s(layer: Layer, signed: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    """Of products, grouped and depthwise convolutions, and what comes after them."""
    proto, feeds = quantized(layer, tmp_path, rng, qdq=True, signed=signed, per_channel=True, symmetric=False)
    data = proto.SerializeToString()
    (found,), (expected,) = (session.run(None, feeds) for session in (on_webgpu(data), InferenceSession(data)))
    assert np.abs(found - expected).max() <= 1.01 * last_step(proto)
    assert np.mean(found != expected) < 0.01


@pytest.mark.parametrize("aggregate", ["sum", "average", "min", "max"])
def test_trees_vote_as_in_the_reference(aggregate: str) -> None:
    tables = forest(7, np.float32, 13, 6, 6, 3)
    x = np.random.default_rng(3).integers(-2, 3, (70, 6)).astype(np.float32)
    x[x == 2] = np.nan
    graph = Graph("forest")
    graph.add_input("x", TensorType(f32, x.shape))
    names = [graph.add_weight(name, table) for name, table in tables.items()]
    graph.set_output("votes", graph.add("tree_ensemble", ["x", *names], targets=3, aggregate=aggregate).output)
    expect_reference(graph, {"x": x}, 1e-6)


def test_prelu_after_a_product_has_its_slopes(rng: np.random.Generator) -> None:
    graph = Graph("slopes")
    graph.add_input("x", TensorType(f32, (5, 24)))
    weight, slopes = (
        graph.add_weight(name, rng.standard_normal(shape).astype(np.float32))
        for name, shape in (("weight", (24, 40)), ("slopes", (40,)))
    )
    attributes = {"transpose_a": False, "transpose_b": False, "scale": 1.0}
    sums = graph.add("matmul", ["x", weight], **attributes).output
    graph.set_output("y", graph.add("prelu", [sums, slopes]).output)
    expect_reference(graph, {"x": rng.standard_normal((5, 24)).astype(np.float32)}, 1e-5)


@pytest.mark.parametrize("dtype", [u8, i8])
def test_casts_to_and_from_8_bits_wrap_and_saturate(dtype: DType) -> None:
    feeds = {
        "floats": np.array([-1e9, -129, -1.7, -0.5, 0, 0.9, 127.9, 255.5, 256, 3e9, *INFINITE], np.float32),
        "wide": np.array([-(2**31), -257, -129, -128, -1, 0, 127, 128, 255, 256, 2**31 - 1]),
        "small": np.arange(256, dtype=np.uint8).view(dtype.numpy),
        "flags": np.array([True, False]),
    }
    graph = Graph("casts")
    for name, array in feeds.items():
        graph.add_input(name, TensorType(from_numpy(array.dtype), array.shape))
        for other in {dtype, f32, i64, boolean} if name == "small" else {dtype}:
            graph.set_output(f"{name}.{other}", graph.add("cast", [name], f"{name}.{other}", dtype=other).output)
    graph.set_output("doubled", graph.add("add", ["small", "small"]).output)
    expect_reference(graph, feeds, 0)

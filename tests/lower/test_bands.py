"""Chains of convolutions with large images in between run by bands of rows, with the bits of whole images."""

from collections import Counter

import numpy as np
import pytest

from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.run.interpret import interpret
from op_cases import build, run, same_bits


def conv(graph: Graph, x: str, out: int, kernel: int = 1, stride: int = 1, act: str = "", **settings) -> str:
    """Add a convolution with random weights; kernel 1 is a product of pixels, groups=0 a depthwise convolution."""
    channels = graph.type(x).dims[1]
    groups = settings.pop("groups", 1) or channels
    dilation, pads = settings.pop("dilation", 1), settings.pop("pads", (kernel // 2,) * 4)
    name, draw = f"{x}.{out}.{kernel}", np.random.default_rng(len(graph.values))
    weight = draw.standard_normal((out, channels // groups, kernel, kernel), np.float32) / np.float32(kernel)
    graph.add_weight(f"{name}.w", weight)
    graph.add_weight(f"{name}.b", draw.standard_normal(out, np.float32))
    geometry = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": pads, "groups": groups}
    y = graph.add("conv", [x, f"{name}.w", f"{name}.b"], f"{name}.y", **geometry).output
    return graph.add(act, [y], f"{name}.{act}").output if act else y


def image(channels: int, height: int, width: int, batch: int = 1) -> tuple[Graph, str]:
    graph = Graph("chain")
    return graph, graph.add_input("x", TensorType(f32, (batch, channels, height, width)))


def inverted(stride: int = 1, pads: tuple[int, ...] = (1, 1, 1, 1), batch: int = 1) -> Graph:
    """MobileNet's block: a residual where the stride is 1."""
    graph, x = image(24, 105, 97, batch)
    y = conv(graph, conv(graph, x, 144, act="relu"), 144, 3, stride, "relu", groups=0, pads=pads)
    y = conv(graph, y, 24)
    graph.set_output("y", graph.add("add", [x, y], "sum").output if stride == 1 and pads == (1, 1, 1, 1) else y)
    return graph


def stem() -> Graph:
    """A first convolution that reads planes, a dilated depthwise one, and one with windows of 1 x 1."""
    graph, x = image(3, 305, 299)
    y = conv(graph, conv(graph, x, 16, 3, act="silu"), 16, 5, groups=0, dilation=2, pads=(4, 4, 3, 3))
    graph.set_output("y", conv(graph, y, 20))
    return graph


def averaged() -> Graph:
    """Squeeze and excitation's begin: the mean of a depthwise convolution's result, and the result."""
    graph, x = image(40, 91, 66)
    y = conv(graph, conv(graph, x, 240, act="silu"), 240, 5, act="silu", groups=0)
    graph.set_output("y", y)
    graph.set_output("mean", graph.add("reduce_mean", [y], "mean", axes=(2, 3), keepdims=True).output)
    return graph


GRAPHS = {
    "residual": inverted, "strided": lambda: inverted(2), "unevenly padded": lambda: inverted(2, (0, 0, 1, 1)),
    "no padding": lambda: inverted(1, (0, 0, 0, 0)), "much padding": lambda: inverted(1, (40, 0, 50, 1)),
    "stem": stem, "averaged": averaged,
}  # fmt: skip


def feed(graph: Graph) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(3).standard_normal(graph.type("x").dims, np.float32)}


@pytest.mark.parametrize("name", GRAPHS)
def test_bits_are_those_of_whole_images(name: str) -> None:
    graph = GRAPHS[name]()
    feeds = feed(graph)
    whole = build(graph, reuse=False)
    expected = run(whole, feeds)
    for threads in (1, 2, 3):
        banded = build(graph, threads=threads)
        counts = [Counter(step.kernel for step in p.single.plan.steps) for p in (whole, banded)]
        assert counts[0]["conv2d_f32_depthwise"] == 1 < counts[1]["conv2d_f32_depthwise"], counts
        assert banded.single.plan.arena_bytes < whole.single.plan.arena_bytes
        for _ in range(2):
            assert all(map(same_bits, run(banded, feeds), expected)), threads


@pytest.mark.parametrize("name", ["residual", "averaged"])
def test_against_the_specification(name: str) -> None:
    graph = GRAPHS[name]()
    exact = interpret(graph, feed(graph))
    for got, wanted in zip(run(build(graph, threads=2), feed(graph)), exact.values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_small_images_and_batches_are_computed_whole() -> None:
    graph, x = image(24, 28, 28)
    graph.set_output("y", conv(graph, conv(graph, x, 144), 144, 3, groups=0))
    for each in (graph, inverted(batch=2)):
        kernels = Counter(step.kernel for step in build(each).single.plan.steps)
        assert kernels["conv2d_f32_depthwise"] == 1


def test_a_value_with_another_reader_is_computed_whole() -> None:
    graph, x = image(24, 105, 97)
    wide = conv(graph, x, 144, act="relu")
    graph.set_output("y", conv(graph, wide, 144, 3, groups=0))
    graph.set_output("wide", wide)
    residual, x = image(24, 105, 97)
    wide = conv(residual, x, 144, act="relu")
    narrow = conv(residual, wide, 144, 3, groups=0)
    residual.set_output("y", residual.add("add", [narrow, wide], "sum").output)
    for each in (graph, residual):
        kernels = Counter(step.kernel for step in build(each).single.plan.steps)
        assert kernels["conv2d_f32_depthwise"] == 1

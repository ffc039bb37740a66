"""Nodes over images that random ONNX models are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from random_growth import Refused
from random_onnx import Dims, F, OnnxGrowth


def ends(g: OnnxGrowth, x: str, amounts: list[int]) -> Iterator[tuple[Dims, int, int]]:
    """The sizes of each of the last dims at each binding, and what is added before and after it."""
    half = len(amounts) // 2
    sizes = list(zip(*g.shapes(x), strict=True))[g.rank(x) - half :]
    return zip(sizes, amounts[:half], amounts[half:], strict=True)


def expect_windows(g: OnnxGrowth, x: str, kernel: list[int], pads: list[int]) -> None:
    """Raises Refused where a window is larger than its padded input, of which ONNX Runtime makes nothing."""
    if any(min(dims) + a + b < k for k, (dims, a, b) in zip(kernel, ends(g, x, pads), strict=True)):
        raise Refused("a window larger than its input")


def image(g: OnnxGrowth) -> tuple[str, int]:
    """[N, C, ...] with C known, and C."""
    channels = int(g.choose((0, 1, 1, 2, 3, 4)))
    dims = (g.dim(), channels, *(g.dim() if g.chance(0.3) else g.between(1, 6) for _ in range(g.choose((1, 2, 2)))))
    return g.leaf(F, dims), channels


def conv(g: OnnxGrowth) -> str:
    x, channels = image(g)
    spatial = g.rank(x) - 2
    groups = int(g.choose((1, 1, max(channels, 1))))
    out = groups * int(g.choose((0, 1, 1, 2, 17)))
    kernel = [g.between(1, 3) for _ in range(spatial)]
    w = g.constant(g.draw(F, (out, channels // groups, *kernel), -1.0, 1.0))
    b = [g.constant(g.draw(F, (out,), -1.0, 1.0))] if g.chance(0.5) else []
    pads = [g.between(0, 2) for _ in range(2 * spatial)]
    expect_windows(g, x, kernel, pads)
    y = g.add("Conv", x, w, *b, group=groups, pads=pads, strides=[g.between(1, 2) for _ in range(spatial)])
    if g.chance(0.4):
        statistics = [g.constant(g.draw(F, (out,), 0.5, 2.0)) for _ in range(4)]
        y = g.add("BatchNormalization", y, *statistics)
    return g.add(g.choose(("Relu", "HardSwish", "Sigmoid")), y) if g.chance(0.4) else y


def transposed_conv(g: OnnxGrowth) -> str:
    x, channels = image(g)
    if any(0 in shape[1:] for shape in g.shapes(x)):
        raise Refused("nothing to transpose")
    spatial = g.rank(x) - 2
    kernel = [g.between(1, 4) for _ in range(spatial)]
    w = g.constant(g.draw(F, (channels, g.between(1, 3), *kernel), -1.0, 1.0))
    pads = [g.between(0, (k - 1) // 2) for k in (*kernel, *kernel)]
    return g.add("ConvTranspose", x, w, pads=pads, strides=[g.between(1, 3) for _ in kernel])


def resize(g: OnnxGrowth) -> str:
    x, _ = image(g)
    if any(0 in shape for shape in g.shapes(x)):
        raise Refused("nothing to resize")
    whole = g.rank(x) != 4 or g.chance(0.5)
    factors = (1.0, 2.0, 3.0) if whole else (0.75, 1.0, 1.5, 2.0)
    scales = np.array([1, 1, *(g.choose(factors) for _ in range(g.rank(x) - 2))], F)
    mode = "nearest" if whole else "linear"
    given = [g.constant(scales, hidden=True)]
    if not whole and not g.symbols and g.chance(0.3):
        given = ["", g.fed(np.int64(np.array(g.shape(x)) * scales))]
    return g.add("Resize", x, "", *given, mode=mode, coordinate_transformation_mode="half_pixel")


def pool(g: OnnxGrowth) -> str:
    x, _ = image(g)
    if g.chance(0.3):
        return g.add(g.choose(("GlobalAveragePool", "GlobalMaxPool")), x)
    kernel = [g.between(1, 3) for _ in range(g.rank(x) - 2)]
    pads = [g.between(0, k - 1) for k in (*kernel, *kernel)]
    expect_windows(g, x, kernel, pads)
    attributes = {"kernel_shape": kernel, "pads": pads, "strides": [g.between(1, 2) for _ in kernel]}
    if g.chance(0.2):
        return g.add("LpPool", x, **attributes, p=g.choose((1, 2, 3)))
    if g.chance(0.2):
        return g.add_all("MaxPool", 2, x, **attributes, storage_order=g.choose((0, 1)))[1]
    if g.chance(0.4):
        return g.add("AveragePool", x, **attributes, count_include_pad=g.choose((0, 1)))
    return g.add("MaxPool", x, **attributes)


def image_norm(g: OnnxGrowth) -> str:
    x, channels = image(g)
    scale, shift, mean, variance = (g.constant(g.draw(F, (channels,), 0.5, 2.0)) for _ in range(4))
    if g.chance(0.5):
        return g.add("BatchNormalization", x, scale, shift, mean, variance)
    if any(math.prod(shape[2:]) == 1 for shape in g.shapes(x)):
        raise Refused("one element, which ONNX Runtime scales before it takes its mean away")
    return g.add("InstanceNormalization", x, scale, shift)

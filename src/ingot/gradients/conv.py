"""Gradients of convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ingot.gradients.registry import Backward, gradient
from ingot.gradients.shape import cut
from ingot.ir import Node

_CHANNELS = 16  # that fill the columns of a product


def _windows_to_image(g: Backward, node: Node, d: str, w: str, groups: int, kernel: Sequence[int]) -> str:
    """What windows over x get is added up at the places that they read: a transposed convolution with a filter."""
    rank = len(kernel)
    sizes, made = g.type(str(node.operands[0])).dims[2:], g.type(d).dims[2:]
    left = []  # what no window reaches, at the end of each axis
    for i, (size, out) in enumerate(zip(sizes, made, strict=True)):
        reach = (out - 1) * node.strides[i] + node.dilations[i] * (kernel[i] - 1) + 1
        left.append(size - (reach - node.pads[i] - node.pads[rank + i]))
    settings = {name: getattr(node, name) for name in ("strides", "pads", "dilations")}
    return g.conv_transpose(d, w, **settings, groups=groups, output_padding=tuple(left))


@gradient("conv")
def conv(g: Backward, node: Node, d: str) -> list[str | None]:
    """Of x, a transposed convolution; of w, products over all pixels, or of few channels a convolution."""
    x, w = str(node.operands[0]), str(node.operands[1])
    channels, *kernel = g.type(w).dims[1:]
    of_filter = _by_taps if node.groups == 1 and channels >= _CHANNELS else _of_filter
    found: list[str | None] = [_windows_to_image(g, node, d, w, node.groups, kernel), of_filter(g, node, x, d)]
    if len(node.operands) == 3:
        axes = (0, *range(2, g.type(d).rank))
        found.append(None if node.operands[2] is None else g.reduce_sum(d, axes=axes, keepdims=False))
    return found


def _by_taps(g: Backward, node: Node, x: str, d: str) -> str:
    """For each tap of the filter, a product of d with the pixels that the tap reads."""
    out, channels, *kernel = g.type(str(node.operands[1])).dims
    rank = len(kernel)
    last = (0, *range(2, 2 + rank), 1)  # channels behind pixels
    if any(node.pads):
        x = g.pad(x, low=(0, 0, *node.pads[:rank]), high=(0, 0, *node.pads[rank:]), value=0.0)
    x, d = g.permute(x, axes=last), g.permute(d, axes=last)
    batch, *made, _ = g.type(d).dims
    rows = g.reshape(d, shape=(batch * math.prod(made), out))
    taps = []
    for tap in np.ndindex(*kernel):
        starts = [int(at) * apart for at, apart in zip(tap, node.dilations, strict=True)]
        stops = [start + (n - 1) * step + 1 for start, n, step in zip(starts, made, node.strides, strict=True)]
        read = g.slice(x, starts=(0, *starts, 0), stops=(batch, *stops, channels), steps=(1, *node.strides, 1))
        pixels = g.reshape(read, shape=(batch * math.prod(made), channels))
        product = g.matmul(rows, pixels, transpose_a=True)
        taps.append(g.reshape(product, shape=(1, out, channels)))
    found = taps[0] if len(taps) == 1 else g.concat(*taps, axis=0)
    return g.reshape(g.permute(found, axes=(1, 2, 0)), shape=(out, channels, *kernel))


def _of_filter(g: Backward, node: Node, x: str, d: str) -> str:
    """A convolution of x, whose images are channels, with d as the filter."""
    batch, _, *sizes = g.type(x).dims
    out, each, *kernel = g.type(str(node.operands[1])).dims
    groups, rank = node.groups, len(kernel)
    spatial = tuple(range(3, 3 + rank))
    images = g.permute(g.reshape(x, shape=(batch, groups, each, *sizes)), axes=(2, 1, 0, *spatial))
    images = g.reshape(images, shape=(each, groups * batch, *sizes))
    swap = (1, 0, *range(2, 2 + rank))
    made = g.conv(
        images,
        g.permute(d, axes=swap),
        strides=node.dilations,
        dilations=node.strides,
        pads=node.pads,
        groups=groups,
    )
    return g.permute(cut(g, made, (0,) * (2 + rank), (each, out, *kernel)), axes=swap)


@gradient("max_pool")
def max_pool(g: Backward, node: Node, d: str) -> str:
    """d added where the largest of each window was."""
    x = str(node.operands[0])
    batch, channels, *sizes = g.type(x).dims
    windows = (batch, channels, math.prod(g.type(d).dims[2:]))
    places = g.reshape(g.max_pool_indices(x, **node.attributes), shape=windows)
    zeros = g.expand(g.constant(0.0), shape=(batch, channels, math.prod(sizes)))
    return g.like(g.scatter_elements(zeros, places, g.reshape(d, shape=windows), axis=2, reduction="add"), x)


@gradient("avg_pool")
def avg_pool(g: Backward, node: Node, d: str) -> str:
    """d over the number of elements of each window, added to all of them."""
    x = str(node.operands[0])
    channels, sizes = g.type(x).dims[1], g.type(x).dims[2:]
    dtype, rank = g.type(x).dtype.numpy, len(node.kernel)
    count = np.ones((1, 1, *(1,) * rank))
    for i, (size, out) in enumerate(zip(sizes, g.type(d).dims[2:], strict=True)):
        taps = np.arange(out)[:, None] * node.strides[i] + np.arange(node.kernel[i]) * node.dilations[i] - node.pads[i]
        inside = np.full(taps.shape, True) if node.count_include_pad else (taps >= 0) & (taps < size)
        count = count * inside.sum(1).reshape(-1, *(1,) * (rank - 1 - i))
    share = g.div(d, g.array(f"{node.output}.windows", count.astype(dtype)))
    ones = g.array(f"{node.output}.ones", np.ones((channels, 1, *node.kernel), dtype))
    return _windows_to_image(g, node, share, ones, channels, node.kernel)

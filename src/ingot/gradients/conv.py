"""Gradients of convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.gradients.registry import Backward, gradient
from ingot.ir.graph import Node


def _windows_to_image(g: Backward, node: Node, d: str, w: str, groups: int, kernel: Sequence[int]) -> str:
    """Add the gradients of windows over x to the positions that they read: a transposed convolution with a filter."""
    rank = len(kernel)
    sizes, out_dims = g.type(str(node.operands[0])).dims[2:], g.type(d).dims[2:]
    uncovered = []  # elements at the end of each axis that no window reaches
    for i, (size, out) in enumerate(zip(sizes, out_dims, strict=True)):
        reach = (out - 1) * node.strides[i] + node.dilations[i] * (kernel[i] - 1) + 1
        uncovered.append(size - (reach - node.pads[i] - node.pads[rank + i]))
    settings = {name: getattr(node, name) for name in ("strides", "pads", "dilations")}
    return g.conv_transpose(d, w, **settings, groups=groups, output_padding=tuple(uncovered))


@gradient("conv")
def conv(g: Backward, node: Node, d: str) -> list[str | None]:
    """The gradient of x is a transposed convolution; that of w has its own op."""
    x, w = str(node.operands[0]), str(node.operands[1])
    kernel = g.type(w).dims[2:]
    of_filter = g.conv_filter_gradient(x, d, kernel=kernel, **node.attributes)
    found: list[str | None] = [_windows_to_image(g, node, d, w, node.groups, kernel), of_filter]
    if len(node.operands) == 3:
        axes = (0, *range(2, g.type(d).rank))
        found.append(None if node.operands[2] is None else g.reduce_sum(d, axes=axes, keepdims=False))
    return found


@gradient("max_pool")
def max_pool(g: Backward, node: Node, d: str) -> str:
    """Add d to the largest element of each window."""
    return g.max_pool_gradient(node.operands[0], d, **node.attributes)


@gradient("avg_pool")
def avg_pool(g: Backward, node: Node, d: str) -> str:
    """Divide d by the number of elements of each window, and add it to all of them."""
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

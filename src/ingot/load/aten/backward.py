"""Rules for the backward ops of convolution and pooling; torch itself decomposes all other backward ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.errors import UnsupportedError
from ingot.gradients.registry import GRADIENTS, Backward
from ingot.load.aten.builder import AtenBuilder, Tensor, element_count
from ingot.load.aten.conv import Window, per_axis
from ingot.load.aten.registry import aten


@aten("convolution_backward.default")
def convolution_backward(
    b: AtenBuilder, d: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, stride: Window,
    padding: Window, dilation: Window, transposed: bool, output_padding: Window, groups: int, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Apply the gradient rule of the op."""
    if transposed:
        raise UnsupportedError("convolution_backward: of a transposed convolution, expected a plain one")
    spatial = b.rank(weight) - 2
    pads = per_axis(padding, spatial)
    strides, dilations = per_axis(stride, spatial), per_axis(dilation, spatial)
    if not all(b.graph.type(name).is_static for name in (d, x, weight)):
        raise UnsupportedError("convolution_backward: symbolic dims, expected known ones")
    y = b.add("conv", x, weight, strides=strides, pads=pads + pads, dilations=dilations, groups=groups)
    node, g = b.graph.producer(y), Backward(b.graph)
    assert node is not None
    g.at(y)
    found = GRADIENTS["conv"].row(g, node, d)
    assert found is not None
    of_x, of_weight = found
    bias = b.add("reduce_sum", d, axes=(0, *range(2, spatial + 2)), keepdims=False) if wanted[2] else None
    return (of_x if wanted[0] else None, of_weight if wanted[1] else None, bias)


@aten("max_pool2d_with_indices_backward.default")
def max_pool_backward(
    b: AtenBuilder, d: Tensor, x: Tensor, kernel: Window, stride: Window, padding: Window, dilation: Window,
    ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    """Add d to the positions that the forward op found."""
    *outer, height, width = b.shape(x)
    flat = (*outer, element_count(b.shape(d)[-2:]))
    zeros = b.add("expand", b.scalar(0.0, b.dtype(x)), shape=(*outer, height * width))
    computed = [b.reshape(each, flat) for each in (indices, d)]
    added = b.add("scatter_elements", zeros, *computed, axis=len(outer), reduction="add")
    return b.reshape(added, b.shape(x))


@aten("avg_pool2d_backward.default")
def average_pool_backward(
    b: AtenBuilder, d: Tensor, x: Tensor, kernel: Window, stride: Window, padding: Window, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Distribute d over the averaged elements, one axis at a time."""
    kernels, pads = per_axis(kernel, 2), per_axis(padding, 2)
    strides = per_axis(stride, 2) if stride else kernels
    shares = []
    for axis in (-2, -1):
        size, computed = (b.static(b.shape(each)[axis], "an image") for each in (x, d))
        share = np.zeros((computed, size))
        for i in range(computed):
            first = i * strides[axis] - pads[axis]
            last = min(first + kernels[axis], size + pads[axis])
            length = last - first if count_include_pad else min(last, size) - max(first, 0)
            share[i, max(first, 0) : last] = 1 if divisor_override else 1 / length
        shares.append(share)
    if divisor_override:
        shares[0] /= divisor_override
    return _shared(b, d, shares)


@aten("_adaptive_avg_pool2d_backward.default")
def adaptive_average_pool_backward(b: AtenBuilder, d: Tensor, x: Tensor) -> Tensor:
    shares = []
    for axis in (-2, -1):
        size, computed = (b.static(b.shape(each)[axis], "an image") for each in (x, d))
        share = np.zeros((computed, size))
        for i in range(computed):
            first, last = i * size // computed, -(-(i + 1) * size // computed)
            share[i, first:last] = 1 / (last - first)
        shares.append(share)
    return _shared(b, d, shares)


def _shared(b: AtenBuilder, d: Tensor, shares: Sequence[np.ndarray]) -> Tensor:
    """Multiply d [.., h, w] by matrices with the share of each result that belongs to each row, and to each column."""
    rows, columns = (b.constant(share.astype(b.dtype(d).numpy)) for share in shares)
    return b.add("matmul", b.permute(rows, (1, 0)), b.add("matmul", d, columns))

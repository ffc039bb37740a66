"""Rules for fractional max pooling, whose windows begin at random positions. Graham, 2014, arXiv:1412.6071."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingot.ir.dtype import i64
from ingot.load.aten.builder import AtenBuilder, Tensor
from ingot.load.aten.conv import per_axis
from ingot.load.aten.registry import aten


@aten("fractional_max_pool2d.default", "fractional_max_pool3d.default")
def fractional_max_pool(
    b: AtenBuilder, x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], samples: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window, and its index in its channel.

    samples [N, C, axes] of 0 .. 1: with two axes, torch orders them width, height.
    """
    shape = b.shape(x)
    axes = 2 if "2d" in b.target else 3
    sizes = [b.static(size, "a pooled axis") for size in shape[-axes:]]
    batch, channels = b.shape(samples)[:2]
    kernel, counts = per_axis(kernel_size, axes), per_axis(output_size, axes)
    position = b.scalar(0, i64)
    for axis, (size, window, count) in enumerate(zip(sizes, kernel, counts, strict=True)):
        column = axes - 1 - axis if axes == 2 else axis
        start = _starts(b, b.slice(samples, 2, column, column + 1), size, window, count)
        along = b.add("iota", length=window, start=0, step=1, dtype=i64)
        ones, own = [1] * axes, [count if i == axis else 1 for i in range(axes)]
        inner = [window if i == axis else 1 for i in range(axes)]
        index = b.add(
            "add", b.reshape(start, (batch, channels, *own, *ones)), b.reshape(along, (1, 1, *ones, *inner))
        )  # fmt: skip
        position = b.add("add", b.add("mul", position, b.scalar(size, i64)), index)
    whole, within, all_windows = math.prod(sizes), math.prod(kernel), math.prod(counts)
    position = b.reshape(
        b.expand(position, (batch, channels, *counts, *kernel)), (batch, channels, all_windows, within)
    )  # fmt: skip
    flat = b.reshape(x, (batch, channels, whole))
    found = b.add("gather_elements", flat, b.reshape(position, (batch, channels, all_windows * within)), axis=2)
    found = b.reshape(found, (batch, channels, all_windows, within))
    chosen = b.add("argmax", found, axis=3, keepdims=True)
    results = (b.add("gather_elements", each, chosen, axis=3) for each in (found, position))
    values, indices = (b.reshape(each, (*shape[:-axes], *counts)) for each in results)
    return values, indices


def _starts(b: AtenBuilder, sample: Tensor, size: int, window: int, count: int) -> Tensor:
    """Return the starts of the windows of an axis, i64 [N, C, count]: the last window ends with the axis."""
    dtype, (batch, channels, _) = b.dtype(sample), b.shape(sample)
    if count == 1:
        return b.expand(b.scalar(size - window, i64), (batch, channels, 1))
    position = b.cast(b.add("iota", length=count - 1, start=0, step=1, dtype=i64), dtype)
    share = b.add("div", b.scalar(size - window, dtype), b.scalar(count - 1, dtype))
    moved = b.cast(b.add("mul", b.add("add", position, sample), share), i64)
    first = b.add("sub", moved, b.cast(b.add("mul", sample, share), i64))
    last = b.expand(b.scalar(size - window, i64), (batch, channels, 1))
    return b.add("concat", first, last, axis=2)

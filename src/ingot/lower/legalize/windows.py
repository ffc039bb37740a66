"""Legalize convolution and pooling of dims and dtypes without a kernel by those with one."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.ir.dtype import f32, i64
from ingot.lower.legalize.table import legalizes
from ingot.ops.define import Expansion
from ingot.ops.reduce import lowest

Sizes = tuple[int, ...]


def _window_samples(
    g: Expansion, x: str, axis: int, kernel: int, step: int, pads: Sequence[int], dilation: int, value: Any
) -> str:
    """Gather the samples of windows along an axis: [.., n, ..] becomes [.., kernel, out, ..]."""
    if any(pads):
        low, high = (tuple(pad if i == axis else 0 for i in range(g.type(x).rank)) for pad in pads)
        x = g.pad(x, low=low, high=high, value=value)
    dims = g.type(x).dims
    out = (dims[axis] - dilation * (kernel - 1) - 1) // step + 1
    steps = tuple(step if i == axis else 1 for i in range(len(dims)))
    rows = []
    for first in range(0, kernel * dilation, dilation):
        starts = tuple(first if i == axis else 0 for i in range(len(dims)))
        stops = tuple(first + (out - 1) * step + 1 if i == axis else dim for i, dim in enumerate(dims))
        row = g.slice(x, starts=starts, stops=stops, steps=steps)
        rows.append(g.reshape(row, shape=(*dims[:axis], 1, out, *dims[axis + 1 :])))
    return rows[0] if kernel == 1 else g.concat(*rows, axis=axis)


def _unrolled(g: Expansion, x: str, count: int, kernel: Sizes, window: dict[str, Sizes], value: Any) -> str:
    """Unroll x [N, C, in..] into window samples of the `count` first spatial dims: [N, out.., C, kernel.., in..]."""
    rank, pads = len(window["strides"]), window["pads"]
    for i in range(count):
        sides = pads[i], pads[rank + i]
        x = _window_samples(g, x, 2 + 2 * i, kernel[i], window["strides"][i], sides, window["dilations"][i], value)
        others = [axis for axis in range(1 + i, g.type(x).rank) if axis != 3 + 2 * i]
        x = g.permute(x, axes=(*range(1 + i), 3 + 2 * i, *others))
    return x


def _last(window: dict[str, Sizes], count: int) -> dict[str, Sizes]:
    """Return the settings of the last `count` spatial dims."""
    rank, pads = len(window["strides"]), window["pads"]
    first = rank - count
    return {
        "strides": window["strides"][first:], "dilations": window["dilations"][first:],
        "pads": (*pads[first:rank], *pads[rank + first :]),
    }  # fmt: skip


def _first(window: dict[str, Sizes], count: int) -> dict[str, Sizes]:
    """Return the settings of the first `count` spatial dims."""
    rank, pads = len(window["strides"]), window["pads"]
    return {
        "strides": window["strides"][:count], "dilations": window["dilations"][:count],
        "pads": (*pads[:count], *pads[rank : rank + count]),
    }  # fmt: skip


@legalizes("conv")
def _conv(g: Expansion, x: str, w: str, b: str | None = None, *, groups: int, **window: Sizes) -> str | None:
    """Reduce a convolution to one with a kernel.

    For f32 there are kernels of up to two spatial dims: the window samples of further dims become channels. For other
    dtypes all window samples become channels of a product.
    """
    batch, channels, *_ = g.type(x).dims
    out_channels, depth, *kernel = g.type(w).dims
    rank, left = len(kernel), 2 if g.type(x).dtype is f32 else 0
    count = rank - left
    if count <= 0:
        return None
    x = _unrolled(g, x, count, tuple(kernel), window, 0)
    dims = g.type(x).dims
    out, inner = dims[1 : 1 + count], dims[2 + 2 * count :]
    images, samples = batch * math.prod(out), math.prod(kernel[:count])
    if left:
        x = g.reshape(x, shape=(images, channels * samples, *inner))
        w = g.reshape(w, shape=(out_channels, depth * samples, *kernel[count:]))
        y = g.conv(x, w, b, groups=groups, **_last(window, left))
    else:
        x = g.permute(g.reshape(x, shape=(images, groups, depth * samples)), axes=(1, 0, 2))
        w = g.reshape(w, shape=(groups, out_channels // groups, depth * samples))
        y = g.matmul(x, w, transpose_a=False, transpose_b=True, scale=1.0)
        y = g.reshape(g.permute(y, axes=(1, 0, 2)), shape=(images, out_channels))
        y = y if b is None else g.add(y, b)
    y = g.reshape(y, shape=(batch, *out, *g.type(y).dims[1:]))
    return g.permute(y, axes=(0, 1 + count, *range(1, 1 + count), *range(2 + count, 2 + rank)))


@legalizes("max_pool", "avg_pool")
def _pool(
    g: Expansion, x: str, *, kernel: Sizes, strides: Sizes, pads: Sizes, dilations: Sizes, **counting: bool
) -> str | None:
    """Pool in two dims; for more dims, pool the last two and then the others."""
    window = {"strides": strides, "pads": pads, "dilations": dilations}
    pool, rank, dims = getattr(g, g.node.op.name), len(kernel), g.type(x).dims
    if rank <= 2:
        return None
    batch, channels, outer = dims[0], dims[1], dims[2:-2]
    x = g.reshape(x, shape=(batch, channels * math.prod(outer), *dims[-2:]))
    x = pool(x, kernel=kernel[-2:], **_last(window, 2), **counting)
    inner = g.type(x).dims[2:]
    x = g.reshape(x, shape=(batch, channels, math.prod(outer), math.prod(inner)))
    x = g.reshape(g.permute(x, axes=(0, 1, 3, 2)), shape=(batch, channels * math.prod(inner), *outer))
    x = pool(x, kernel=kernel[:-2], **_first(window, rank - 2), **counting)
    outer = g.type(x).dims[2:]
    x = g.permute(g.reshape(x, shape=(batch, channels, math.prod(inner), math.prod(outer))), axes=(0, 1, 3, 2))
    return g.reshape(x, shape=(batch, channels, *outer, *inner))


@legalizes("max_pool_indices")
def _max_pool_indices(g: Expansion, x: str, *, kernel: Sizes, strides: Sizes, pads: Sizes, dilations: Sizes) -> str:
    """Return the index of the first window sample with the largest element; NaN counts as largest.

    The samples are compared one kernel position after another, so memory holds only one element of each window at a
    time.
    """
    dtype, (batch, channels, *sizes), rank = g.type(x).dtype, g.type(x).dims, len(kernel)
    low, high = (0, 0, *pads[:rank]), (0, 0, *pads[rank:])
    indices = np.arange(math.prod(sizes)).reshape(1, 1, *sizes)
    indices = np.pad(indices, list(zip(low, high, strict=True)), constant_values=-1)
    if any(pads):
        x = g.pad(x, low=low, high=high, value=lowest(dtype.numpy))
    samples = []
    for position in np.ndindex(*kernel):
        starts = [int(at) * dilation for at, dilation in zip(position, dilations, strict=True)]
        spans = zip(indices.shape[2:], kernel, dilations, strict=True)
        stops = [
            start + dim - dilation * (count - 1) for start, (dim, count, dilation) in zip(starts, spans, strict=True)
        ]
        read = g.slice(x, starts=(0, 0, *starts), stops=(batch, channels, *stops), steps=(1, 1, *strides))
        own = tuple(slice(*each) for each in zip(starts, stops, strides, strict=True))
        samples.append((read, indices[(slice(None), slice(None), *own)]))
    first = functools.reduce(lambda found, other: np.where(found < 0, other, found), (index for _, index in samples))
    best = samples[0][0]
    found = g.expand(g.constant(first, i64), shape=g.type(best).dims)
    for read, index in samples[1:]:
        is_more = g.greater(read, best)
        if dtype.kind == "f":
            is_more = g.logical_or(is_more, g.logical_and(g.isnan(read), g.equal(best, best)))
        found = g.where(is_more, g.constant(index, i64), found)
        best = g.where(is_more, read, best)
    return found

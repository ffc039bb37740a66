"""Gradients of filters and of max pooling: ops with their own kernels, which need no unfolded or cached windows."""

import math

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import f32
from ingot.ir.graph import TensorType
from ingot.ops.conv import spatial_dims
from ingot.ops.define import Ints, expect_kind, op, sample

_CHANNELS = 16  # channels that fill the columns of a matrix product


def _infer_filter_gradient(x, d, *, kernel, strides, pads, dilations, groups):
    name = "conv_filter_gradient"
    expect_kind(name, x, "f")
    computed = spatial_dims(name, x, kernel, strides, pads, dilations)
    if d.dtype is not x.dtype or d.rank != x.rank or (d.shape[0], *d.shape[2:]) != (x.shape[0], *computed):
        raise ShapeError(f"{name}: bad gradient, got {d}, expected the result of a filter {list(kernel)} over {x}")
    if groups < 1 or x.shape[1] % groups or d.shape[1] % groups:
        raise ShapeError(f"{name}: bad groups, got {groups}, expected a divisor of {x.shape[1]} and {d.shape[1]}")
    return TensorType(x.dtype, (d.shape[1], x.shape[1] // groups, *kernel))


def _expand_filter_gradient(g, x, d, *, kernel, strides, pads, dilations, groups):
    """Use matrix products over all pixels, or a convolution for few channels."""
    by_positions = groups == 1 and g.type(x).dims[1] >= _CHANNELS
    return (_by_positions if by_positions else _as_filter)(g, x, d, kernel, strides, pads, dilations, groups)


def _by_positions(g, x, d, kernel, strides, pads, dilations, groups):
    """Multiply, for each filter position, d with the pixels read at that position."""
    out, channels, rank = g.type(d).dims[1], g.type(x).dims[1], len(kernel)
    last = (0, *range(2, 2 + rank), 1)  # channels after pixels
    if any(pads):
        x = g.pad(x, low=(0, 0, *pads[:rank]), high=(0, 0, *pads[rank:]), value=0.0)
    x, d = g.permute(x, axes=last), g.permute(d, axes=last)
    batch, *computed, _ = g.type(d).dims
    rows = g.reshape(d, shape=(batch * math.prod(computed), out))
    taps = []
    for tap in np.ndindex(*kernel):
        starts = [int(at) * spacing for at, spacing in zip(tap, dilations, strict=True)]
        stops = [start + (n - 1) * step + 1 for start, n, step in zip(starts, computed, strides, strict=True)]
        read = g.slice(x, starts=(0, *starts, 0), stops=(batch, *stops, channels), steps=(1, *strides, 1))
        pixels = g.reshape(read, shape=(batch * math.prod(computed), channels))
        product = g.matmul(rows, pixels, transpose_a=True)
        taps.append(g.reshape(product, shape=(1, out, channels)))
    found = taps[0] if len(taps) == 1 else g.concat(*taps, axis=0)
    return g.reshape(g.permute(found, axes=(1, 2, 0)), shape=(out, channels, *kernel))


def _as_filter(g, x, d, kernel, strides, pads, dilations, groups):
    """Convolve x, with images as channels, with d as the filter."""
    batch, channels, *sizes = g.type(x).dims
    out, each, rank = g.type(d).dims[1], channels // groups, len(kernel)
    spatial = tuple(range(3, 3 + rank))
    images = g.permute(g.reshape(x, shape=(batch, groups, each, *sizes)), axes=(2, 1, 0, *spatial))
    images = g.reshape(images, shape=(each, groups * batch, *sizes))
    swap = (1, 0, *range(2, 2 + rank))
    computed = g.conv(
        images, g.permute(d, axes=swap), strides=dilations, dilations=strides, pads=pads, groups=groups
    )  # fmt: skip
    computed = g.slice(computed, starts=(0,) * (2 + rank), stops=(each, out, *kernel), steps=(1,) * (2 + rank))
    return g.permute(computed, axes=swap)


def _windowed(rank, **attributes):
    return {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank} | attributes


@op(
    infer=_infer_filter_gradient,
    expand=_expand_filter_gradient,
    tolerance={f32: 1e-5},
    domain=(-1.0, 1.0),
    samples=[
        sample("x[2,3,7,8] d[2,4,5,6]", kernel=(3, 3), **_windowed(2, groups=1)),
        sample("x[3,3,19,17] d[3,5,10,9]", kernel=(7, 7), **_windowed(2, groups=1, strides=(2, 2), pads=(3, 3, 3, 3))),
        sample("x[2,40,6,5] d[2,17,6,5]", kernel=(3, 3), **_windowed(2, groups=1, pads=(1, 1, 1, 1))),
        sample("x[2,33,9,8] d[2,14,5,4]", kernel=(1, 1), **_windowed(2, groups=1, strides=(2, 2))),
        sample(
            "x[2,17,7,6] d[2,5,4,4]",
            kernel=(3, 2),
            **_windowed(2, groups=1, strides=(2, 1), pads=(1, 0, 2, 0), dilations=(1, 2)),
        ),
        sample("x[1,4,9,7] d[1,6,5,3]", kernel=(3, 2), **_windowed(2, groups=2, strides=(2, 3), pads=(1, 0, 2, 1))),
        sample("x[2,6,9] d[2,6,9]", kernel=(3,), **_windowed(1, groups=6, pads=(1, 1))),
        sample("x[2,3,11] d[2,5,6]", kernel=(4,), **_windowed(1, groups=1, strides=(2,), pads=(1, 2))),
        sample("x[1,2,4,3,5] d[1,3,3,2,4]", kernel=(2, 2, 2), **_windowed(3, groups=1)),
        sample("x[0,3,5,5] d[0,2,3,3]", kernel=(3, 3), **_windowed(2, groups=1)),
    ],
)
def conv_filter_gradient(x, d, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, groups: int):
    """The gradient of the filter [O, C/groups, kernel...] of conv, from x [N, C, in...] and d, the gradient of its
    result.
    """
    (batch, channels, *_), out, rank = x.shape, d.shape[1], len(kernel)
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    count = math.prod(d.shape[2:])
    rows = d.reshape(batch, groups, out // groups, count)
    found = np.zeros((groups, out // groups, channels // groups, *kernel), x.dtype)
    for tap in np.ndindex(*kernel):
        positions = zip(tap, dilations, d.shape[2:], strides, strict=True)
        reached = [slice(t * spacing, t * spacing + (n - 1) * step + 1, step) for t, spacing, n, step in positions]
        pixels = x[(slice(None), slice(None), *reached)].reshape(batch, groups, channels // groups, count)
        found[(..., *tap)] = np.matmul(rows, np.swapaxes(pixels, -1, -2)).sum(0)
    return found.reshape(out, channels // groups, *kernel)


def _infer_pool_gradient(x, d, *, kernel, strides, pads, dilations):
    name = "max_pool_gradient"
    expect_kind(name, x, "f")
    computed = TensorType(x.dtype, (*x.shape[:2], *spatial_dims(name, x, kernel, strides, pads, dilations)))
    if d != computed:
        raise ShapeError(f"{name}: bad gradient, got {d}, expected {computed}")
    return x


def _expand_pool_gradient(g, x, d, **window):
    batch, channels, *sizes = g.type(x).dims
    windows = (batch, channels, math.prod(g.type(d).dims[2:]))
    positions = g.reshape(g.max_pool_indices(x, **window), shape=windows)
    zeros = g.expand(g.constant(0.0, g.type(x).dtype), shape=(batch, channels, math.prod(sizes)))
    found = g.scatter_elements(zeros, positions, g.reshape(d, shape=windows), axis=2, reduction="add")
    return g.reshape(found, shape=(batch, channels, *sizes))


@op(
    infer=_infer_pool_gradient,
    expand=_expand_pool_gradient,
    samples=[
        sample("x[2,3,7,8] d[2,3,3,4]", kernel=(2, 2), **_windowed(2, strides=(2, 2))),
        sample("x[2,19,8,7] d[2,19,4,4]", kernel=(3, 3), **_windowed(2, strides=(2, 2), pads=(1, 1, 1, 1))),
        sample("x[1,2,9,9] d[1,2,7,5]", kernel=(2, 3), **_windowed(2, dilations=(2, 2))),
        sample("x[2,3,11] d[2,3,6]", kernel=(3,), **_windowed(1, strides=(2,), pads=(1, 2))),
        sample("x[1,2,3,4,3] d[1,2,2,3,2]", kernel=(2, 2, 2), **_windowed(3)),
        sample("x[0,2,3,3] d[0,2,2,2]", kernel=(2, 2), **_windowed(2)),
    ],
)
def max_pool_gradient(x, d, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints):
    """The gradient of x of max_pool: each d is added to the largest element of its window, the first among equal
    ones.

    With NaN, it is the first NaN.
    """
    rank = len(kernel)
    sides = list(zip(pads[:rank], pads[rank:], strict=True))
    padded = np.pad(x, [(0, 0), (0, 0), *sides])
    inside = np.pad(np.ones(x.shape[2:], bool), sides)
    total, all_images = np.zeros_like(padded), (slice(None), slice(None))
    for output_index in np.ndindex(*d.shape[2:]):
        spans = zip(output_index, strides, kernel, dilations, strict=True)
        window = tuple(slice(i * step, i * step + (n - 1) * spacing + 1, spacing) for i, step, n, spacing in spans)
        values = padded[(*all_images, *window)].reshape(*x.shape[:2], math.prod(kernel))
        real = inside[window].reshape(-1)
        largest = values.max(-1, keepdims=True, initial=-np.inf, where=real)
        best = np.argmax(((values == largest) | (values != values)) & real, -1)
        own = np.arange(len(real)) == best[..., None]
        share = np.where(own, d[(*all_images, *output_index)][..., None], 0)
        total[(*all_images, *window)] += share.reshape(*x.shape[:2], *kernel)
    return total[(*all_images, *(slice(low, low + n) for low, n in zip(pads[:rank], x.shape[2:], strict=True)))]

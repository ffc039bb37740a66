"""Expansions of ops that sample images between their elements: sums of gathered and weighted elements."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ingot.ir.dtype import i64
from ingot.ops.define import Expansion

_FAR = 1e9  # elements from an image; larger distances, and NaN, are clipped to this
_NO_IMAGE = 2**62  # an image index out of range for every batch


@dataclass(frozen=True, slots=True)
class _Tap:
    """A sample of an axis: the index, its weight, and whether it counts, None for always."""

    position: str
    weight: str | None
    counts: str | None


def _reflected(g: Expansion, c: str, size: int, align_corners: bool) -> str:
    """Mirror coordinates at the centers of the outer elements, or at their outer edges."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return g.mul(c, 0.0)
    c = g.abs(g.sub(c, low))
    inside, periods = g.mod(c, span), g.floor(g.div(c, span))
    is_even = g.equal(g.mod(periods, 2.0), 0.0)
    return g.add(g.where(is_even, inside, g.sub(g.constant(span, g.type(c).dtype), inside)), low)


def _taps(g: Expansion, c: str, size: int, mode: str, padding: str, align_corners: bool) -> list[_Tap]:
    """Return the elements that an axis is sampled at for coordinates c."""
    last, dtype = float(size - 1), g.type(c).dtype
    c = g.where(g.isnan(c), g.constant(-_FAR, dtype), c)
    c = g.clip(c, minimum=-_FAR, maximum=_FAR)
    if mode != "cubic" and padding != "zeros":
        c = _reflected(g, c, size, align_corners) if padding == "reflection" else c
        c = g.clip(c, minimum=0.0, maximum=last)
    first = g.round(c) if mode == "nearest" else g.floor(c)
    part = g.sub(c, first)
    weighted: list[tuple[str, str | None]]
    match mode:
        case "nearest":
            weighted = [(first, None)]
        case "linear":
            weighted = [(first, g.sub(g.constant(1, dtype), part)), (g.add(first, 1.0), part)]
        case _:
            weighted = [(g.add(first, float(i)), _keys(g, g.abs(g.sub(part, float(i))))) for i in range(-1, 3)]
    taps = []
    for position, weight in weighted:
        if padding == "reflection" and mode == "cubic":
            position = g.round(_reflected(g, position, size, align_corners))
        counts = None
        if padding == "zeros":
            counts = g.logical_and(g.greater_equal(position, 0.0), g.less_equal(position, last))
        taps.append(_Tap(g.cast(g.clip(position, minimum=0.0, maximum=last), dtype=i64), weight, counts))
    return taps


def _keys(g: Expansion, x: str, a: float = -0.75) -> str:
    """Return cubic weights at distances x. Keys, "Cubic convolution interpolation for digital image processing",
    1981.
    """
    near = g.add(g.mul(g.mul(g.sub(g.mul(x, a + 2), a + 3), x), x), 1.0)
    far = g.sub(g.mul(g.add(g.mul(g.sub(g.mul(x, a), 5 * a), x), 8 * a), x), 4 * a)
    return g.where(g.less_equal(x, 1.0), near, far)


def _read(g: Expansion, flat: str, axes: list[list[_Tap]], sizes: tuple[int, ...]) -> str:
    """Sum elements of flat [N, C, elements], weighted, over the samples [N, points] of all axes: [N, C, points]."""
    batch, channels, _ = g.type(flat).dims
    points = g.type(axes[0][0].position).dims[1]

    def over_channels(value: str) -> str:
        return g.reshape(value, shape=(batch, 1, points))

    total = None
    for taps in itertools.product(*axes):
        index = taps[0].position
        for tap, size in zip(taps[1:], sizes[1:], strict=True):
            index = g.add(g.mul(index, size), tap.position)
        index = g.expand(over_channels(index), shape=(batch, channels, points))
        term = g.gather_elements(flat, index, axis=2)
        for weight in (tap.weight for tap in taps if tap.weight is not None):
            term = g.mul(term, over_channels(weight))
        for counts in (tap.counts for tap in taps if tap.counts is not None):
            term = g.where(over_channels(counts), term, 0.0)
        total = term if total is None else g.add(total, term)
    assert total is not None
    return total


def expand_grid_sample(g: Expansion, x: str, grid: str, *, mode: str, padding: str, align_corners: bool) -> str:
    """Expand grid_sample."""
    batch, channels, *sizes = g.type(x).dims
    rank, out_dims = len(sizes), g.type(grid).dims[1:-1]
    points = g.reshape(grid, shape=(batch, math.prod(out_dims), rank))
    axes = []
    for axis, size in enumerate(sizes):
        column = rank - 1 - axis
        position = g.slice(
            points, starts=(0, 0, column), stops=(batch, math.prod(out_dims), column + 1), steps=(1, 1, 1)
        )  # fmt: skip
        position = g.add(g.reshape(position, shape=(batch, math.prod(out_dims))), 1.0)
        if align_corners:
            position = g.mul(g.div(position, 2.0), float(size - 1))
        else:
            position = g.div(g.sub(g.mul(position, float(size)), 1.0), 2.0)
        axes.append(_taps(g, position, size, mode, padding, align_corners))
    flat = g.reshape(x, shape=(batch, channels, math.prod(sizes)))
    return g.reshape(_read(g, flat, axes, tuple(sizes)), shape=(batch, channels, *out_dims))


def expand_deform_conv(
    g: Expansion, x: str, w: str, offset: str, b: str | None = None, mask: str | None = None, *,
    strides: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...], groups: int, offset_groups: int,
) -> str:  # fmt: skip
    """Expand deform_conv: multiply the filter by the samples of all its positions."""
    (batch, channels, *sizes), kernel, out = g.type(x).dims, g.type(w).dims[2:], g.type(offset).dims[2:]
    rank, taps, num_points = len(sizes), math.prod(kernel), math.prod(out)
    images = batch * offset_groups
    moved = g.reshape(offset, shape=(images, taps, rank, num_points))
    axes = []
    for axis, size in enumerate(sizes):
        start = np.arange(out[axis]) * strides[axis] - pads[axis]
        tap = np.indices(kernel)[axis].reshape(-1, *[1] * rank) * dilations[axis]
        fixed = np.broadcast_to(tap + start.reshape(-1, *[1] * (rank - 1 - axis)), (taps, *out))
        own = g.slice(
            moved, starts=(0, 0, axis, 0), stops=(images, taps, axis + 1, num_points), steps=(1, 1, 1, 1)
        )  # fmt: skip
        point = g.add(
            g.reshape(own, shape=(images, taps * num_points)), g.constant(fixed.reshape(-1), g.type(x).dtype)
        )  # fmt: skip
        axes.append(_taps(g, point, size, "linear", "zeros", True))
    flat = g.reshape(x, shape=(images, channels // offset_groups, math.prod(sizes)))
    read = _read(g, flat, axes, tuple(sizes))
    if mask is not None:
        read = g.mul(read, g.reshape(mask, shape=(images, 1, taps * num_points)))
    columns = g.reshape(read, shape=(batch, groups, channels // groups * taps, num_points))
    out_channels = g.type(w).dims[0]
    rows = g.reshape(w, shape=(groups, out_channels // groups, channels // groups * taps))
    y = g.matmul(rows, columns, transpose_a=False, transpose_b=False, scale=1.0)
    y = g.reshape(y, shape=(batch, out_channels, *out))
    return y if b is None else g.add(y, g.reshape(b, shape=(out_channels, *[1] * rank)))


def expand_roi_align(
    g: Expansion, x: str, rois: str, batch: str, *, height: int, width: int, ratio: int, scale: float, mode: str,
    half_pixel: bool,
) -> str | None:  # fmt: skip
    """Expand roi_align; None if the number of points of a bin is unknown. A region with non-finite coordinates gets an
    invalid image index, an error of the run.
    """
    if ratio == 0:
        return None
    sizes = g.type(x).dims[2:]
    scaled = g.sub(g.mul(rois, float(scale)), 0.5 if half_pixel else 0.0)
    nothing = g.reduce_sum(g.mul(rois, 0.0), axes=(1,), keepdims=False)  # NaN for regions that are not finite
    batch = g.checked_index(batch, limit=g.type(x).dims[0], what="batch")
    images = g.gather(x, g.where(g.equal(nothing, 0.0), batch, g.constant(_NO_IMAGE, i64)), axis=0)
    axes = [
        _points(g, _column(g, scaled, 1 - i), _column(g, scaled, 3 - i), bins, ratio, size, half_pixel)
        for i, (bins, size) in enumerate(zip((height, width), sizes, strict=True))
    ]
    if mode == "max":
        return _bin_maxima(g, images, axes)
    tables = [_bin_means(g, *points, size) for points, size in zip(axes, sizes, strict=True)]
    return _bin_products(g, images, tables)


def _bin_products(g: Expansion, images: str, tables: list[str]) -> str:
    """Compute means of points as two matrix products: with the weight of each image row in each bin of a region, and of
    each column.
    """
    regions, channels, *sizes = g.type(images).dims
    height, width = (g.type(table).dims[1] for table in tables)
    rows, columns = (
        g.reshape(table, shape=(regions, 1, bins, size))
        for table, bins, size in zip(tables, (height, width), sizes, strict=True)
    )
    plain = {"transpose_a": False, "scale": 1.0}
    wide = g.matmul(images, g.expand(columns, shape=(regions, channels, width, sizes[1])), transpose_b=True, **plain)
    return g.matmul(g.expand(rows, shape=(regions, channels, height, sizes[0])), wide, transpose_b=False, **plain)


def _column(g: Expansion, table: str, index: int) -> str:
    """Return one column of a table: [rows, 1]."""
    rows = g.type(table).dims[0]
    return g.slice(table, starts=(0, index), stops=(rows, index + 1), steps=(1, 1))


def _bin_maxima(g: Expansion, images: str, axes: list[tuple[str, str]]) -> str:
    """Return the largest weighted element of the points of each bin, over each of the four neighbors."""
    regions, channels, *sizes = g.type(images).dims
    dtype, best = g.type(images).dtype, None
    flat = g.reshape(images, shape=(regions, channels, math.prod(sizes)))
    spread = [g.type(position).dims[1:] for position, _ in axes]
    count = math.prod(dim for dims in spread for dim in dims)

    def taps(position: str, is_near: str, size: int, shape: tuple[int, ...]) -> list[tuple[str, str]]:
        """Return the index and the weight of the two elements around each point."""
        first = g.clip(g.floor(position), maximum=float(max(size - 2, 0)))
        high, counts = g.sub(position, first), g.cast(is_near, dtype=dtype)
        weights = g.sub(g.constant(1, dtype), high), high
        indices = first, g.clip(g.add(first, 1.0), maximum=float(size - 1))
        return [
            (g.reshape(g.cast(i, dtype=i64), shape=shape), g.reshape(g.mul(w, counts), shape=shape))
            for i, w in zip(indices, weights, strict=True)
        ]

    inner_ones = (1,) * len(spread[1])
    rows = taps(*axes[0], sizes[0], (regions, 1, *spread[0], *inner_ones))
    columns = taps(*axes[1], sizes[1], (regions, 1, *(1,) * len(spread[0]), *spread[1]))
    for (row, down), (column, across) in itertools.product(rows, columns):
        index = g.reshape(g.add(g.mul(row, sizes[1]), column), shape=(regions, 1, count))
        read = g.gather_elements(flat, g.expand(index, shape=(regions, channels, count)), axis=2)
        read = g.mul(g.mul(g.reshape(read, shape=(regions, channels, *spread[0], *spread[1])), down), across)
        read = g.reduce_max(read, axes=(3, 5), keepdims=False)
        best = read if best is None else g.maximum(best, read)
    assert best is not None
    return best


def _points(
    g: Expansion, start: str, stop: str, bins: int, points: int, size: int, half_pixel: bool
) -> tuple[str, str]:  # fmt: skip
    """Return the coordinates of the points of bins along an axis, and whether they count: both [regions, bins,
    points].
    """
    regions, dtype = g.type(start).dims[0], g.type(start).dtype
    length = g.sub(stop, start)
    step = g.div(length if half_pixel else g.maximum(length, 1.0), float(bins))
    parts = (np.arange(bins)[:, None] + (np.arange(points) + 0.5) / points).reshape(1, bins * points)
    position = g.add(start, g.mul(step, g.constant(parts, dtype)))
    is_near = g.logical_and(g.greater_equal(position, -1.0), g.less_equal(position, float(size)))
    position = g.clip(position, minimum=0.0, maximum=float(size - 1))
    shape = (regions, bins, points)
    return g.reshape(position, shape=shape), g.reshape(is_near, shape=shape)


def _bin_means(g: Expansion, position: str, is_near: str, size: int) -> str:
    """Return the weight of each of `size` elements in the mean of the points of each bin: [regions, bins, size]."""
    (regions, bins, points), dtype = g.type(position).dims, g.type(position).dtype
    position, is_near = (g.reshape(each, shape=(regions, bins * points, 1)) for each in (position, is_near))
    distance = g.abs(g.sub(position, g.constant(np.arange(size), dtype)))
    weight = g.mul(g.relu(g.sub(1.0, distance)), g.cast(is_near, dtype=dtype))
    by_point = g.reshape(weight, shape=(regions, bins, points, size))
    return g.reduce_mean(by_point, axes=(2,), keepdims=False)

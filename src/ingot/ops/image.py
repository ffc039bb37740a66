"""Ops that sample images, signals or volumes at positions between their elements."""

import itertools
import math
from typing import Literal

import numpy as np

from ingot.errors import InputError, LimitError, ShapeError
from ingot.ir.dtype import f32, i64
from ingot.ir.graph import Index, TensorType
from ingot.ops.conv import spatial_dims
from ingot.ops.define import Ints, expect_kind, op, sample, unify

MAX_ROI_POINTS = 2**22  # of one region along an axis; 16 times as many in total where each counts


def _infer_resample(x, indices, weights, *, axis):
    if not 0 <= axis < x.rank:
        raise ShapeError(f"resample: axis out of range, got {axis} for {x}, expected 0..{x.rank - 1}")
    expect_kind("resample", x, "f")
    if indices.rank != 2 or indices.dtype is not i64 or weights != TensorType(x.dtype, indices.shape):
        got = f"{indices} and {weights}"
        raise ShapeError(f"resample: bad table, got {got}, expected i64 of rank 2 and as many {x.dtype}")
    return TensorType(x.dtype, (*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :]))


def _expand_resample(g, x, indices, weights, *, axis):
    """Gather and accumulate column by column of the table, so that sums of few terms are one pass over the result."""
    out, taps = g.type(indices).shape
    behind = (1,) * (g.type(x).rank - axis - 1)
    indices = g.checked_index(indices, limit=g.type(x).shape[axis], what="indices")
    total = None
    for tap in range(taps):
        part = {"starts": (0, tap), "stops": (out, tap + 1), "steps": (1, 1)}
        read = g.gather(x, g.reshape(g.slice(indices, **part), shape=(out,)), axis=axis)
        term = g.mul(read, g.reshape(g.slice(weights, **part), shape=(out, *behind)))
        total = term if total is None else g.add(total, term)
    return total


@op(
    infer=_infer_resample,
    expand=_expand_resample,
    addresses={"indices": Index(lambda x, *_, axis: range(x.shape[axis]))},
    samples=[
        sample("x[2,7,3] i:i64<7[5,2] w[5,2]", axis=1),
        sample("x[2,3,9] i:i64<9[4,4] w[4,4]", axis=2),
        sample("x[5,4] i:i64<5[8,1] w[8,1]", axis=0),
        sample("x[1,1] i:i64<1[3,6] w[3,6]", axis=1),
        sample("x[0,4] i:i64<4[3,2] w[3,2]", axis=1),
    ],
)
def resample(x, indices, weights, *, axis: int):
    """Weighted sums of elements along an axis: result i is the sum over j of weights[i, j] * x at indices[i, j].

    indices i64 and weights [out, taps], with at least one tap; an index outside 0..dim-1 is an error. Terms are added
    in the order of the table.
    """
    shape = (-1, *[1] * (x.ndim - axis - 1))
    columns = zip(indices.T, weights.T, strict=True)
    terms = (np.take(x, read, axis) * weight.reshape(shape) for read, weight in columns)
    total = next(terms)
    for term in terms:
        total = total + term
    return total


def _infer_grid_sample(x, grid, *, mode, padding, align_corners):
    expect_kind("grid_sample", x, "f")
    rank = x.rank - 2
    if rank < 1 or grid.rank != x.rank or grid.dtype is not x.dtype or grid.shape[-1] != rank:
        raise ShapeError(
            f"grid_sample: bad grid, got {grid} for {x}, expected {x.dtype} of rank {x.rank} and {rank} last"
        )
    if any(dim == 0 for dim in x.shape[2:]):
        raise ShapeError(f"grid_sample: an empty image, got {x}")
    batch = unify(f"grid_sample of {x} and {grid}", x.shape[0], grid.shape[0])
    return TensorType(x.dtype, (batch, x.shape[1], *grid.shape[1:-1]))


def _reflected(c, size, align_corners):
    """Mirror coordinates at the centers of the outer elements, or at their outer edges."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return np.zeros_like(c)
    c = np.abs(c - low)
    inside, periods = np.fmod(c, span), np.floor(c / span)
    return np.where(periods % 2 == 0, inside, span - inside) + low


def _grid_taps(c, size, mode, padding, align_corners):
    """Return index, weight and validity of each element that an axis is sampled at."""
    last = size - 1
    c = np.clip(np.where(np.isnan(c), -1e9, c), -1e9, 1e9)
    if mode != "cubic" and padding != "zeros":
        c = np.clip(_reflected(c, size, align_corners) if padding == "reflection" else c, 0, last)
    first = np.rint(c) if mode == "nearest" else np.floor(c)
    part = c - first
    match mode:
        case "nearest":
            taps = [(first, np.ones_like(c))]
        case "linear":
            taps = [(first, 1 - part), (first + 1, part)]
        case _:
            taps = [(first + i, _keys(part - i)) for i in range(-1, 3)]
    result = []
    for position, weight in taps:
        if padding == "reflection" and mode == "cubic":
            position = np.rint(_reflected(position, size, align_corners))
        counts = (position >= 0) & (position <= last) if padding == "zeros" else np.ones(position.shape, bool)
        result.append((np.clip(position, 0, last).astype(np.int64), weight, counts))
    return result


def _keys(x, a=-0.75):
    x = np.abs(x)
    return np.where(x <= 1, ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a)


def _read(flat, axes, sizes):
    """Sum elements of flat [N, C, elements], weighted, over the window samples of all axes: [N, C, points]."""
    batch, points = axes[0][0][0].shape
    total = np.zeros((*flat.shape[:2], points), flat.dtype)
    for taps in itertools.product(*axes):
        index = np.zeros((batch, points), np.int64)
        weight, counts = np.ones((batch, points), flat.dtype), np.ones((batch, points), bool)
        for (position, part, inside), size in zip(taps, sizes, strict=True):
            index, weight, counts = index * size + position, weight * part, counts & inside
        read = np.take_along_axis(flat, index[:, None], 2)
        total += np.where(counts[:, None], read * weight[:, None], 0)
    return total


@op(
    infer=_infer_grid_sample,
    tolerance={f32: 2e-5},
    samples=[
        sample("x[2,3,5,4] g>-1.3<1.3[2,6,7,2]", mode="linear", padding="zeros", align_corners=False),
        sample("x[2,3,5,4] g>-1.9<1.9[2,6,7,2]", mode="linear", padding="reflection", align_corners=True),
        sample("x[1,1,5,4] g>-3.3<3.3[1,6,7,2]", mode="nearest", padding="border", align_corners=False),
        sample("x[1,1,5,4] g>-3.3<3.3[1,6,7,2]", mode="nearest", padding="zeros", align_corners=True),
        sample("x[2,1,5,4] g>-1.3<1.3[2,6,7,2]", mode="cubic", padding="zeros", align_corners=False),
        sample("x[2,1,5,4] g>-1.9<1.9[2,6,7,2]", mode="cubic", padding="reflection", align_corners=False),
        sample("x[2,1,5,4] g>-1.9<1.9[2,6,7,2]", mode="cubic", padding="border", align_corners=True),
        sample("x[1,2,4,5,6] g>-1.3<1.3[1,3,2,7,3]", mode="linear", padding="border", align_corners=False),
        sample("x[1,2,4,5,6] g>-3.3<3.3[1,3,2,7,3]", mode="nearest", padding="reflection", align_corners=False),
    ],
)
def grid_sample(
    x, grid, *,
    mode: Literal["nearest", "linear", "cubic"], padding: Literal["zeros", "border", "reflection"], align_corners: bool,
):  # fmt: skip
    """x [N, C, in...] sampled between its elements at the points of grid [N, out..., dims]: [N, C, out...].

    The coordinates of a point begin with the last dim; -1 and 1 are the outer edges of x, or the centers of its outer
    elements with align_corners; NaN is outside. `padding` defines the values outside. Cubic weights have a = -0.75.
    Jaderberg et al., "Spatial transformer networks", 2015.
    """
    sizes = x.shape[2:]
    wide = np.promote_types(np.float32, x.dtype) if x.dtype.itemsize > 2 else np.dtype(np.float32)
    points = grid.reshape(grid.shape[0], math.prod(grid.shape[1:-1]), len(sizes)).astype(wide)
    axes = []
    for axis, size in enumerate(sizes):
        position = points[:, :, len(sizes) - 1 - axis]
        position = (position + 1) / 2 * (size - 1) if align_corners else ((position + 1) * size - 1) / 2
        axes.append(_grid_taps(position, size, mode, padding, align_corners))
    total = _read(x.reshape(*x.shape[:2], math.prod(sizes)).astype(wide), axes, sizes)
    return total.reshape(*x.shape[:2], *grid.shape[1:-1]).astype(x.dtype)


def _infer_deform_conv(x, w, offset, b=None, mask=None, *, strides, pads, dilations, groups, offset_groups):
    rank, where = x.rank - 2, "deform_conv"
    expect_kind(where, x, "f")
    others = [each for each in (w, offset, b, mask) if each is not None]
    if rank < 1 or any(each.dtype is not x.dtype for each in others) or not w.is_static:
        raise ShapeError(f"{where}: bad operands, got {x}, {w} and {offset}, expected one dtype and a known filter")
    if w.rank != x.rank or offset.rank != x.rank or groups < 1 or w.shape[0] % groups or offset_groups < 1:
        raise ShapeError(f"{where}: bad groups or ranks, got {groups} and {offset_groups} for {x}, {w} and {offset}")
    if any(dim == 0 for dim in x.shape[2:]):
        raise ShapeError(f"{where}: an empty image, got {x}, expected an element or more along each axis")
    taps = math.prod(w.shape[2:])
    unify(f"{where}: channels of {x} and {w}", x.shape[1], w.shape[1] * groups)
    unify(f"{where}: offsets of {offset}", offset.shape[1], offset_groups * taps * rank)
    if w.shape[1] * groups % offset_groups or (b is not None and b.shape != (w.shape[0],)):
        raise ShapeError(f"{where}: bad groups or bias, got {offset_groups} and {b} for {x} and {w}")
    out = spatial_dims(where, x, w.shape[2:], strides, pads, dilations)
    batch = unify(f"{where}: batch", x.shape[0], offset.shape[0])
    for given, wanted in zip(offset.shape[2:], out, strict=True):
        unify(f"{where}: positions of {offset} and {list(out)}", given, wanted)
    if mask is not None:
        shape = (batch, offset_groups * taps, *out)
        if mask.rank != x.rank:
            raise ShapeError(f"{where}: bad mask, got {mask}, expected {list(shape)}")
        for given, wanted in zip(mask.shape, shape, strict=True):
            unify(f"{where}: mask {mask}", given, wanted)
    return TensorType(x.dtype, (batch, w.shape[0], *out))


_DEFORMED = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1, "offset_groups": 1}


@op(
    infer=_infer_deform_conv,
    tolerance={f32: 2e-5},
    domain=(-1.0, 1.0),
    samples=[
        sample("x[2,3,5,6] w[4,3,2,2] o[2,8,4,5]", **_DEFORMED),
        sample("x[1,4,5,6] w[6,2,3,2] o[1,24,5,3] b[6] m[1,12,5,3]",
               **_DEFORMED | {"strides": (1, 2), "pads": (1, 0, 1, 1), "groups": 2, "offset_groups": 2}),
        sample("x[1,1,7,7] w[1,1,3,3] o>-4<4[1,18,3,3] b[1]", **_DEFORMED | {"dilations": (2, 2)}),
    ],
)  # fmt: skip
def deform_conv(
    x, w, offset, b=None, mask=None, *, strides: Ints, pads: Ints, dilations: Ints, groups: int, offset_groups: int
):  # fmt: skip
    """`conv` whose filter samples x at positions shifted by offsets, between elements, with zeros outside.

    offset [N, offset_groups * taps * dims, out...] shifts every filter position of each output, in units of elements;
    mask [N, offset_groups * taps, out...] multiplies the samples; the channels of x are divided into offset_groups. Dai
    et al., "Deformable convolutional networks", 2017; Zhu et al., 2019.
    """
    rank, (batch, channels, *sizes), kernel, out = x.ndim - 2, x.shape, w.shape[2:], offset.shape[2:]
    wide = np.promote_types(np.float32, x.dtype) if x.dtype.itemsize > 2 else np.dtype(np.float32)
    taps, num_outputs = math.prod(kernel), math.prod(out)
    moved = offset.reshape(batch * offset_groups, taps, rank, *out).astype(wide)
    axes = []
    for axis, size in enumerate(sizes):
        start = np.arange(out[axis]) * strides[axis] - pads[axis]
        tap = np.indices(kernel)[axis].ravel() * dilations[axis]
        where = tap.reshape(-1, *[1] * rank) + start.reshape(-1, *[1] * (rank - 1 - axis))
        point = (where + moved[:, :, axis]).reshape(batch * offset_groups, taps * num_outputs)
        axes.append(_grid_taps(point, size, "linear", "zeros", True))
    flat = x.reshape(batch * offset_groups, channels // offset_groups, math.prod(sizes)).astype(wide)
    read = _read(flat, axes, sizes)
    if mask is not None:
        read = read * mask.reshape(batch * offset_groups, 1, taps * num_outputs)
    columns = read.reshape(batch, groups, channels // groups * taps, num_outputs)
    rows = w.reshape(groups, w.shape[0] // groups, channels // groups * taps).astype(wide)
    y = np.matmul(rows, columns).reshape(batch, w.shape[0], *out)
    return (y if b is None else y + b.reshape(-1, *[1] * rank)).astype(x.dtype)


def _infer_roi_align(x, rois, batch, *, height, width, ratio, scale, mode, half_pixel):
    expect_kind("roi_align", x, "f")
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] not in (4, None) or rois.dtype is not x.dtype:
        raise ShapeError(f"roi_align: bad operands, got {x} and {rois}, expected [N, C, H, W] and [regions, 4]")
    if batch.rank != 1 or batch.dtype is not i64 or any(dim == 0 for dim in x.shape[2:]):
        raise ShapeError(f"roi_align: bad operands, got {x} and {batch}, expected images of an element or more and i64")
    if min(height, width) < 1 or ratio < 0 or not math.isfinite(scale):
        raise ShapeError(f"roi_align: bad sizes, got {height}, {width}, {ratio} and {scale}")
    if max(height, width) * max(ratio, 1) > MAX_ROI_POINTS:
        raise LimitError(
            f"roi_align: too many points, got {max(height, width)} times {ratio}, expected at most {MAX_ROI_POINTS}"
        )
    return TensorType(x.dtype, (unify("roi_align: regions", rois.shape[0], batch.shape[0]), x.shape[1], height, width))


@op(
    infer=_infer_roi_align,
    addresses={"batch": Index(lambda x, *_, **__: range(len(x)))},
    samples=[
        sample("x[2,3,6,7] r>0<6[4,4] b:i64<2[4]", height=2, width=3, ratio=2, scale=1.0, mode="avg", half_pixel=True),
        sample(
            "x[2,3,6,7] r>-9<9[4,4] b:i64<2[4]", height=2, width=3, ratio=3, scale=0.7, mode="max", half_pixel=False
        ),
        sample("x[1,1,6,7] r>0<6[4,4] b:i64<1[4]", height=1, width=2, ratio=0, scale=0.9, mode="avg", half_pixel=True),
        sample("x[1,2,6,7] r>0<6[0,4] b:i64<1[0]", height=1, width=2, ratio=0, scale=0.9, mode="max", half_pixel=True),
    ],
)
def roi_align(
    x, rois, batch, *,
    height: int, width: int, ratio: int, scale: float, mode: Literal["avg", "max"], half_pixel: bool,
):  # fmt: skip
    """Regions of images [N, C, H, W] pooled to one size without rounding them to elements: [regions, C, height,
    width].

    rois [regions, 4]: x1, y1, x2, y2, times `scale` in elements of x; batch i64 [regions]: the image of each. A bin is
    the mean ("avg") of x at ratio times ratio points between its elements, or the largest weighted element that
    contributes to any of them ("max"); a ratio of 0 uses one point per element of x. half_pixel: element centers are at
    halves; without it a region is at least one element wide. He et al., "Mask R-CNN", 2017.
    """
    if not np.isfinite(rois).all():
        raise InputError("roi_align: bad regions, got infinity or NaN, expected finite regions")
    result = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
    for i, (roi, image) in enumerate(zip(rois, batch.tolist(), strict=True)):
        x1, y1, x2, y2 = roi * roi.dtype.type(scale) - roi.dtype.type(0.5 if half_pixel else 0)
        row_taps = _bin_taps(y1, y2, height, ratio, x.shape[2], half_pixel)
        column_taps = _bin_taps(x1, x2, width, ratio, x.shape[3], half_pixel)
        if mode == "avg":
            rows, columns = _bin_means(row_taps, x.shape[2]), _bin_means(column_taps, x.shape[3])
            result[i] = np.matmul(np.matmul(rows, x[image]), columns.T)
        else:
            result[i] = _bin_maxima(x[image], row_taps, column_taps)
    return result


def _bin_taps(start, stop, bins: int, ratio: int, size: int, half_pixel: bool):
    """Return indices and weights [bins, points, 2] of the two elements around each point, along an axis."""
    length = stop - start if half_pixel else max(stop - start, start.dtype.type(1))
    step = length / start.dtype.type(bins)
    points = ratio or max(math.ceil(step), 0)
    if bins * points > MAX_ROI_POINTS:
        raise LimitError(f"roi_align: too many points, got {bins} times {points}, expected at most {MAX_ROI_POINTS}")
    part = (np.arange(points, dtype=start.dtype) + start.dtype.type(0.5)) * step / start.dtype.type(max(points, 1))
    position = start + np.arange(bins, dtype=start.dtype)[:, None] * step + part
    counts = (position >= -1) & (position <= size)
    position = np.clip(position, 0, size - 1)
    first = np.minimum(np.floor(position), max(size - 2, 0))
    high = position - first
    index = first.astype(np.int64)
    weights = np.stack([1 - high, high], -1) * counts[..., None]
    return np.stack([index, np.minimum(index + 1, size - 1)], -1), weights


def _bin_means(taps, size: int):
    """Return the mean over the points of each bin as a table [bins, size]."""
    index, weights = taps
    bins, points, _ = index.shape
    table = np.zeros((bins, size), weights.dtype)
    np.add.at(table, (np.arange(bins)[:, None, None], index), weights / weights.dtype.type(max(points, 1)))
    return table


def _bin_maxima(image, row_taps, column_taps):
    """Return the largest weighted element of the points of each bin, over each of the four neighbors; 0 without
    points.
    """
    (rows, of_rows), (columns, of_columns) = row_taps, column_taps
    points = rows.shape[0] * rows.shape[1] * columns.shape[0] * columns.shape[1] * image.shape[0]
    if points > 16 * MAX_ROI_POINTS:
        raise LimitError(f"roi_align: too many points, got {points}, expected at most {16 * MAX_ROI_POINTS}")
    best = np.full((image.shape[0], len(rows), len(columns)), -np.inf if rows.size and columns.size else 0, image.dtype)
    for i, j in itertools.product(range(2), range(2)):
        read = image[:, rows[:, :, None, None, i], columns[None, None, :, :, j]]
        read = read * of_rows[:, :, None, None, i] * of_columns[None, None, :, :, j]
        best = np.maximum(best, read.max((2, 4), initial=-np.inf)) if read.size else best
    return best

"""Which elements an interpolated axis reads, and how much of each: the arithmetic of Resize and of torch's upsampling.

Formulas over sizes and scales are written with a pen: where these are known, a table is made when a model is loaded,
else the graph makes it. Coordinates are computed in f32, as ONNX Runtime and torch do, so that a tie falls to the side
that it falls to there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ingot.errors import LimitError
from ingot.ir.dim import Known, floordiv, maximum
from ingot.ir.dtype import f32, f64, i64
from ingot.ir.graph import MAX_RANK
from ingot.load.eager import Value
from ingot.ops.define import Builder

MAX_TAPS = 2**22  # of one axis: its length times the elements that each place reads


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis to be resampled: its size and the one wanted; that unrounded, and how many places one becomes (f64)."""

    size: Known
    out: Known
    width: Value
    scale: Value


def _expect_taps(count: Known) -> None:
    """Raises LimitError for a table that is too large."""
    if isinstance(count, int) and count > MAX_TAPS:
        raise LimitError(f"resampling: too many places, got {count}, expected at most {MAX_TAPS} along an axis")


def positions(pen: Builder, axis: Axis) -> Value:
    """Places in the result: f32[out]. Raises LimitError."""
    _expect_taps(axis.out)
    return pen.iota(length=axis.out, start=0, step=1, dtype=f32)


def half_pixel(pen: Builder, axis: Axis) -> Value:
    """Coordinates in the operand, f32[out], with centers of elements at a half."""
    return pen.sub(pen.div(pen.add(positions(pen, axis), 0.5), pen.cast(axis.scale, dtype=f32)), 0.5)


def pytorch_half_pixel(pen: Builder, axis: Axis) -> Value:
    """As `half_pixel`, where a result of one element lies at the start."""
    return pen.where(pen.equal(axis.width, 1.0), 0.0, half_pixel(pen, axis))


def half_pixel_symmetric(pen: Builder, axis: Axis) -> Value:
    """As `half_pixel`, around the center of a width that is no whole number."""
    adjustment = pen.div(pen.scalar(axis.out, f32), pen.cast(axis.width, dtype=f32))
    center = pen.div(pen.scalar(axis.size, f32), 2.0)
    return pen.add(half_pixel(pen, axis), pen.mul(center, pen.sub(1.0, adjustment)))


def asymmetric(pen: Builder, axis: Axis) -> Value:
    """Coordinates with the first elements of both upon each other."""
    return pen.div(positions(pen, axis), pen.cast(axis.scale, dtype=f32))


def half_pixel_unmoved(pen: Builder, axis: Axis) -> Value:
    """Coordinates with centers of places at a half, and not those of elements, as TensorFlow takes the nearest one."""
    return pen.div(pen.add(positions(pen, axis), 0.5), pen.cast(axis.scale, dtype=f32))


def align_corners(pen: Builder, axis: Axis) -> Value:
    """Coordinates with the first elements upon each other, and the last ones."""
    apart = pen.div(pen.scalar(axis.size - 1, f64), pen.sub(axis.width, 1.0))
    apart = pen.where(pen.equal(axis.width, 1.0), 0.0, apart)
    return pen.mul(positions(pen, axis), pen.cast(apart, dtype=f32))


def crop(pen: Builder, axis: Axis, start: Value, end: Value) -> Value:
    """Coordinates over the part from `start` to `end`, f32 in units of the operand's extent."""
    last = pen.scalar(axis.size - 1, f32)
    center = pen.mul(pen.mul(pen.add(start, end), 0.5), last)
    steps = pen.mul(pen.mul(positions(pen, axis), pen.sub(end, start)), last)
    moved = pen.div(steps, pen.cast(pen.sub(axis.width, 1.0), dtype=f32))
    return pen.where(pen.equal(axis.width, 1.0), center, pen.add(pen.mul(start, last), moved))


COORDINATES: dict[str, Callable[[Builder, Axis], Value]] = {
    "half_pixel": half_pixel,
    "half_pixel_symmetric": half_pixel_symmetric,
    "pytorch_half_pixel": pytorch_half_pixel,
    "asymmetric": asymmetric,
    "tf_half_pixel_for_nn": half_pixel_unmoved,
    "align_corners": align_corners,
}
NEAREST: dict[str, Callable[[Builder, Value], Value]] = {
    "round_prefer_floor": lambda pen, x: pen.ceil(pen.sub(x, 0.5)),
    "round_prefer_ceil": lambda pen, x: pen.floor(pen.add(x, 0.5)),
    "floor": lambda pen, x: pen.floor(x),
    "ceil": lambda pen, x: pen.ceil(x),
}


def nearest(pen: Builder, coordinates: Value, size: Known, mode: str) -> Value:
    """The element read at each coordinate: i64[out]."""
    return _inside(pen, NEAREST[mode](pen, coordinates), size)


def _inside(pen: Builder, places: Value, size: Known) -> Value:
    """Whole numbers as i64 in 0..size-1."""
    return pen.minimum(pen.maximum(pen.cast(places, dtype=i64), 0), pen.scalar(size - 1, i64))


def linear(pen: Builder, x: Value) -> Value:
    """The weight of an element at distance x."""
    return pen.maximum(pen.sub(1.0, pen.abs(x)), 0.0)


def cubic(pen: Builder, x: Value, a: float) -> Value:
    """The weight of an element at distance x. Keys, "Cubic convolution interpolation", 1981."""
    x = pen.abs(x)
    near = pen.add(pen.mul(pen.mul(pen.sub(pen.mul(x, a + 2), a + 3), x), x), 1.0)
    far = pen.sub(pen.mul(pen.add(pen.mul(pen.sub(pen.mul(x, a), 5 * a), x), 8 * a), x), 4 * a)
    return pen.where(pen.less_equal(x, 1.0), near, pen.where(pen.less(x, 2.0), far, 0.0))


def reach(support: int, axis: Axis, stretch: Value | None) -> Known:
    """How many elements to each side a stretched kernel reads; at most, where only a run knows the stretch.

    That is no more than size / (out - 1/2), as the size wanted is a scaled one, rounded.
    """
    if stretch is None:
        return support
    if isinstance(stretch, np.ndarray):
        return math.ceil(support * stretch.item())
    halves = maximum(2 * axis.out - 1, 1)
    return maximum(support, floordiv(2 * support * axis.size + halves - 1, halves))


def taps(
    pen: Builder, coordinates: Value, axis: Axis, kernel: Callable[[Builder, Value], Value], support: int, *,
    stretch: Value | None = None, exclude_outside: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """The elements read at each coordinate, i64[out, taps], and their weights, f64[out, taps].

    kernel reaches `support` elements to each side, stretched (f64) for antialiasing. Past the ends the last element
    repeats, or weighs nothing, and the others weigh more instead.
    """
    if isinstance(stretch, np.ndarray) and stretch == 1:
        stretch = None
    reached = reach(support, axis, stretch)
    _expect_taps(2 * reached * axis.out)
    exact = pen.reshape(pen.cast(coordinates, dtype=f64), shape=(axis.out, 1))
    read = pen.add(pen.floor(exact), pen.iota(length=2 * reached, start=1 - reached, step=1, dtype=f64))
    distance = pen.sub(read, exact)
    weights = kernel(pen, distance if stretch is None else pen.div(distance, stretch))
    if exclude_outside:
        inside = pen.logical_and(pen.greater_equal(read, 0.0), pen.less(read, pen.scalar(axis.size, f64)))
        weights = pen.where(inside, weights, 0.0)
    if exclude_outside or stretch is not None:
        weights = pen.div(weights, pen.reduce_sum(weights, axes=(1,), keepdims=True))
    return _inside(pen, read, axis.size), weights


def repeats(indices: np.ndarray, size: int) -> int | None:
    """How often each element of an axis is read, in order; None unless all are read equally often."""
    factor = len(indices) // size if size else 0
    is_repeat = factor > 0 and np.array_equal(indices, np.arange(size * factor) // factor)
    return factor if is_repeat else None


def _repeat_by_axis(pen: Builder, x: str, factors: Mapping[int, int]) -> str:
    """As `repeat`, with the dims before and behind one axis merged."""
    for axis, factor in factors.items():
        shape: tuple[Known, ...] = pen.type(x).shape  # type: ignore[assignment]
        outer, inner = math.prod(shape[: axis + 1]), math.prod(shape[axis + 1 :])
        spread = pen.expand(pen.reshape(x, shape=(outer, 1, inner)), shape=(outer, factor, inner))
        x = pen.reshape(spread, shape=(*shape[:axis], shape[axis] * factor, *shape[axis + 1 :]))
    return x


def repeat(pen: Builder, x: str, factors: Mapping[int, int]) -> str:
    """x with each element of some axes so many times in a row: one expand, for as many axes as the rank has room."""
    shape: tuple[Known, ...] = pen.type(x).shape  # type: ignore[assignment]  # of an image, all dims are known
    if len(shape) == MAX_RANK:
        return _repeat_by_axis(pen, x, factors)
    some = dict(list(factors.items())[: MAX_RANK - len(shape)])
    rest = {axis: factor for axis, factor in factors.items() if axis not in some}
    split = [dim for axis, size in enumerate(shape) for dim in ((size, 1) if axis in some else (size,))]
    full = [dim for axis, size in enumerate(shape) for dim in ((size, some[axis]) if axis in some else (size,))]
    whole = tuple(size if axis not in some else size * some[axis] for axis, size in enumerate(shape))
    if some:
        x = pen.reshape(pen.expand(pen.reshape(x, shape=tuple(split)), shape=tuple(full)), shape=whole)
    return repeat(pen, x, rest) if rest else x

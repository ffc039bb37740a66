"""Window positions and weights of interpolated axes: the arithmetic of Resize and of torch's upsampling.

A builder evaluates the formulas over sizes and scales: at load time where these are known, else in the graph.
Coordinates are computed in f32, as in ONNX Runtime and torch, so that ties round to the same side.
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

MAX_TAPS = 2**22  # of one axis: its length times the elements that each position reads


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis to be resampled: its size and its output size; the unrounded output size, and the scale factor (f64)."""

    size: Known
    out: Known
    width: Value
    scale: Value


def _expect_taps(count: Known) -> None:
    """Raise LimitError for a table that is too large."""
    if isinstance(count, int) and count > MAX_TAPS:
        raise LimitError(f"resampling: too many positions, got {count}, expected at most {MAX_TAPS} along an axis")


def positions(builder: Builder, axis: Axis) -> Value:
    """Return the output positions: f32[out]. Raises LimitError."""
    _expect_taps(axis.out)
    return builder.iota(length=axis.out, start=0, step=1, dtype=f32)


def half_pixel(builder: Builder, axis: Axis) -> Value:
    """Return coordinates in the operand, f32[out], with element centers at a half."""
    return builder.sub(
        builder.div(builder.add(positions(builder, axis), 0.5), builder.cast(axis.scale, dtype=f32)), 0.5
    )


def pytorch_half_pixel(builder: Builder, axis: Axis) -> Value:
    """Return coordinates as `half_pixel` does, but 0 where the output has one element."""
    return builder.where(builder.equal(axis.width, 1.0), 0.0, half_pixel(builder, axis))


def half_pixel_symmetric(builder: Builder, axis: Axis) -> Value:
    """Return coordinates as `half_pixel` does, centered for an output width that is no whole number."""
    adjustment = builder.div(builder.scalar(axis.out, f32), builder.cast(axis.width, dtype=f32))
    center = builder.div(builder.scalar(axis.size, f32), 2.0)
    return builder.add(half_pixel(builder, axis), builder.mul(center, builder.sub(1.0, adjustment)))


def asymmetric(builder: Builder, axis: Axis) -> Value:
    """Return coordinates that align the first element of operand and result."""
    return builder.div(positions(builder, axis), builder.cast(axis.scale, dtype=f32))


def tf_half_pixel(builder: Builder, axis: Axis) -> Value:
    """Return coordinates with the centers of output elements at a half, but not those of input elements, as TensorFlow
    picks the nearest element.
    """
    return builder.div(builder.add(positions(builder, axis), 0.5), builder.cast(axis.scale, dtype=f32))


def align_corners(builder: Builder, axis: Axis) -> Value:
    """Return coordinates that align the first elements and the last elements of operand and result."""
    spacing = builder.div(builder.scalar(axis.size - 1, f64), builder.sub(axis.width, 1.0))
    spacing = builder.where(builder.equal(axis.width, 1.0), 0.0, spacing)
    return builder.mul(positions(builder, axis), builder.cast(spacing, dtype=f32))


def crop(builder: Builder, axis: Axis, start: Value, end: Value) -> Value:
    """Return coordinates over the range from `start` to `end`, f32 as fractions of the operand's extent."""
    last = builder.scalar(axis.size - 1, f32)
    center = builder.mul(builder.mul(builder.add(start, end), 0.5), last)
    steps = builder.mul(builder.mul(positions(builder, axis), builder.sub(end, start)), last)
    moved = builder.div(steps, builder.cast(builder.sub(axis.width, 1.0), dtype=f32))
    return builder.where(builder.equal(axis.width, 1.0), center, builder.add(builder.mul(start, last), moved))


COORDINATES: dict[str, Callable[[Builder, Axis], Value]] = {
    "half_pixel": half_pixel,
    "half_pixel_symmetric": half_pixel_symmetric,
    "pytorch_half_pixel": pytorch_half_pixel,
    "asymmetric": asymmetric,
    "tf_half_pixel_for_nn": tf_half_pixel,
    "align_corners": align_corners,
}
NEAREST: dict[str, Callable[[Builder, Value], Value]] = {
    "round_prefer_floor": lambda builder, x: builder.ceil(builder.sub(x, 0.5)),
    "round_prefer_ceil": lambda builder, x: builder.floor(builder.add(x, 0.5)),
    "floor": lambda builder, x: builder.floor(x),
    "ceil": lambda builder, x: builder.ceil(x),
}


def nearest(builder: Builder, coordinates: Value, size: Known, mode: str) -> Value:
    """Return the index of the element read at each coordinate: i64[out]."""
    return _inside(builder, NEAREST[mode](builder, coordinates), size)


def _inside(builder: Builder, elements: Value, size: Known) -> Value:
    """Return whole numbers as i64, clamped to 0..size-1."""
    return builder.minimum(builder.maximum(builder.cast(elements, dtype=i64), 0), builder.scalar(size - 1, i64))


def linear(builder: Builder, x: Value) -> Value:
    """Return the weight of an element at distance x."""
    return builder.maximum(builder.sub(1.0, builder.abs(x)), 0.0)


def cubic(builder: Builder, x: Value, a: float) -> Value:
    """Return the weight of an element at distance x. Keys, "Cubic convolution interpolation", 1981."""
    x = builder.abs(x)
    near = builder.add(builder.mul(builder.mul(builder.sub(builder.mul(x, a + 2), a + 3), x), x), 1.0)
    far = builder.sub(builder.mul(builder.add(builder.mul(builder.sub(builder.mul(x, a), 5 * a), x), 8 * a), x), 4 * a)
    return builder.where(builder.less_equal(x, 1.0), near, builder.where(builder.less(x, 2.0), far, 0.0))


def reach(support: int, axis: Axis, stretch: Value | None) -> Known:
    """Return the number of elements that a stretched kernel reads on each side; an upper bound if the stretch is only
    known at run time.

    The bound follows from stretch <= size / (out - 1/2), as the output size is the rounded product of size and scale.
    """
    if stretch is None:
        return support
    if isinstance(stretch, np.ndarray):
        return math.ceil(support * stretch.item())
    halves = maximum(2 * axis.out - 1, 1)
    return maximum(support, floordiv(2 * support * axis.size + halves - 1, halves))


def taps(
    builder: Builder, coordinates: Value, axis: Axis, kernel: Callable[[Builder, Value], Value], support: int, *,
    stretch: Value | None = None, exclude_outside: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """Return the elements read at each coordinate, i64[out, taps], and their weights, f64[out, taps].

    kernel extends over `support` elements on each side, times `stretch` (f64) for antialiasing. Outside the axis the
    boundary element repeats; with `exclude_outside` it has weight 0, and the other weights are renormalized.
    """
    if isinstance(stretch, np.ndarray) and stretch == 1:
        stretch = None
    reached = reach(support, axis, stretch)
    _expect_taps(2 * reached * axis.out)
    exact = builder.reshape(builder.cast(coordinates, dtype=f64), shape=(axis.out, 1))
    read = builder.add(builder.floor(exact), builder.iota(length=2 * reached, start=1 - reached, step=1, dtype=f64))
    distance = builder.sub(read, exact)
    weights = kernel(builder, distance if stretch is None else builder.div(distance, stretch))
    if exclude_outside:
        inside = builder.logical_and(
            builder.greater_equal(read, 0.0), builder.less(read, builder.scalar(axis.size, f64))
        )
        weights = builder.where(inside, weights, 0.0)
    if exclude_outside or stretch is not None:
        weights = builder.div(weights, builder.reduce_sum(weights, axes=(1,), keepdims=True))
    return _inside(builder, read, axis.size), weights


def repeats(indices: np.ndarray, size: int) -> int | None:
    """Return how often each element of an axis is read, in order; None unless all elements are read equally often."""
    factor = len(indices) // size if size else 0
    is_repeat = factor > 0 and np.array_equal(indices, np.arange(size * factor) // factor)
    return factor if is_repeat else None


def _repeat_by_axis(builder: Builder, x: str, factors: Mapping[int, int]) -> str:
    """Repeat elements as `repeat` does, one axis at a time, with the dims before and after the axis merged."""
    for axis, factor in factors.items():
        shape: tuple[Known, ...] = builder.type(x).shape  # type: ignore[assignment]
        outer, inner = math.prod(shape[: axis + 1]), math.prod(shape[axis + 1 :])
        spread = builder.expand(builder.reshape(x, shape=(outer, 1, inner)), shape=(outer, factor, inner))
        x = builder.reshape(spread, shape=(*shape[:axis], shape[axis] * factor, *shape[axis + 1 :]))
    return x


def repeat(builder: Builder, x: str, factors: Mapping[int, int]) -> str:
    """Repeat each element of the given axes consecutively: one expand for as many axes as the maximum rank allows."""
    shape: tuple[Known, ...] = builder.type(x).shape  # type: ignore[assignment]  # of an image, all dims are known
    if len(shape) == MAX_RANK:
        return _repeat_by_axis(builder, x, factors)
    some = dict(list(factors.items())[: MAX_RANK - len(shape)])
    rest = {axis: factor for axis, factor in factors.items() if axis not in some}
    split = [dim for axis, size in enumerate(shape) for dim in ((size, 1) if axis in some else (size,))]
    full = [dim for axis, size in enumerate(shape) for dim in ((size, some[axis]) if axis in some else (size,))]
    repeated_shape = tuple(size if axis not in some else size * some[axis] for axis, size in enumerate(shape))
    if some:
        x = builder.reshape(
            builder.expand(builder.reshape(x, shape=tuple(split)), shape=tuple(full)), shape=repeated_shape
        )
    return repeat(builder, x, rest) if rest else x

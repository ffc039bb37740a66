"""Which elements an interpolated axis reads, and how much of each: the arithmetic of Resize and of torch's upsampling.

Tables are made when a model is loaded, out of sizes and scales. Coordinates are computed in f32, as ONNX Runtime and
torch do, so that a tie falls to the side that it falls to there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ingot.errors import LimitError

MAX_TAPS = 2**22  # of one axis: its length times the elements that each place reads

F = np.float32


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis to be resampled: its size, the size and the unrounded width wanted, and how many places one becomes."""

    size: int
    out: int
    width: float
    scale: float

    def places(self) -> np.ndarray:
        """Positions in the result: f32[out]. Raises LimitError."""
        expect_taps(self.out)
        return np.arange(self.out, dtype=F)


def expect_taps(count: int) -> None:
    """Raises LimitError for a table that is too large."""
    if count > MAX_TAPS:
        raise LimitError(f"resampling: too many places, got {count}, expected at most {MAX_TAPS} along an axis")


def half_pixel(axis: Axis) -> np.ndarray:
    """Coordinates in the operand, f32[out], with centers of elements at a half."""
    return (axis.places() + F(0.5)) / F(axis.scale) - F(0.5)


def pytorch_half_pixel(axis: Axis) -> np.ndarray:
    """As `half_pixel`, where a result of one element lies at the start."""
    return np.zeros(axis.out, F) if axis.width == 1 else half_pixel(axis)


def half_pixel_symmetric(axis: Axis) -> np.ndarray:
    """As `half_pixel`, around the center of a width that is no whole number."""
    adjustment = F(axis.out) / F(axis.width)
    return half_pixel(axis) + F(axis.size) / F(2) * (F(1) - adjustment)


def asymmetric(axis: Axis) -> np.ndarray:
    """Coordinates with the first elements of both upon each other."""
    return axis.places() / F(axis.scale)


def align_corners(axis: Axis) -> np.ndarray:
    """Coordinates with the first elements upon each other, and the last ones."""
    return axis.places() * F(0 if axis.width == 1 else (axis.size - 1) / (axis.width - 1))


def crop(axis: Axis, start: float, end: float) -> np.ndarray:
    """Coordinates over the part from `start` to `end`, in units of the operand's extent."""
    last = F(axis.size - 1)
    if axis.width == 1:
        return np.full(axis.out, F(0.5) * (F(start) + F(end)) * last)
    return F(start) * last + axis.places() * (F(end) - F(start)) * last / F(axis.width - 1)


COORDINATES: dict[str, Callable[[Axis], np.ndarray]] = {
    "half_pixel": half_pixel,
    "half_pixel_symmetric": half_pixel_symmetric,
    "pytorch_half_pixel": pytorch_half_pixel,
    "asymmetric": asymmetric,
    "align_corners": align_corners,
}
NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - F(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + F(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def nearest(coordinates: np.ndarray, size: int, mode: str) -> np.ndarray:
    """The element read at each coordinate: i64[out]."""
    return np.clip(NEAREST[mode](coordinates), 0, size - 1).astype(np.int64)


def linear(x: np.ndarray) -> np.ndarray:
    """The weight of an element at distance x."""
    return np.maximum(1 - np.abs(x), 0)


def cubic(x: np.ndarray, a: float) -> np.ndarray:
    """The weight of an element at distance x. Keys, "Cubic convolution interpolation", 1981."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def taps(
    coordinates: np.ndarray, size: int, kernel: Callable[[np.ndarray], np.ndarray], support: int, *,
    stretch: float = 1.0, exclude_outside: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The elements read at each coordinate, i64[out, taps], and their weights, f64[out, taps].

    kernel reaches `support` elements to each side, stretched for antialiasing. Past the ends the last element repeats,
    or weighs nothing, and the others weigh more instead.
    """
    reach = math.ceil(support * stretch)
    expect_taps(2 * reach * len(coordinates))
    exact = coordinates.astype(np.float64)[:, None]
    read = np.floor(exact) + np.arange(1 - reach, reach + 1)
    weights = kernel((read - exact) / stretch)
    if exclude_outside:
        weights = np.where((read < 0) | (read >= size), 0, weights)
    if exclude_outside or stretch != 1:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(read, 0, size - 1).astype(np.int64), weights


def repeats(indices: np.ndarray, size: int) -> int | None:
    """How often each element of an axis is read, in order; None unless all are read equally often."""
    factor = len(indices) // size if size else 0
    is_repeat = factor > 0 and np.array_equal(indices, np.arange(size * factor) // factor)
    return factor if is_repeat else None

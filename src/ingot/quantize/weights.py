"""Quantization of matrices to few bits: w = (q - zero point) * scale, with a scale per row or per group of columns.

Scales are found by least squares: of several candidate ranges, the one with the smallest squared error is chosen, and
its scale is fitted to the quantized values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingot.load.quantized import narrowed

# Shares of a group's range that the quantized values may span; values outside are clipped.
_RANGES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 1.05, 1.1)


@dataclass(frozen=True, slots=True)
class Coding:
    """A format of quantized weights. bits: 8 or 4. group: columns per scale, 0 for all. has_zeros: has zero points."""

    bits: int
    group: int
    has_zeros: bool

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and largest quantized value: signed, except for 4 bits with zero points."""
        low = 0 if self.has_zeros and self.bits == 4 else -(1 << (self.bits - 1))
        return low, low + (1 << self.bits) - 1

    def groups(self, columns: int) -> int:
        """Return the number of groups in a row."""
        return columns // self.group if self.group else 1


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized matrix. quantized: the values, i8 or u8 [n, k], not packed; scales: f16 or f32 [n, groups];
    zeros: the zero points, of the values' dtype [n, groups], or None.
    """

    quantized: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None

    def decoded(self) -> np.ndarray:
        """Return the dequantized matrix, f32[n, k]."""
        n, k = self.quantized.shape
        values = self.quantized.reshape(n, self.scales.shape[1], -1).astype(np.float32)
        if self.zeros is not None:
            values -= self.zeros[..., None].astype(np.float32)
        return (values * self.scales[..., None].astype(np.float32)).reshape(n, k)


def code(matrix: np.ndarray, coding: Coding) -> Quantized:
    """Quantize a matrix f32[n, k] by rounding to the nearest value; k is a multiple of the group."""
    scales, zero_points = fit(matrix, coding)
    return Quantized(assigned(matrix, scales, zero_points, coding), scales, zero_points)


def fit(
    matrix: np.ndarray, coding: Coding, importance: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the best scales and zero points of each row and group of a matrix f32[n, k].

    importance: f32[k], the weight of each column's squared error; by default the same for all columns.
    """
    n, k = matrix.shape
    groups = coding.groups(k)
    blocks = matrix.reshape(n, groups, -1)
    weights = None if importance is None else importance.reshape(1, groups, -1)
    found = [_candidate(blocks, share, coding, weights) for share in _RANGES]
    errors = np.stack([error for _, _, error in found])
    best = errors.argmin(0)[None]
    scales = np.take_along_axis(np.stack([scale for scale, _, _ in found]), best, 0)[0]
    if not coding.has_zeros:
        return narrowed(scales), None
    zero_points = np.take_along_axis(np.stack([zero_point for _, zero_point, _ in found]), best, 0)[0]
    return narrowed(scales), zero_points.astype(np.uint8 if coding.bits == 4 else np.int8)


def assigned(matrix: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, coding: Coding) -> np.ndarray:
    """Quantize a matrix [n, k] to the nearest values under scales and zero points [n, groups]."""
    n, k = matrix.shape
    wide = scales.astype(np.float32)[..., None]
    points = None if zeros is None else zeros.astype(np.float32)[..., None]
    quantized = _nearest(matrix.reshape(n, scales.shape[1], -1), wide, points, coding)
    return quantized.reshape(n, k).astype(np.uint8 if coding.limits[0] == 0 else np.int8)


def _nearest(blocks: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None, coding: Coding) -> np.ndarray:
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    rounded = np.rint(blocks * inverse)
    if zero_point is not None:
        rounded += zero_point
    return np.clip(rounded, *coding.limits, out=rounded)


def _candidate(
    blocks: np.ndarray, share: float, coding: Coding, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scales, zero points and squared errors [n, groups] for a share of each group's range."""
    low, high = coding.limits
    if coding.has_zeros:
        least = np.minimum(blocks.min(-1), 0) * share
        most = np.maximum(blocks.max(-1), 0) * share
        scale = (most - least) / (high - low)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        zero_point = np.clip(np.rint(low - least * inverse), low, high)
    else:
        # The largest element gets the lowest quantized value, whose negative is out of range.
        largest = np.abs(blocks).argmax(-1)[..., None]
        scale = np.take_along_axis(blocks, largest, -1)[..., 0] * share / low
        zero_point = np.zeros_like(scale)
    points = zero_point[..., None]
    values = _nearest(blocks, scale[..., None], points, coding) - points
    weighted = blocks if weights is None else blocks * weights
    power = (values * values).sum(-1) if weights is None else (values * values * weights).sum(-1)
    fitted = np.divide((weighted * values).sum(-1), power, out=scale.copy(), where=power > 0)
    stored = narrowed(fitted).astype(np.float32)
    differences = blocks - (_nearest(blocks, stored[..., None], points, coding) - points) * stored[..., None]
    squares = differences * differences
    return stored, zero_point, (squares if weights is None else squares * weights).sum(-1)

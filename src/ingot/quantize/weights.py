"""Matrices as codes of few bits: (code - zero point) * scale, a scale for each row or group of its columns.

Scales are searched by least squares: of several ranges that the codes may span, the one with the smallest squared
error is taken, and its scale fitted to the codes that it gave.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingot.load.quantized import narrowed

# Shares of the range of a group that its codes may span; what lies outside is held at their end.
_RANGES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 1.05, 1.1)


@dataclass(frozen=True, slots=True)
class Coding:
    """How a matrix is coded. bits: 8 or 4. group: columns that share a scale, 0 for all. has_zeros: zero points."""

    bits: int
    group: int
    has_zeros: bool

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and largest code: four bits are signed unless there are zero points, eight always."""
        low = 0 if self.has_zeros and self.bits == 4 else -(1 << (self.bits - 1))
        return low, low + (1 << self.bits) - 1

    def groups(self, columns: int) -> int:
        """Groups of a row."""
        return columns // self.group if self.group else 1


@dataclass(frozen=True, slots=True)
class Quantized:
    """codes i8 or u8 [n, k], not packed; scales f16 or f32 [n, groups]; zeros of the codes' dtype [n, groups]."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None

    def decoded(self) -> np.ndarray:
        """The matrix that it stands for, f32[n, k]."""
        n, k = self.codes.shape
        steps = self.codes.reshape(n, self.scales.shape[1], -1).astype(np.float32)
        if self.zeros is not None:
            steps -= self.zeros[..., None].astype(np.float32)
        return (steps * self.scales[..., None].astype(np.float32)).reshape(n, k)


def code(matrix: np.ndarray, coding: Coding) -> Quantized:
    """The codes of a matrix f32[n, k], each to the nearest; k is a multiple of the group."""
    scales, zeros = fit(matrix, coding)
    return Quantized(assigned(matrix, scales, zeros, coding), scales, zeros)


def fit(
    matrix: np.ndarray, coding: Coding, importance: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The scales and zero points of each row and group of a matrix f32[n, k].

    importance: f32[k], what the squared error of each column counts; the same for all unless it is given.
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
    zeros = np.take_along_axis(np.stack([zero for _, zero, _ in found]), best, 0)[0]
    return narrowed(scales), zeros.astype(np.uint8 if coding.bits == 4 else np.int8)


def assigned(matrix: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, coding: Coding) -> np.ndarray:
    """The nearest codes of a matrix [n, k] under scales and zero points [n, groups]."""
    n, k = matrix.shape
    wide = scales.astype(np.float32)[..., None]
    points = None if zeros is None else zeros.astype(np.float32)[..., None]
    codes = _nearest(matrix.reshape(n, scales.shape[1], -1), wide, points, coding)
    return codes.reshape(n, k).astype(np.uint8 if coding.limits[0] == 0 else np.int8)


def _nearest(blocks: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, coding: Coding) -> np.ndarray:
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    steps = np.rint(blocks * inverse)
    if zero is not None:
        steps += zero
    return np.clip(steps, *coding.limits, out=steps)


def _candidate(
    blocks: np.ndarray, share: float, coding: Coding, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales, zero points and squared errors [n, groups] of codes that span a share of each group's range."""
    low, high = coding.limits
    if coding.has_zeros:
        least = np.minimum(blocks.min(-1), 0) * share
        most = np.maximum(blocks.max(-1), 0) * share
        scale = (most - least) / (high - low)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        zero = np.clip(np.rint(low - least * inverse), low, high)
    else:
        # The largest element gets the code that has no counterpart of the other sign.
        place = np.abs(blocks).argmax(-1)[..., None]
        scale = np.take_along_axis(blocks, place, -1)[..., 0] * share / low
        zero = np.zeros_like(scale)
    steps = _nearest(blocks, scale[..., None], zero[..., None], coding) - zero[..., None]
    counted = blocks if weights is None else blocks * weights
    power = (steps * steps).sum(-1) if weights is None else (steps * steps * weights).sum(-1)
    fitted = np.divide((counted * steps).sum(-1), power, out=scale.copy(), where=power > 0)
    held = narrowed(fitted).astype(np.float32)
    differences = (
        blocks - (_nearest(blocks, held[..., None], zero[..., None], coding) - zero[..., None]) * held[..., None]
    )
    squares = differences * differences
    return held, zero, (squares if weights is None else squares * weights).sum(-1)

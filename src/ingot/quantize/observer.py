"""Calibration statistics of a value over samples (range and mean per channel, some elements), and its u8 scales."""

from __future__ import annotations

import numpy as np

LEAST = np.float32(2.0**-120)  # the smallest scale
_KEPT = 1 << 14  # elements of a tensor that are stored per sample
_KEPT_ROWS = 64  # the least number of rows that are stored per sample
_SHRUNK = np.linspace(1, 0.5, 26)  # shares of the range that are tried
_NARROWEST = 2.0**-8  # least scale of a channel, relative to the tensor's: samples may miss large values


class Observer:
    """Calibration statistics of arrays [..., channels] with the same number of channels."""

    def __init__(self) -> None:
        self.count = 0  # rows of all arrays
        self._total = self._least = self._most = np.zeros(1)
        self._kept: list[np.ndarray] = []

    def see(self, array: np.ndarray, random: np.random.Generator) -> None:
        """Add an array of finite numbers."""
        rows = array.reshape(-1, array.shape[-1])
        if not rows.size:
            return
        self.count += len(rows)
        self._total = self._total + rows.sum(0, np.float64)
        self._least = np.minimum(self._least, rows.min(0))
        self._most = np.maximum(self._most, rows.max(0))
        count = min(len(rows), max(_KEPT // rows.shape[1], _KEPT_ROWS))
        self._kept.append(rows[random.choice(len(rows), count, replace=False)])

    @property
    def mean(self) -> np.ndarray:
        """The mean of each channel."""
        return self._total / self.count

    def scale_and_zero_point(self, *, of_channels: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the scale and zero point with the least mean squared rounding error of the stored elements.

        Shares of the observed range, which always includes 0, are tried. The shapes are [], or [channels] if
        of_channels is set and no element is negative.
        """
        scale, zero_point = _nearest(self._least.min(), self._most.max(), self._sample().reshape(-1, 1))
        if not of_channels or self._least.min() < 0:
            return scale.reshape(()), zero_point.reshape(())
        scales, zero_points = _nearest(self._least, self._most, self._sample())
        return np.maximum(scales, scale * np.float32(_NARROWEST)), zero_points

    def moved(self, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """Return how much rounding changes the mean of each channel."""
        x = self._sample()
        return (_rounded(x, scale, zero) - x).mean(0, np.float64)

    def _sample(self) -> np.ndarray:
        return np.concatenate([np.zeros((1, self._total.size), np.float32), *self._kept])


def _rounded(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Return x[..., channels] rounded to u8 and dequantized."""
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def _nearest(least: np.ndarray, most: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the best scale and zero point of each column of x, whose bounds are least and most."""
    best = [np.full(x.shape[1], np.inf), np.ones(x.shape[1], np.float32), np.zeros(x.shape[1], np.uint8)]
    for share in _SHRUNK:
        scale = np.maximum(share * (most - least) / 255, LEAST).astype(np.float32)
        zero = np.clip(np.rint(-share * least / scale), 0, 255).astype(np.uint8)
        error = np.square(_rounded(x, scale, zero) - x, dtype=np.float64).sum(0)
        found = (error, np.broadcast_to(scale, error.shape), np.broadcast_to(zero, error.shape))
        best = [np.where(error < best[0], new, old) for new, old in zip(found, best, strict=True)]
    return best[1], best[2]

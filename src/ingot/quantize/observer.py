"""What samples make of a value: its range and mean, channel by channel, and some of its elements; and steps of u8."""

from __future__ import annotations

import numpy as np

LEAST = np.float32(2.0**-120)  # a scale
_KEPT = 1 << 14  # elements of a tensor that each sample is represented by
_KEPT_ROWS = 64  # and places at least
_SHRUNK = np.linspace(1, 0.5, 26)  # parts of a range that are tried
_NARROWEST = 2.0**-8  # a channel's scale, of that of all: samples may miss what it can be


class Observer:
    """Of arrays [..., channels], whose channels are as many in each."""

    def __init__(self) -> None:
        self.count = 0  # of places
        self._total = self._least = self._most = np.zeros(1)
        self._kept: list[np.ndarray] = []

    def see(self, array: np.ndarray, random: np.random.Generator) -> None:
        """Takes one more array of finite numbers."""
        rows = array.reshape(-1, array.shape[-1])
        if not rows.size:
            return
        self.count += len(rows)
        self._total = self._total + rows.sum(0, np.float64)
        self._least = np.minimum(self._least, rows.min(0))
        self._most = np.maximum(self._most, rows.max(0))
        kept = min(len(rows), max(_KEPT // rows.shape[1], _KEPT_ROWS))
        self._kept.append(rows[random.choice(len(rows), kept, replace=False)])

    @property
    def mean(self) -> np.ndarray:
        """Of each channel."""
        return self._total / self.count

    def steps(self, *, of_channels: bool) -> tuple[np.ndarray, np.ndarray]:
        """The scale and zero point, of parts of the range from the least element to the largest, 0 included, by which
        elements move least in the mean of squares: [], or [channels] where nothing is negative and that is asked for.
        """
        scale, zero = _nearest(self._least.min(), self._most.max(), self._sample().reshape(-1, 1))
        if not of_channels or self._least.min() < 0:
            return scale.reshape(()), zero.reshape(())
        scales, zeros = _nearest(self._least, self._most, self._sample())
        return np.maximum(scales, scale * np.float32(_NARROWEST)), zeros

    def moved(self, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """By how much rounding moves the mean of each channel."""
        x = self._sample()
        return (_rounded(x, scale, zero) - x).mean(0, np.float64)

    def _sample(self) -> np.ndarray:
        return np.concatenate([np.zeros((1, self._total.size), np.float32), *self._kept])


def _rounded(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """What codes of u8 stand for that are nearest to x[..., channels]."""
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def _nearest(least: np.ndarray, most: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale and zero point of each column of x, of which least and most are the bounds."""
    best = [np.full(x.shape[1], np.inf), np.ones(x.shape[1], np.float32), np.zeros(x.shape[1], np.uint8)]
    for part in _SHRUNK:
        scale = np.maximum(part * (most - least) / 255, LEAST).astype(np.float32)
        zero = np.clip(np.rint(-part * least / scale), 0, 255).astype(np.uint8)
        error = np.square(_rounded(x, scale, zero) - x, dtype=np.float64).sum(0)
        found = (error, np.broadcast_to(scale, error.shape), np.broadcast_to(zero, error.shape))
        best = [np.where(error < best[0], new, old) for new, old in zip(found, best, strict=True)]
    return best[1], best[2]

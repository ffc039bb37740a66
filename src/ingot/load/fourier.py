"""Frames of signals, which transforms go over, and spectra of real ones."""

from __future__ import annotations

from ingot.ir.dim import Known, floordiv
from ingot.ir.dtype import i64
from ingot.load.eager import Value
from ingot.ops.define import Builder


def frame_places(pen: Builder, frames: Known, length: Known, step: Known) -> Value:
    """Where the elements of overlapping frames lie in a signal: i64[frames, length]."""
    starts = pen.mul(pen.iota(length=frames, start=0, step=1, dtype=i64), pen.scalar(step, i64))
    return pen.add(pen.reshape(starts, shape=(frames, 1)), pen.iota(length=length, start=0, step=1, dtype=i64))


def whole_spectrum(pen: Builder, real: str, imaginary: str, axis: int, length: Known) -> tuple[str, str]:
    """Both parts of the transform of so many real numbers along an axis, from its first half: the other mirrors it."""
    shape = pen.type(real).shape
    steps = tuple(-1 if i == axis else 1 for i in range(len(shape)))
    starts = tuple(floordiv(length + 1, 2) - 1 if i == axis else 0 for i in range(len(shape)))
    stops = tuple(0 if i == axis else dim for i, dim in enumerate(shape))
    back, conjugate = (pen.slice(part, starts=starts, stops=stops, steps=steps) for part in (real, imaginary))
    return pen.concat(real, back, axis=axis), pen.concat(imaginary, pen.neg(conjugate), axis=axis)

"""Frames of signals for transforms, and full spectra of real signals."""

from __future__ import annotations

from ingot.ir.dim import Known, floordiv
from ingot.ir.dtype import i64
from ingot.load.eager import Value
from ingot.ops.define import Builder


def frame_positions(builder: Builder, frames: Known, length: Known, step: Known) -> Value:
    """Return the positions of the elements of overlapping frames in a signal: i64[frames, length]."""
    starts = builder.mul(builder.iota(length=frames, start=0, step=1, dtype=i64), builder.scalar(step, i64))
    return builder.add(
        builder.reshape(starts, shape=(frames, 1)), builder.iota(length=length, start=0, step=1, dtype=i64)
    )


def whole_spectrum(builder: Builder, real: str, imaginary: str, axis: int, length: Known) -> tuple[str, str]:
    """Return the real and imaginary parts of the full transform of `length` real numbers along an axis, from its first
    half; the second half mirrors the first.
    """
    shape = builder.type(real).shape
    steps = tuple(-1 if i == axis else 1 for i in range(len(shape)))
    starts = tuple(floordiv(length + 1, 2) - 1 if i == axis else 0 for i in range(len(shape)))
    stops = tuple(0 if i == axis else dim for i, dim in enumerate(shape))
    back, conjugate = (builder.slice(part, starts=starts, stops=stops, steps=steps) for part in (real, imaginary))
    return builder.concat(real, back, axis=axis), builder.concat(imaginary, builder.neg(conjugate), axis=axis)

"""Discrete Fourier transforms as products with tables, which follow from lengths alone.

Formulas over lengths are written with a pen: where these are known, a table is made when a model is loaded, else the
graph makes it.
"""

from __future__ import annotations

import math

from ingot.dim import Known
from ingot.dtype import f64, i64
from ingot.load.eager import Value
from ingot.ops.define import Builder


def waves(
    pen: Builder, read: Known, made: Known, length: Known, *, inverse: bool, is_half: bool = False
) -> tuple[Value, Value]:  # fmt: skip
    """What `read` elements add to `made` results of a transform of some length: cosines and sines, f64[read, made].

    is_half: the elements are the first half of a spectrum, and the other mirrors them. Results are not scaled.
    """
    element = pen.reshape(pen.iota(length=read, start=0, step=1, dtype=i64), shape=(read, 1))
    turns = pen.mul(element, pen.iota(length=made, start=0, step=1, dtype=i64))
    turns = pen.mod(turns, pen.scalar(length, i64))  # whole turns do not matter
    around = pen.div(2 * math.pi if inverse else -2 * math.pi, pen.scalar(length, f64))
    angle = pen.mul(pen.cast(turns, dtype=f64), around)
    is_half_turn = pen.equal(pen.mul(turns, 2), pen.scalar(length, i64))  # whose sine a rounded pi makes other than 0
    cosine, sine = pen.cos(angle), pen.where(is_half_turn, 0.0, pen.sin(angle))
    if not is_half:
        return cosine, sine
    is_own = pen.logical_or(pen.equal(element, 0), pen.equal(pen.mul(element, 2), pen.scalar(length, i64)))
    twice = pen.where(is_own, pen.scalar(1, f64), 2.0)
    return pen.mul(cosine, twice), pen.mul(sine, twice)


def frame_places(pen: Builder, frames: Known, length: Known, step: Known) -> Value:
    """Where the elements of overlapping frames lie in a signal: i64[frames, length]."""
    starts = pen.mul(pen.iota(length=frames, start=0, step=1, dtype=i64), pen.scalar(step, i64))
    return pen.add(pen.reshape(starts, shape=(frames, 1)), pen.iota(length=length, start=0, step=1, dtype=i64))

"""Fourier transforms: ONNX keeps both parts in a last dim."""

from __future__ import annotations

import numpy as np

from ingot.emit.onnx.builder import Pen
from ingot.emit.onnx.registry import rule
from ingot.ir.dim import floordiv
from ingot.ir.dtype import i64
from ingot.ir.graph import Node

_LAST = np.array([-1], np.int64)


def _paired(pen: Pen, *parts: str) -> str:
    pairs = [pen.Unsqueeze(part, _LAST) for part in parts]
    return pairs[0] if len(pairs) == 1 else pen.Concat(*pairs, axis=-1)


def _parts(pen: Pen, pairs: str) -> tuple[str, str]:
    real, imaginary = (pen.Gather(pairs, pen.number(i, i64), axis=-1) for i in (0, 1))
    return real, imaginary


@rule("fft")
def fft(pen: Pen, node: Node, real: str, imaginary: str) -> tuple[str, str]:
    pairs = _paired(pen, real, imaginary)
    return _parts(pen, pen.DFT(pairs, None, pen.number(node.axis, i64), inverse=node.inverse))


@rule("rfft")
def rfft(pen: Pen, node: Node, real: str) -> tuple[str, str]:
    return _parts(pen, pen.DFT(_paired(pen, real), None, pen.number(node.axis, i64), onesided=1))


@rule("irfft")
def irfft(pen: Pen, node: Node, real: str, imaginary: str) -> str:
    """The real part of the inverse of twice the half with zeros behind, of its ends once."""
    type, length = pen.type(node, 0), pen.scalar_size(node.length)
    half = pen.scalar_size(floordiv(node.length, 2) + 1)
    bins = pen.Range(pen.number(0, i64), half, pen.number(1, i64))
    is_end = pen.Or(pen.Equal(bins, pen.number(0, i64)), pen.Equal(pen.Add(bins, bins), length))
    times = pen.Where(is_end, pen.number(1, type.dtype), pen.number(2, type.dtype))
    behind = type.rank - 1 - node.axis
    if behind:
        times = pen.Unsqueeze(times, np.arange(1, 1 + behind))
    pairs = _paired(pen, pen.Mul(real, times), pen.Mul(imaginary, times))
    return _parts(pen, pen.DFT(pairs, length, pen.number(node.axis, i64), inverse=1))[0]

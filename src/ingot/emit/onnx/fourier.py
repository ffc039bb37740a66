"""ONNX rules of Fourier transforms: ONNX stores real and imaginary parts in the last dim."""

from __future__ import annotations

import numpy as np

from ingot.emit.onnx.builder import Builder
from ingot.emit.onnx.registry import rule
from ingot.ir.dim import floordiv
from ingot.ir.dtype import i64
from ingot.ir.graph import Node

_LAST = np.array([-1], np.int64)


def _paired(builder: Builder, *parts: str) -> str:
    pairs = [builder.Unsqueeze(part, _LAST) for part in parts]
    return pairs[0] if len(pairs) == 1 else builder.Concat(*pairs, axis=-1)


def _parts(builder: Builder, pairs: str) -> tuple[str, str]:
    real, imaginary = (builder.Gather(pairs, builder.number(i, i64), axis=-1) for i in (0, 1))
    return real, imaginary


@rule("fft")
def fft(builder: Builder, node: Node, real: str, imaginary: str) -> tuple[str, str]:
    pairs = _paired(builder, real, imaginary)
    return _parts(builder, builder.DFT(pairs, None, builder.number(node.axis, i64), inverse=node.inverse))


@rule("rfft")
def rfft(builder: Builder, node: Node, real: str) -> tuple[str, str]:
    return _parts(builder, builder.DFT(_paired(builder, real), None, builder.number(node.axis, i64), onesided=1))


@rule("irfft")
def irfft(builder: Builder, node: Node, real: str, imaginary: str) -> str:
    """Return the real part of the inverse of the half spectrum, zero-padded, doubled except its first and last."""
    type, length = builder.type(node, 0), builder.scalar_size(node.length)
    half = builder.scalar_size(floordiv(node.length, 2) + 1)
    bins = builder.Range(builder.number(0, i64), half, builder.number(1, i64))
    is_end = builder.Or(builder.Equal(bins, builder.number(0, i64)), builder.Equal(builder.Add(bins, bins), length))
    times = builder.Where(is_end, builder.number(1, type.dtype), builder.number(2, type.dtype))
    behind = type.rank - 1 - node.axis
    if behind:
        times = builder.Unsqueeze(times, np.arange(1, 1 + behind))
    pairs = _paired(builder, builder.Mul(real, times), builder.Mul(imaginary, times))
    return _parts(builder, builder.DFT(pairs, length, builder.number(node.axis, i64), inverse=1))[0]

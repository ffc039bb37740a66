"""Legalize Fourier transforms of lengths with prime factors that are too large for a pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.ir.dim import has_size
from ingot.lower.legalize.table import legalizes
from ingot.ops.define import Expansion


@legalizes("fft", again=True)
def _fft(g: Expansion, real: str, imaginary: str, *, axis: int, inverse: bool) -> tuple[str, ...] | None:
    """Compute a Fourier transform as a convolution: Bluestein, "A linear filtering approach to the computation of the
    discrete Fourier transform", 1968.

    exp(-2 pi i j k / n) is w[j] w[k] / w[k - j], with w[j] = exp(-pi i j j / n). The sum over j is a convolution,
    computed by transforms of a power-of-two length.
    """
    size = g.type(real).dims[axis]
    if has_size(size):
        return None
    if inverse:  # swapping real and imaginary parts turns a transform into its inverse
        transformed = g.add_all("fft", imaginary, real, axis=axis, inverse=False)
        return g.mul(transformed[1], 1.0 / size), g.mul(transformed[0], 1.0 / size)
    length = 1 << (2 * size - 2).bit_length()
    indices = np.arange(size)
    wave = np.exp(-1j * np.pi / size * (indices * indices % (2 * size)))
    filter = np.zeros(length, complex)
    filter[:size] = wave.conj()
    filter[length - size + 1 :] = wave.conj()[:0:-1]
    x = _padded(g, _product(g, (real, imaginary), wave, axis), axis, length - size)
    spectrum = g.add_all("fft", *x, axis=axis, inverse=False)
    spread = _product(g, spectrum, np.fft.fft(filter), axis)
    transformed = g.add_all("fft", *spread, axis=axis, inverse=True)
    return _product(g, (_first(g, transformed[0], axis, size), _first(g, transformed[1], axis, size)), wave, axis)


@legalizes("rfft")
def _rfft(g: Expansion, real: str, *, axis: int) -> tuple[str, ...] | None:
    """Return the first half of the complex transform."""
    size = g.type(real).dims[axis]
    if has_size(size):
        return None
    zeros = g.expand(g.constant(0.0, g.type(real).dtype), shape=g.type(real).dims)
    transformed = g.add_all("fft", real, zeros, axis=axis, inverse=False)
    return tuple(_first(g, part, axis, size // 2 + 1) for part in transformed)


@legalizes("irfft")
def _irfft(g: Expansion, real: str, imaginary: str, *, axis: int, length: int) -> tuple[str, ...] | None:
    """Apply the inverse to the full spectrum, whose second half is the reversed conjugate of the first."""
    if has_size(length):
        return None
    inner = (length + 1) // 2 - 1  # without the boundary terms, which are real
    between = _cut(g, imaginary, axis, 1, 1 + inner, 1)
    back = g.neg(_cut(g, between, axis, inner - 1, -1, -1))
    first = _padded_one(g, between, axis, 1, 1 - length % 2)
    full_spectrum = (
        g.concat(real, _cut(g, real, axis, inner, 0, -1), axis=axis),
        g.concat(first, back, axis=axis),
    )
    return (g.add_all("fft", *full_spectrum, axis=axis, inverse=True)[0],)


def _product(g: Expansion, x: Sequence[str], factors: np.ndarray, axis: int) -> tuple[str, str]:
    """Multiply complex numbers by constant complex factors along an axis."""
    dtype, rank = g.type(x[0]).dtype, g.type(x[0]).rank
    real, imaginary = (
        g.constant(part.reshape(-1, *[1] * (rank - 1 - axis)), dtype) for part in (factors.real, factors.imag)
    )
    return g.sub(g.mul(x[0], real), g.mul(x[1], imaginary)), g.add(g.mul(x[0], imaginary), g.mul(x[1], real))


def _padded(g: Expansion, x: tuple[str, str], axis: int, count: int) -> list[str]:
    return [_padded_one(g, part, axis, 0, count) for part in x]


def _padded_one(g: Expansion, x: str, axis: int, low: int, high: int) -> str:
    """Pad x with `low` zeros before and `high` zeros after, along an axis."""
    rank = g.type(x).rank
    lows, highs = (tuple(count if i == axis else 0 for i in range(rank)) for count in (low, high))
    return g.pad(x, low=lows, high=highs, value=0.0)


def _first(g: Expansion, x: str, axis: int, count: int) -> str:
    return _cut(g, x, axis, 0, count, 1)


def _cut(g: Expansion, x: str, axis: int, start: int, stop: int, step: int) -> str:
    dims = g.type(x).dims
    starts = tuple(start if i == axis else 0 for i in range(len(dims)))
    stops = tuple(stop if i == axis else dim for i, dim in enumerate(dims))
    return g.slice(x, starts=starts, stops=stops, steps=tuple(step if i == axis else 1 for i in range(len(dims))))

"""Special functions, element by element. They are computed in float64 and rounded once, on the reference alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ingot.ops.define import op, same_as, sample

_SAMPLES = (sample("x[2,5,7]"), sample("x[]"), sample("x[0,3]"), sample("x[67]"))
_SERIES_END = 40.0  # where the asymptotic series of a Bessel function is exact to the last bits of a float64
_TERMS = 120
_LGAMMA_END = 2.5e305  # beyond it the value is no float64
_DIGAMMA_START = 10.0  # where the asymptotic series of digamma is
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # B_2k / 2k


def special(name: str, function: Callable[[np.ndarray], np.ndarray], doc: str, domain: tuple[float, float]) -> None:
    """Declares a function of float64 as an op of one operand."""

    def reference(x):
        with np.errstate(all="ignore"):
            return function(np.asarray(x, np.float64)).astype(x.dtype)

    reference.__doc__ = doc
    op(name=name, infer=same_as(0, "f", name), samples=_SAMPLES, domain=domain)(reference)


def _each(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.fromiter(map(function, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _lgamma(x: float) -> float:
    return math.inf if (x <= 0 and x.is_integer()) or x > _LGAMMA_END else math.lgamma(x)


def _digamma(x: np.ndarray) -> np.ndarray:
    """By reflection below 0, steps of one up to 10 and the asymptotic series (Abramowitz and Stegun, 6.3)."""
    mirrored = np.where(x < 0, 1 - x, x)
    shift = np.zeros_like(mirrored)
    for _ in range(int(_DIGAMMA_START)):
        is_small = mirrored < _DIGAMMA_START
        shift -= np.where(is_small, 1 / mirrored, 0)
        mirrored = np.where(is_small, mirrored + 1, mirrored)
    square = 1 / (mirrored * mirrored)
    series = np.zeros_like(square)
    for factor in reversed(_DIGAMMA):
        series = (series + factor) * square
    value = np.log(mirrored) - 0.5 / mirrored - series + shift
    value = np.where(x < 0, value - np.pi / np.tan(np.pi * (x - np.round(x))), value)
    value = np.where((x < 0) & (x == np.round(x)), np.nan, value)
    return np.where(x == 0, np.copysign(np.inf, -x), value)


def _erfinv(x: np.ndarray) -> np.ndarray:
    """Winitzki's approximation (2008) and Newton's steps on erf, on 1 - erf near the ends."""
    inside = np.where(np.abs(x) < 1, np.abs(x), 0)
    logarithm = np.log1p(-inside * inside)
    middle = 2 / (np.pi * 0.147) + logarithm / 2
    y = np.sqrt(np.sqrt(middle * middle - logarithm / 0.147) - middle)
    for _ in range(3):
        error = np.where(y < 1, _each(math.erf)(y) - inside, (1 - inside) - _each(math.erfc)(y))
        slope = 2 / math.sqrt(math.pi) * np.exp(-y * y)
        step = error / slope
        y = y - step / (1 + y * step)  # Halley's
    y = np.copysign(y, x)
    return np.where(np.abs(x) < 1, y, np.where(np.abs(x) == 1, np.copysign(np.inf, x), np.nan))


def _bessel_i(order: int, *, is_scaled: bool = False) -> Callable[[np.ndarray], np.ndarray]:
    """The modified Bessel function: its power series, or its asymptotic one (Abramowitz and Stegun, 9.6.10, 9.7.1).

    is_scaled: times exp(-|x|).
    """

    def function(x: np.ndarray) -> np.ndarray:
        size = np.abs(x)
        half = np.minimum(size, _SERIES_END) / 2
        term = half**order
        total = term.copy()
        for k in range(1, _TERMS):
            term = term * half * half / (k * (k + order))
            total += term
        far = np.maximum(size, _SERIES_END)
        part = np.ones_like(far)
        series = part.copy()
        for k in range(1, 25):
            part = part * -(4 * order * order - (2 * k - 1) ** 2) / (8 * k * far)
            series += part
        total = total * np.exp(-np.minimum(size, _SERIES_END)) if is_scaled else total
        large = (1 if is_scaled else np.exp(far)) / (np.sqrt(far) * math.sqrt(2 * np.pi)) * series
        value = np.where(size <= _SERIES_END, total, large)
        value = np.where(np.isinf(size), 0 if is_scaled else np.inf, np.where(np.isnan(x), np.nan, value))
        return np.copysign(value, x) if order % 2 else value

    return function


special("erfc", _each(math.erfc), "1 - erf(x), with all its digits where it is small.", (-5.0, 5.0))
special("erfinv", _erfinv, "The inverse of erf: infinite at -1 and 1, NaN beyond.", (-0.99, 0.99))
special("lgamma", _each(_lgamma), "The logarithm of |gamma(x)|: inf at 0 and negative integers.", (0.1, 30.0))
special("digamma", _digamma, "The derivative of lgamma: NaN at negative integers, infinite at 0.", (0.1, 30.0))
special("i0", _bessel_i(0), "The modified Bessel function of the first kind of order 0.", (-10.0, 10.0))
special("i1", _bessel_i(1), "The modified Bessel function of the first kind of order 1.", (-10.0, 10.0))
special("i0e", _bessel_i(0, is_scaled=True), "exp(-|x|) times i0(x).", (-60.0, 60.0))
special("i1e", _bessel_i(1, is_scaled=True), "exp(-|x|) times i1(x).", (-60.0, 60.0))

"""Special functions, element by element. They are computed in float64 and rounded once, only by the reference."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot.ops.define import Sample, broadcast, op, same_as, sample

_SAMPLES = (sample("x[2,5,7]"), sample("x[]"), sample("x[0,3]"), sample("x[67]"))
_log_gamma_END = 2.5e305  # beyond it the value exceeds float64
_ERFC_FAR = 7.0  # from here the asymptotic series of erfc is exact to the last bits
_ERFC_TERMS = 40
_DIGAMMA_START = 10.0  # from here the asymptotic series of digamma is exact
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # B_2k / 2k


def special(name: str, function: Callable[[np.ndarray], np.ndarray], doc: str, domain: tuple[float, float]) -> None:
    """Declare a function of float64 as an op of one operand."""

    def reference(x):
        with np.errstate(all="ignore"):
            return function(np.asarray(x, np.float64)).astype(x.dtype)

    reference.__doc__ = doc
    op(name=name, infer=same_as(0, "f", name), acts_on="element", samples=_SAMPLES, domain=domain)(reference)


def special_of_two(
    name: str, samples: Sequence[Sample], domain: tuple[float, float]
) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Declare a function of two float64 arrays of one shape as an op of two operands, which broadcast."""

    def declare(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        @functools.wraps(function)
        def reference(x: np.ndarray, y: np.ndarray, **attributes: Any) -> np.ndarray:
            wide = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
            with np.errstate(all="ignore"):
                return function(*wide, **attributes).astype(x.dtype)

        infer = broadcast(name, kinds="f")
        return op(name=name, infer=infer, acts_on="element", samples=samples, domain=domain)(reference)

    return declare


def _each(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.fromiter(map(function, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _lgamma(x: float) -> float:
    return math.inf if (x <= 0 and x.is_integer()) or x > _log_gamma_END else math.lgamma(x)


log_gamma, erfc = _each(_lgamma), _each(math.erfc)


def _digamma(x: np.ndarray) -> np.ndarray:
    """Use reflection below 0, the recurrence up to 10, and the asymptotic series (Abramowitz and Stegun, 6.3)."""
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
    """Use Winitzki's approximation (2008) and Halley steps on erf, near the ends on 1 - erf."""
    inside = np.where(np.abs(x) < 1, np.abs(x), 0)
    logarithm = np.log1p(-inside * inside)
    middle = 2 / (np.pi * 0.147) + logarithm / 2
    y = np.sqrt(np.sqrt(middle * middle - logarithm / 0.147) - middle)
    for _ in range(3):
        error = np.where(y < 1, _each(math.erf)(y) - inside, (1 - inside) - erfc(y))
        slope = 2 / math.sqrt(math.pi) * np.exp(-y * y)
        step = error / slope
        y = y - step / (1 + y * step)  # Halley's method
    y = np.copysign(y, x)
    return np.where(np.abs(x) < 1, y, np.where(np.abs(x) == 1, np.copysign(np.inf, x), np.nan))


def _erfcx(x: np.ndarray) -> np.ndarray:
    """Use the product itself, or the asymptotic series of erfc (DLMF 7.12.1)."""
    far = np.maximum(x, _ERFC_FAR)
    term = np.ones_like(far)
    series = term.copy()
    for k in range(1, _ERFC_TERMS):
        term = term * -(2 * k - 1) / (2 * far * far)
        series += term
    value = np.exp(x * x) * erfc(x)
    return np.where(x < _ERFC_FAR, value, series / (far * math.sqrt(np.pi)))


def _ndtri(p: np.ndarray) -> np.ndarray:
    """Use erfinv in the middle; in a tail, Newton steps on the logarithm of erfc, which is concave, so that the steps
    approach the root from one side.
    """
    tail = np.clip(np.minimum(p, 1 - p), 0, 0.25)
    y = np.sqrt(-2 * np.log(2 * tail))
    for _ in range(8):
        scaled = _erfcx(y / math.sqrt(2))
        y = y + (np.log(scaled / (2 * tail)) - y * y / 2) * scaled / math.sqrt(2 / np.pi)
    middle = math.sqrt(2) * _erfinv(2 * p - 1)
    value = np.where(np.abs(p - 0.5) < 0.25, middle, np.copysign(y, p - 0.5))
    return np.where((p == 0) | (p == 1), np.copysign(np.inf, p - 0.5), np.where((p > 0) & (p < 1), value, np.nan))


special("erfc", erfc, "1 - erf(x), with all its digits where it is small.", (-5.0, 5.0))
special("erfinv", _erfinv, "The inverse of erf: infinite at -1 and 1, NaN beyond.", (-0.99, 0.99))
special("lgamma", log_gamma, "The logarithm of |gamma(x)|: inf at 0 and negative integers.", (0.1, 30.0))
special("digamma", _digamma, "The derivative of lgamma: NaN at negative integers, infinite at 0.", (0.1, 30.0))
special("erfcx", _erfcx, "exp(x^2) times erfc(x), without overflow or underflow above 0.", (-3.0, 30.0))
special("ndtri", _ndtri, "The inverse of ndtr, the normal distribution function; NaN outside of 0..1.", (0.0, 1.0))

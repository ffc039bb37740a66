"""Bessel and Airy functions, element by element: computed in float64, rounded once, only by the reference.

Three methods cover the real axis: a power series near 0, an integral by the trapezoidal rule, whose error decreases
exponentially with the number of nodes (Trefethen and Weideman, "The Exponentially Convergent Trapezoidal Rule", 2014),
and Hankel's asymptotic series for large arguments. DLMF is the Digital Library of Mathematical Functions of NIST.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.graph import TensorType
from ingot.ops.define import expect_kind, op, sample
from ingot.ops.special import special

_NEAR = 2.0  # power series lose no digits up to here
_TERMS = 25  # of a power series up to _NEAR
_I_TERMS = 120  # of the power series of I, whose terms are all positive
_J_FAR = 25.0  # from here asymptotic series are exact to the last bits: for J and Y,
_I_FAR = _K_FAR = 40.0  # and for I and K
_HANKEL_TERMS = 35
_NODES = 72  # of a quarter circle: the aliasing error is a function of order 144, below 1e-17 up to 25
_NEUMANN = 35  # terms of Neumann's expansion of Y; the next is of order 70 or more
_STEP = 0.1  # of the integral of K
_K_NODES = 42
_AIRY_FAR = -9.0
_AIRY_STEP = 0.07
_AIRY_NODES = 130


def hankel(order: float, x: np.ndarray, factor: complex) -> np.ndarray:
    """Sum a_k(order) (factor / x)^k, DLMF 10.17.1, the series of all of Hankel's expansions."""
    part = np.ones(x.shape, np.result_type(factor, np.float64))
    total = part.copy()
    for k in range(1, _HANKEL_TERMS):
        part = part * factor * (4 * order * order - (2 * k - 1) ** 2) / (8 * k * x)
        total += part
    return total


def power_series(order: int, x: np.ndarray, sign: int, *, terms: int = _TERMS) -> np.ndarray:
    """Compute J (sign -1) or I (sign 1) of an order, DLMF 10.2.2 and 10.25.2."""
    half = x / 2
    term = half**order / math.factorial(order)
    total = term.copy()
    for k in range(1, terms):
        term = term * half * half * sign / (k * (k + order))
        total += term
    return total


def _bessel_sum(x: np.ndarray, order: int, factors: Sequence[float]) -> np.ndarray:
    """Sum factors[k] J_(2k + order)(x) by Bessel's integral (DLMF 10.9.2). order: 0 or 1."""
    total = np.zeros_like(x)
    for node in range(_NODES):
        angle = math.pi * (node + 0.5) / _NODES
        wave, function = (np.sin, math.sin) if order else (np.cos, math.cos)
        weight = sum(factor * function((2 * k + order) * angle) for k, factor in enumerate(factors))
        total += weight * wave(x * math.sin(angle))
    return total / _NODES


def _j(x: np.ndarray, order: int) -> np.ndarray:
    middle = _bessel_sum(np.clip(x, _NEAR, _J_FAR), order, [1.0])
    return np.where(x <= _NEAR, power_series(order, np.minimum(x, _NEAR), -1), middle)


def _y(x: np.ndarray, order: int) -> np.ndarray:
    """Compute Y by Neumann's expansion (Abramowitz and Stegun, 9.1.88)."""
    x = np.minimum(x, _J_FAR)
    factors = [0.0] + [(-1) ** k * (order + 2 * k) / (k * (k + order)) for k in range(1, _NEUMANN)]
    value = (np.log(x / 2) + np.euler_gamma - order) * _j(x, order) - _bessel_sum(x, order, factors)
    return 2 / np.pi * (value - _j(x, 0) / x if order else value)


def _k(x: np.ndarray, order: int) -> np.ndarray:
    """Compute exp(x) times K: DLMF 10.31.1 and 10.31.2 near 0, else the integral of 10.32.9."""
    near = np.minimum(x, _NEAR)
    square, digamma = near * near / 4, -2 * np.euler_gamma + order
    term = np.ones_like(near)
    total = term * digamma
    for k in range(1, _TERMS):
        term = term * square / (k * (k + order))
        digamma += 1 / k + 1 / (k + order)
        total += term * digamma
    logarithm = np.log(near / 2) * power_series(order, near, 1)
    series = 1 / near + logarithm - near / 4 * total if order else total / 2 - logarithm
    middle, value = np.clip(x, _NEAR, _K_FAR), np.zeros_like(near)
    for node in range(_K_NODES):
        t = node * _STEP
        value += (0.5 if node == 0 else 1.0) * np.exp(-middle * (math.cosh(t) - 1)) * math.cosh(order * t)
    return np.where(x <= _NEAR, series * np.exp(near), value * _STEP)


def _hankel_function(x: np.ndarray, order: int) -> np.ndarray:
    """Compute J + iY for large x, DLMF 10.17.5."""
    far = np.maximum(x, _J_FAR)
    phase = np.exp(1j * (far - np.pi * (order / 2 + 0.25)))
    return np.sqrt(2 / (np.pi * far)) * phase * hankel(order, far, 1j)


def _infer_bessel(x: TensorType, *, kind: str, order: int, scaled: bool) -> TensorType:
    expect_kind("bessel", x, "f")
    if order not in (0, 1) or (scaled and kind != "k"):
        raise ShapeError(
            f"bessel: bad function, got {kind}{order}, scaled={scaled}, expected order 0 or 1, of k scaled"
        )
    return x


@op(
    infer=_infer_bessel,
    acts_on="element",
    samples=[
        *(sample("x>-30<30[2,5,7]", kind="j", order=order) for order in (0, 1)),
        *(sample("x[2,5,7]", kind=kind, order=order) for kind in "yk" for order in (0, 1)),
        sample("x[]", kind="k", order=1, scaled=True),
        sample("x[67]", kind="k", order=0, scaled=True),
        sample("x[0,3]", kind="j", order=0),
    ],
    domain=(0.1, 60.0),
)
def bessel(x, *, kind: Literal["j", "k", "y"], order: int, scaled: bool = False):
    """The Bessel function J, Y or K of order 0 or 1; a scaled K is multiplied by exp(x).

    Y is -inf and K inf at 0, and both are NaN below 0. At infinity each is its limit, 0.
    """
    with np.errstate(all="ignore"):
        wide = np.asarray(x, np.float64)
        size = np.abs(wide)
        if kind == "k":
            far = hankel(order, np.maximum(size, _K_FAR), 1.0) * np.sqrt(np.pi / (2 * size))
            value = np.where(size <= _K_FAR, _k(size, order), far) * (1 if scaled else np.exp(-size))
        else:
            oscillation, near = _hankel_function(size, order), (_j if kind == "j" else _y)(size, order)
            value = np.where(size <= _J_FAR, near, oscillation.real if kind == "j" else oscillation.imag)
        value = np.where(np.isinf(size), 0, value)
        if kind == "j":
            value = np.sign(wide) * value if order else value
        else:
            value = np.where(wide < 0, np.nan, np.where(size == 0, -np.inf if kind == "y" else np.inf, value))
        return np.where(np.isnan(wide), np.nan, value).astype(x.dtype)


def _bessel_i(order: int, *, scaled: bool = False) -> Callable[[np.ndarray], np.ndarray]:
    """Return the modified Bessel function I: its power series, or Hankel's (DLMF 10.40.1). scaled: times exp(-|x|)."""

    def function(x: np.ndarray) -> np.ndarray:
        size = np.abs(x)
        near, far = np.minimum(size, _I_FAR), np.maximum(size, _I_FAR)
        total = power_series(order, near, 1, terms=_I_TERMS) * (np.exp(-near) if scaled else 1)
        large = (1 if scaled else np.exp(far)) / np.sqrt(2 * np.pi * far) * hankel(order, far, -1.0)
        value = np.where(size <= _I_FAR, total, large)
        value = np.where(np.isinf(size), 0 if scaled else np.inf, np.where(np.isnan(x), np.nan, value))
        return np.copysign(value, x) if order else value

    return function


def _airy(x: np.ndarray) -> np.ndarray:
    """Integrate over a line above the real axis, through the saddle point of exp(i t^3 / 3 + i x t) (DLMF 9.5.4); far
    below 0, use Hankel's expansion (DLMF 9.7.9).
    """
    near = np.maximum(x, _AIRY_FAR)
    height = np.sqrt(np.maximum(near, 0.25))
    total = np.full_like(near, 0.5)
    for node in range(1, _AIRY_NODES):
        t = node * _AIRY_STEP
        total += np.exp(-height * t * t) * np.cos(t * (t * t / 3 + near - height * height))
    value = np.exp(height * (height * height / 3 - near)) / np.pi * total * _AIRY_STEP
    far = np.maximum(-x, -_AIRY_FAR)
    zeta = far * np.sqrt(far) * 2 / 3
    oscillation = np.exp(1j * (np.pi / 4 - zeta)) * hankel(1 / 3, zeta, -1j)
    value = np.where(x < _AIRY_FAR, oscillation.real / np.sqrt(np.pi * np.sqrt(far)), value)
    return np.where(np.isinf(x), 0, np.where(np.isnan(x), np.nan, value))


special("airy_ai", _airy, "The Airy function Ai, oscillating below 0 and decreasing above.", (-20.0, 20.0))
special("i0", _bessel_i(0), "The modified Bessel function of the first kind of order 0.", (-10.0, 10.0))
special("i1", _bessel_i(1), "The modified Bessel function of the first kind of order 1.", (-10.0, 10.0))
special("i0e", _bessel_i(0, scaled=True), "exp(-|x|) times i0(x).", (-60.0, 60.0))
special("i1e", _bessel_i(1, scaled=True), "exp(-|x|) times i1(x).", (-60.0, 60.0))

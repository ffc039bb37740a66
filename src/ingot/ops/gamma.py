"""Incomplete gamma functions and the Hurwitz zeta function: computed in float64, rounded once, only by the
reference.
"""

from __future__ import annotations

import math

import numpy as np

from ingot.ops.define import sample
from ingot.ops.special import erfc, log_gamma, special_of_two

_TERMS = 20  # summed directly before Euler and Maclaurin's formula
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B_2k
_UNIFORM = 1e5  # for larger a the uniform expansion is exact to 1e-10, and the others take hundreds of iterations
_STEPS = 20_000  # more than either needs up to _UNIFORM
_EPSILON = 2.0**-53
_TINY = 1e-300


def _zeta(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Compute zeta for positive q: sum the first terms, and add Euler and Maclaurin's formula for the others (DLMF
    2.10.1).
    """
    total = sum((q + k) ** -s for k in range(_TERMS))
    end = q + _TERMS
    power = end**-s
    total = total + power * (end / (s - 1) + 0.5)
    factor = s / end
    for k, number in enumerate(_BERNOULLI, 1):
        total = total + power * factor * number / math.factorial(2 * k)
        factor = factor * (s + 2 * k - 1) * (s + 2 * k) / (end * end)
    return total


@special_of_two(
    "zeta",
    [
        sample("s>1.1<9[2,5,7] q>0.1<30[7]"),
        sample("s>1.1<9[5,1] q>0.1<30[67]"),
        sample("s[] q[]"),
        sample("s[0,3] q[1]"),
    ],
    domain=(1.1, 9.0),
)
def zeta(s, q):
    """The Hurwitz zeta function, the sum of (q + k)^-s over k from 0: inf at s = 1, NaN below; broadcast.

    At a negative q it is a number if s is an integer, and inf if q is an integer.
    """
    part = q - np.floor(q)
    above, mirrored = np.where(q > 0, q, part), np.where(q > 0, 1, 1 - part)
    sign = np.where(np.mod(s, 2) == 0, 1, -1)
    # The terms below 0 are, except for their sign, the terms of the mirrored series that 1 - q lacks.
    below = sign * (_zeta(s, mirrored) - _zeta(s, np.where(q > 0, 1, 1 - q)))
    value = _zeta(s, above) + np.where(q > 0, 0, below)
    value = np.where((q <= 0) & (s != np.floor(s)), np.nan, value)
    value = np.where((q <= 0) & (q == np.floor(q)), np.inf, value)
    value = np.where(s == 1, np.inf, np.where(s > 1, value, np.nan))
    return np.where(np.isnan(q), np.nan, value)


def _lower_series(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Sum x^k / ((a + 1) ... (a + k)), the series of P (DLMF 8.11.4)."""
    term = np.ones_like(x)
    total = term.copy()
    for k in range(1, _STEPS):
        if not (term > _EPSILON * total).any():
            break
        term = term * x / (a + k)
        total += term
    return total


def _upper_fraction(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Evaluate Legendre's continued fraction of Q (DLMF 8.9.2) by Lentz's method, as modified by Thompson and
    Barnett.
    """
    step = x + 1 - a
    c, d = np.full_like(x, 1 / _TINY), 1 / step
    value, change = d.copy(), np.zeros_like(x)
    for k in range(1, _STEPS):
        if not (np.abs(change - 1) > 4 * _EPSILON).any():
            break
        factor = -k * (k - a)
        step = step + 2
        d = factor * d + step
        c = step + factor / c
        d, c = (1 / np.where(np.abs(d) < _TINY, _TINY, d), np.where(np.abs(c) < _TINY, _TINY, c))
        change = c * d
        value = value * change
    return value


def _uniform(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Compute Q for large a: Temme's uniform expansion, with its first term (DLMF 8.12)."""
    excess = (x - a) / a
    eta = np.copysign(np.sqrt(2 * np.maximum(excess - np.log1p(excess), 0)), excess)
    near = np.abs(eta) < 1e-3
    first = np.where(near, -1 / 3 + eta / 12, 1 / np.where(near, 1, excess) - 1 / np.where(near, 1, eta))
    rest = np.exp(-a * eta * eta / 2) / np.sqrt(2 * np.pi * a) * first
    return erfc(eta * np.sqrt(a / 2)) / 2 + rest


@special_of_two(
    "igamma",
    [
        *(sample("a[2,5,7] x[7]", upper=upper) for upper in (False, True)),
        sample("a>20<300[5,1] x>20<300[67]"),
        sample("a[] x[3]"),
        sample("a[] x[]"),
        sample("a[0,3] x[1]", upper=True),
    ],
    domain=(0.1, 9.0),
)
def igamma(a, x, *, upper: bool = False):
    """The regularized incomplete gamma function P(a, x), or Q = 1 - P (`upper`); NaN below 0, broadcast."""
    known = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    is_large = known & (a > _UNIFORM)
    is_series, is_fraction = known & ~is_large & (x < a + 1), known & ~is_large & (x >= a + 1)
    p = np.where((a >= 0) & (x >= 0), np.where((x == 0) | np.isinf(a), 0.0, 1.0), np.nan)
    p[((a == 0) & (x == 0)) | (np.isinf(a) & np.isinf(x))] = np.nan
    q = np.array(1 - p)
    q[is_large] = _uniform(a[is_large], x[is_large])
    p[is_large] = 1 - q[is_large]
    for chosen, function, other in ((is_series, _lower_series, (p, q)), (is_fraction, _upper_fraction, (q, p))):
        own, x_own = a[chosen], x[chosen]
        log_norm = log_gamma(own + 1) if function is _lower_series else log_gamma(own)
        found = np.exp(own * np.log(x_own) - x_own - log_norm) * function(own, x_own)
        other[0][chosen], other[1][chosen] = found, 1 - found
    return q if upper else p

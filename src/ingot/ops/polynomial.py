"""Orthogonal polynomials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from ingot.errors import InputError
from ingot.ops.define import sample
from ingot.ops.special import special_of_two

MAX_DEGREE = 2**16  # of an orthogonal polynomial, the number of steps of its recurrence

Family = Literal[
    "chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w", "hermite", "hermite_e", "laguerre", "legendre"
]
Step = Callable[[np.ndarray, int, np.ndarray, np.ndarray], np.ndarray]

# For each family: the polynomial of degree 1, and the next one, from x, the degree k and the values of degree k and k -
# 1.
_FAMILIES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Step]] = {
    **{
        f"chebyshev_{kind}": (first, lambda x, k, p, before: 2 * x * p - before)
        for kind, first in {
            "t": lambda x: x, "u": lambda x: 2 * x, "v": lambda x: 2 * x - 1, "w": lambda x: 2 * x + 1,
        }.items()
    },
    "hermite": (lambda x: 2 * x, lambda x, k, p, before: 2 * (x * p - k * before)),
    "hermite_e": (lambda x: x, lambda x, k, p, before: x * p - k * before),
    "laguerre": (lambda x: 1 - x, lambda x, k, p, before: ((2 * k + 1 - x) * p - k * before) / (k + 1)),
    "legendre": (lambda x: x, lambda x, k, p, before: ((2 * k + 1) * x * p - k * before) / (k + 1)),
}  # fmt: skip
assert _FAMILIES.keys() == set(get_args(Family))


@special_of_two(
    "polynomial",
    [
        *(sample("x[3,67] n>0<9[67]", family=family) for family in _FAMILIES),
        sample("x[] n>-2<3[7]", family="legendre"),
        sample("x[5,1] n<0[]", family="hermite"),
        sample("x[] n<3[]", family="chebyshev_w"),
        sample("x[0,3] n[1]", family="laguerre"),
    ],
    domain=(-1.0, 1.0),
)
def polynomial(x, n, *, family: Family):
    """The orthogonal polynomial of degree trunc(n) at x, broadcast, 0 below degree 0: by its recurrence in
    float64.

    DLMF 18.9.1. Raises InputError for a degree that is NaN or above 2**16.
    """
    degree = np.trunc(n)
    if not (degree <= MAX_DEGREE).all():
        raise InputError(f"polynomial: degree out of range, got {degree.max()}, expected up to {MAX_DEGREE}")
    first, step = _FAMILIES[family]
    before, value = np.ones_like(x), first(x)
    result = np.where(degree == 0, before, np.where(degree == 1, value, 0))
    for k in range(1, int(degree.max(initial=0))):
        before, value = value, step(x, k, value, before)
        result = np.where(degree == k + 1, value, result)
    return result

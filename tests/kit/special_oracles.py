"""Special functions for the oracles of ops: torch's, and mpmath's where torch's have fewer digits than float64."""

import mpmath
import numpy as np
import torch


def _each(function, *operands):
    arrays = np.broadcast_arrays(*(x.numpy() for x in operands))
    values = [float(function(*map(float, each))) for each in zip(*(x.ravel() for x in arrays), strict=True)]
    return torch.tensor(values, dtype=torch.float64).reshape(arrays[0].shape)


def bessel(x, *, kind, order, scaled=False):
    function = {"j": mpmath.besselj, "y": mpmath.bessely, "k": mpmath.besselk}[kind]
    return _each(lambda x: function(order, x) * (mpmath.exp(x) if scaled else 1), x)


def igamma(a, x, *, upper=False):
    return _each(lambda a, x: mpmath.gammainc(a, *((x, mpmath.inf) if upper else (0, x)), regularized=True), a, x)


def polynomial(x, n, *, family):
    family = family.replace("chebyshev", "chebyshev_polynomial")
    names = {"hermite": "h", "hermite_e": "he", "laguerre": "l", "legendre": "p"}
    named = f"{family.removesuffix('_e')}_polynomial_{names[family]}" if family in names else family
    return getattr(torch.special, named)(x, n)


ORACLE = {
    "airy_ai": lambda x: _each(mpmath.airyai, x),
    "bessel": bessel,
    "igamma": igamma,
    "polynomial": polynomial,
    **{name: getattr(torch.special, name) for name in ("erfc", "erfinv", "erfcx", "i0", "i0e", "i1", "i1e", "ndtri")},
    **{name: getattr(torch.special, name) for name in ("digamma", "zeta")},
    "lgamma": torch.lgamma,
}

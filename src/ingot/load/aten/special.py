"""Rules for special functions and orthogonal polynomials."""

from __future__ import annotations

import math
from typing import Any

from ingot.load.aten.builder import AtenBuilder, Number, Tensor
from ingot.load.aten.elementwise import floating
from ingot.load.aten.registry import Rule, aten

_LAST_FACTORIAL = 170  # the last that a float64 holds

for _name in ("erfc", "erfinv", "lgamma", "digamma", "i0"):
    aten(f"{_name}.default")(floating(_name))
for _name in ("airy_ai", "erfcx", "i0e", "i1", "i1e", "ndtri"):
    aten(f"special_{_name}.default")(floating(_name))
for _order in (0, 1):
    aten(f"special_modified_bessel_i{_order}.default")(floating(f"i{_order}"))
    aten(f"special_bessel_j{_order}.default")(floating("bessel", kind="j", order=_order))
    aten(f"special_bessel_y{_order}.default")(floating("bessel", kind="y", order=_order))
    aten(f"special_modified_bessel_k{_order}.default")(floating("bessel", kind="k", order=_order))
    aten(f"special_scaled_modified_bessel_k{_order}.default")(floating("bessel", kind="k", order=_order, scaled=True))


@aten("special_spherical_bessel_j0.default")
def spherical_bessel(b: AtenBuilder, x: Tensor) -> Tensor:
    """Compute sin(x) / x: 1 at 0, 0 at infinity."""
    (x,) = b.promote(x, floating=True)
    zero, one = (b.scalar(number, b.dtype(x)) for number in (0, 1))
    wave = b.add("div", b.add("sin", x), x)
    return b.add("where", b.add("equal", x, zero), one, b.add("where", b.add("isinf", x), zero, wave))


def _of_two(op: str, **attributes: Any) -> Rule:
    def rule(b: AtenBuilder, x: Tensor | Number, y: Tensor | Number) -> Tensor:
        return b.add(op, *b.promote(x, y, floating=True), **attributes)

    return rule


aten("igamma.default")(_of_two("igamma"))
aten("igammac.default")(_of_two("igamma", upper=True))
aten("special_zeta.default", "special_zeta.self_scalar", "special_zeta.other_scalar")(_of_two("zeta"))
for _name, _family in {
    **{f"chebyshev_polynomial_{kind}": f"chebyshev_{kind}" for kind in "tuvw"},
    "hermite_polynomial_h": "hermite",
    "hermite_polynomial_he": "hermite_e",
    "laguerre_polynomial_l": "laguerre",
    "legendre_polynomial_p": "legendre",
}.items():
    aten(*(f"special_{_name}.{form}" for form in ("default", "x_scalar", "n_scalar")))(
        _of_two("polynomial", family=_family)
    )


def _shifted(kind: str) -> Rule:
    def rule(b: AtenBuilder, x: Tensor | Number, n: Tensor | Number) -> Tensor:
        """Evaluate the polynomial at 2x - 1."""
        x, n = b.promote(x, n, floating=True)
        two, one = (b.scalar(number, b.dtype(x)) for number in (2, 1))
        return b.add("polynomial", b.add("sub", b.add("mul", x, two), one), n, family=f"chebyshev_{kind}")

    return rule


for _kind in "tuvw":
    aten(*(f"special_shifted_chebyshev_polynomial_{_kind}.{form}" for form in ("default", "x_scalar", "n_scalar")))(
        _shifted(_kind)
    )


@aten("polygamma.default")
def polygamma(b: AtenBuilder, n: int, x: Tensor) -> Tensor:
    """Compute derivative n of digamma: (-1)^(n + 1) n! zeta(n + 1, x), DLMF 5.15.1 and 25.11.12."""
    (x,) = b.promote(x, floating=True)
    if n == 0:
        return b.add("digamma", x)
    sign = 1 if n % 2 else -1
    factor = float(sign * math.factorial(n)) if n <= _LAST_FACTORIAL else sign * math.inf
    return b.add("mul", b.add("zeta", b.scalar(n + 1, b.dtype(x)), x), b.scalar(factor, b.dtype(x)))

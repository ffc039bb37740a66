"""Cases as in `aten_cases`: Bessel functions, incomplete gamma functions, zeta, and orthogonal polynomials."""

import torch
from torch import special

from aten_cases import case, floats

NAN, INF = float("nan"), float("inf")
BESSEL = ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")
MODIFIED = (
    "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1",
    "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
)  # fmt: skip


@case(floats(41, low=0.05, high=45.0), floats(41, low=0.05, high=15.0), torch.tensor([0.0, -0.0, -3.5, NAN, INF]))
def bessel_functions(wide, x, ends):
    results = {name: getattr(special, name)(wide) for name in BESSEL}
    results |= {name: getattr(special, name)(x) for name in MODIFIED}
    for name in (*BESSEL, *MODIFIED, "erfcx", "spherical_bessel_j0"):
        # At infinity torch's J, Y and I are NaN, by an infinity times 0, and Ingot's are their limits.
        has_limit = name in BESSEL or "bessel_i" in name
        results[f"{name}_ends"] = getattr(special, name)(ends[:4] if has_limit else ends)
    for name in ("bessel_j0", "bessel_j1", "airy_ai", "spherical_bessel_j0"):
        results[f"{name}_below"] = getattr(special, name)(x - 10)
    return results | {"erfcx": special.erfcx(x - 5), "of_integers": special.bessel_j0(torch.arange(5))}


@case(floats(5, 1, low=0.1, high=9.0), floats(7, low=0.1, high=20.0), floats(6, low=1.1, high=8.0))
def gamma_functions(a, x, s):
    huge = a.double() * 1e5  # in float32 torch's own error is above the tolerance
    ends = torch.tensor([0.0, 0.0, 1.0, 1.0, INF, -1.0]), torch.tensor([0.0, 2.0, 0.0, INF, 2.0, 1.0])
    results = {f"polygamma_{n}": torch.polygamma(n, x) for n in range(5)}
    return results | {
        "lower": torch.igamma(a, x), "upper": torch.igammac(a, x),
        "lower_large": torch.igamma(a * 30, x * 20), "upper_large": torch.igammac(a * 30, x * 20),
        "lower_huge": torch.igamma(huge, huge + 30 * x),
        "lower_ends": torch.igamma(*ends), "upper_ends": torch.igammac(*ends),
        "zeta": special.zeta(s, a), "zeta_of": special.zeta(s, 2.5), "zeta_from": special.zeta(3.0, x),
        "zeta_ends": special.zeta(torch.tensor([1.0, 0.5, 2.0, 3.0, 2.5]), torch.tensor([2.0, 2.0, -1.5, -2.0, -0.5])),
        "polygamma_below": torch.polygamma(2, -x),
        "ndtri": special.ndtri(x / 20), "ndtri_ends": special.ndtri(torch.tensor([0.0, 1.0, -1.0, 2.0, 1e-30, NAN])),
    }  # fmt: skip


@case(floats(7, low=-1.0, high=1.0), torch.tensor([[-1.0], [0.0], [1.0], [2.7], [5.0], [9.0]]))
def polynomials(x, n):
    names = [f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"]
    names += ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]
    results = {}
    for name in names:
        polynomial = getattr(special, name)
        where = (x + 1) / 2 if "shifted" in name else x
        results |= {name: polynomial(where, n), f"{name}_wide": polynomial(where * 3, n)}
        results |= {f"{name}_of": polynomial(where, 4), f"{name}_at": polynomial(0.75, n.long())}
    return results

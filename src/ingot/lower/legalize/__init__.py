"""Legalize nodes without a kernel: express them by other dims or simpler ops that have kernels.

An op's own expansion defines its meaning for every executor. The legalizations here use static shapes and the limits of
kernels. Each returns values equal to its node's, or None if it does not apply.
"""

from ingot.lower.legalize import experts, fourier, grams, grids, loops, windows
from ingot.lower.legalize.table import LEGALIZATIONS, LEGALIZED_AS_THEMSELVES, legalize_node

__all__ = [
    "LEGALIZATIONS",
    "LEGALIZED_AS_THEMSELVES",
    "experts",
    "fourier",
    "grams",
    "grids",
    "legalize_node",
    "loops",
    "windows",
]  # fmt: skip

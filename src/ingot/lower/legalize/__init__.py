"""Nodes that have no kernel as they are, in other dims or plainer ops, where kernels compute the same.

An op's own expansion says what it means, whatever runs it; what stands here is known of static graphs, and of what
kernels take: each restatement gives values that its node's are, or None where it knows no better.
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

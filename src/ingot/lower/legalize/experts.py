"""Legalize products with experts that a run computes, such as trained experts, as products with all experts."""

from __future__ import annotations

from ingot.lower.legalize.table import legalizes
from ingot.ops.define import Expansion


@legalizes("expert_matmul")
def _expert_matmul(g: Expansion, x: str, chosen: str, experts: str) -> str:
    """Multiply every row with every expert, then select the product of each slot's expert."""
    (rows, slots), (_, out, size) = g.type(chosen).dims, g.type(experts).dims
    wide = g.reshape(g.expand(x, shape=(rows, slots, size)), shape=(1, rows * slots, size))
    products = g.matmul(wide, experts, transpose_b=True)
    chosen = g.checked_index(chosen, limit=g.type(experts).dims[0], what="chosen")
    indices = g.expand(g.reshape(chosen, shape=(1, rows * slots, 1)), shape=(1, rows * slots, out))
    return g.reshape(g.gather_elements(products, indices, axis=0), shape=(rows, slots, out))

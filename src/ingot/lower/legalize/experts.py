"""Products with experts that a run computes, as those that are trained are, by all of them."""

from __future__ import annotations

from ingot.lower.legalize.table import restates
from ingot.ops.define import Expansion


@restates("expert_matmul")
def _expert_matmul(g: Expansion, x: str, chosen: str, experts: str) -> str:
    """Every row times every expert, of which each slot takes its own."""
    (rows, slots), (_, out, size) = g.type(chosen).dims, g.type(experts).dims
    wide = g.reshape(g.expand(x, shape=(rows, slots, size)), shape=(1, rows * slots, size))
    products = g.matmul(wide, experts, transpose_b=True)
    chosen = g.checked_index(chosen, limit=g.type(experts).dims[0], what="chosen")
    places = g.expand(g.reshape(chosen, shape=(1, rows * slots, 1)), shape=(1, rows * slots, out))
    return g.reshape(g.gather_elements(products, places, axis=0), shape=(rows, slots, out))

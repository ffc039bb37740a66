"""Gradients of matrix products."""

from __future__ import annotations

import math

from ingot.gradients.registry import Backward, gradient
from ingot.ir.dtype import i64
from ingot.ir.graph import Node


@gradient("matmul")
def matmul(g: Backward, node: Node, d: str) -> tuple[str, str]:
    """Multiply d by the other operand; a matrix shared by all batches gets one product over all their rows."""
    a, b = map(str, node.operands)
    if g.type(b).rank == 2 and g.type(a).rank > 2 and not node.transpose_a:
        rows, d_rows = _rows(g, a), _rows(g, d)
    else:
        rows, d_rows = a, d
    scaled = {"scale": node.scale}
    if node.transpose_a:
        of_a = g.matmul(b, d, transpose_a=node.transpose_b, transpose_b=True, **scaled)
    else:
        of_a = g.matmul(d, b, transpose_b=not node.transpose_b, **scaled)
    if node.transpose_b:
        of_b = g.matmul(d_rows, rows, transpose_a=True, transpose_b=node.transpose_a, **scaled)
    else:
        of_b = g.matmul(rows, d_rows, transpose_a=not node.transpose_a, **scaled)
    return g.summed(of_a, a), g.summed(of_b, b)


@gradient("expert_matmul")
def expert_matmul(g: Backward, node: Node, d: str) -> tuple[str, None, str]:
    """Multiply by every expert's matrix, with d zero for experts that were not selected."""
    x, chosen, experts = map(str, node.operands)
    (rows, slots, out), (count, _, size) = g.type(d).dims, g.type(experts).dims
    numbers = g.reshape(g.iota(length=count, start=0, step=1, dtype=i64), shape=(count, 1, 1))
    is_own = g.equal(g.reshape(chosen, shape=(1, rows * slots, 1)), numbers)
    own = g.where(is_own, g.reshape(d, shape=(1, rows * slots, out)), 0.0)
    of_x = g.reduce_sum(g.matmul(own, experts), axes=(0,), keepdims=False)
    wide = g.reshape(g.expand(x, shape=(rows, slots, size)), shape=(1, rows * slots, size))
    of_experts = g.matmul(own, wide, transpose_a=True)
    return g.summed(g.reshape(of_x, shape=(rows, slots, size)), x), None, of_experts


def _rows(g: Backward, value: str) -> str:
    dims = g.type(value).dims
    return g.reshape(value, shape=(math.prod(dims[:-1]), dims[-1]))

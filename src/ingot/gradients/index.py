"""Gradients of ops that pick elements by position: gradients of repeated elements are added, in order."""

from __future__ import annotations

import math

from ingot.gradients.registry import Backward, gradient, row_blocks
from ingot.gradients.shape import cut
from ingot.ir.dtype import i64
from ingot.ir.graph import Node
from ingot.ops.index import inverse_order


@gradient("gather")
def gather(g: Backward, node: Node, d: str) -> tuple[str, None]:
    """Add d to zeros at the indices, slice by slice; for a known permutation, gather with its inverse."""
    x, indices = map(str, node.operands)
    dims, axis = g.type(x).dims, node.axis
    known = g.graph.data(indices) if g.graph.values[indices].kind == "constant" else None
    inverse = None if known is None or known.shape != (dims[axis],) else inverse_order(known)
    if inverse is not None:
        return g.gather(d, g.array(f"{indices}.back", inverse), axis=axis), None
    count = math.prod(g.type(indices).dims)
    shape = (*dims[:axis], count, *dims[axis + 1 :])
    positions = g.reshape(indices, shape=tuple(count if i == axis else 1 for i in range(len(dims))))
    positions, updates = g.expand(positions, shape=shape), g.reshape(d, shape=shape)
    found, blocks = g.zeros(x), row_blocks(count)
    for i in range(blocks):
        size = count // blocks
        starts = tuple(i * size if at == axis else 0 for at in range(len(shape)))
        sizes = (*shape[:axis], size, *shape[axis + 1 :])
        read, given = (each if blocks == 1 else cut(g, each, starts, sizes) for each in (positions, updates))
        found = g.scatter_elements(found, read, given, axis=axis, reduction="add")
    return found, None


@gradient("gather_elements")
def gather_elements(g: Backward, node: Node, d: str) -> tuple[str, None]:
    """Add d to zeros at the indices."""
    x, indices = map(str, node.operands)
    return g.scatter_elements(g.zeros(x), indices, d, axis=node.axis, reduction="add"), None


@gradient("topk")
def topk(g: Backward, node: Node, d: str, _: None) -> str:
    """Scatter d to the k selected elements."""
    x = str(node.operands[0])
    return g.scatter_elements(g.zeros(x), node.outputs[1], d, axis=node.axis, reduction="add")


def _no_sum(node: Node) -> str:
    return "" if node.reduction in ("none", "add") else f"updates combined by {node.reduction!r}"


@gradient("scatter_elements", refuse=_no_sum)
def scatter_elements(g: Backward, node: Node, d: str) -> tuple[str, None, str]:
    """Pass d to x where it was not overwritten, and to each update that was written; of several at one element, the
    last.
    """
    x, indices, updates = map(str, node.operands)
    read = g.gather_elements(d, indices, axis=node.axis)
    if node.reduction == "add":
        return d, None, read
    unchanged = g.scatter_elements(d, indices, g.zeros(updates), axis=node.axis, reduction="none")
    dims = g.type(indices).dims
    order = g.reshape(g.iota(length=math.prod(dims), start=0, step=1, dtype=i64), shape=dims)
    last = g.expand(g.constant(0), shape=g.type(x).shape)
    last = g.scatter_elements(last, indices, order, axis=node.axis, reduction="none")
    is_last = g.equal(g.gather_elements(last, indices, axis=node.axis), order)
    return unchanged, None, g.where(is_last, read, 0.0)

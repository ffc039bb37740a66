"""Matrices of codes whose columns lie in another order: rows are put into that order, so that codes stay codes.

A quantizer that takes columns by importance lets those of a group lie apart: GPTQ's `desc_act`, `g_idx` elsewhere. Side
by side, as kernels want them, they lie in another order than the rows that they are multiplied with.
"""

from __future__ import annotations

import numpy as np

from ingot.ir.graph import Graph, Node
from ingot.ops.index import inverse_order
from ingot.passes.fold import known
from ingot.passes.match import is_fixed


def order_columns(graph: Graph) -> bool:
    """matmul(x, gather(w, places, axis=1), transpose_b) becomes matmul(gather(x, order, axis=-1), w, transpose_b).

    Where w is decoded from fixed codes, the places hold each of its columns once, and order is where these come from.
    What something else reads, too, stays as it is: w would be kept both as codes and as floats.
    """
    changed = False
    for node in graph.nodes:
        order = _order(graph, node) if node.op.name == "gather" else None
        if order is None:
            continue
        name = graph.add_constant(graph.fresh(f"{node.output}.order"), order)
        for product in graph.users(node.output):
            x = str(product.operands[0])
            rows = graph.add("gather", [x, name], f"{x}.ordered", before=product, axis=graph.type(x).rank - 1)
            graph.set_operands(product, [rows.output, node.operands[0]])
        graph.remove(node)
        changed = True
    return changed


def _order(graph: Graph, node: Node) -> np.ndarray | None:
    """The columns of x that those of w are multiplied with, by their places there; None where w is to stay."""
    matrix, places = node.operands
    maker, columns = graph.producer(matrix), known(graph, str(places))
    if maker is None or maker.op.name not in ("decode_blocks", "dequantize") or not is_fixed(graph, matrix):
        return None
    if columns is None or node.axis != 1 or graph.type(str(matrix)).shape[1:] != columns.shape:
        return None
    users = graph.users(node.output)
    if graph.is_output(node.output) or not users or not all(_multiplies(user, node.output) for user in users):
        return None
    return inverse_order(columns)


def _multiplies(node: Node, matrix: str) -> bool:
    """Whether a node multiplies rows, and those alone, with rows of a matrix."""
    return node.op.name == "matmul" and node.transpose_b and not node.transpose_a and node.operands[0] != matrix

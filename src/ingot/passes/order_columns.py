"""Quantized matrices with permuted columns: the rows of x are permuted instead, so that the weights stay quantized.

A quantizer that processes columns by importance scatters the columns of a group: `desc_act` of GPTQ, `g_idx` elsewhere.
Kernels need the columns of a group side by side, which is another order than that of the rows of x.
"""

from __future__ import annotations

import numpy as np

from ingot.ir.graph import Graph, Node
from ingot.ops.index import inverse_order
from ingot.passes.fold import known
from ingot.passes.match import is_fixed


def order_columns(graph: Graph) -> bool:
    """Rewrite matmul(x, gather(w, indices, axis=1), transpose_b) to matmul(gather(x, order, axis=-1), w, transpose_b).

    w must be decoded from constant quantized values, and the indices must be a permutation; `order` is its inverse. A
    gather with other readers stays: w would be stored both quantized and as floats.
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
    """Return the columns of x for each column of w, as indices; None if w must stay permuted."""
    matrix, indices = node.operands
    producer, columns = graph.producer(matrix), known(graph, str(indices))
    if producer is None or producer.op.name not in ("decode_blocks", "dequantize") or not is_fixed(graph, matrix):
        return None
    if columns is None or node.axis != 1 or graph.type(str(matrix)).shape[1:] != columns.shape:
        return None
    users = graph.users(node.output)
    if graph.is_output(node.output) or not users or not all(_multiplies(user, node.output) for user in users):
        return None
    return inverse_order(columns)


def _multiplies(node: Node, matrix: str) -> bool:
    """Return whether a node multiplies only its rows with the rows of a matrix."""
    return node.op.name == "matmul" and node.transpose_b and not node.transpose_a and node.operands[0] != matrix

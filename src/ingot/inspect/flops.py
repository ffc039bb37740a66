"""FLOPs of nodes: two for each multiply-add of products, as in the costs of steps.

Counts are polynomials over the symbols of a graph. Here ops are counted; `lower` counts the work of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ingot.ir.dim import Dim, Known
from ingot.ir.graph import Graph, Node, TensorType

Shape = tuple[Dim, ...]
_Count = Callable[[Node, list[Shape], list[Shape]], Known]


def flops(graph: Graph, node: Node) -> Known | None:
    """Return the FLOPs of a node, 0 for an op without products; None if a dim is unknown."""
    count = COUNTS.get(node.op.name)
    if count is None:
        return 0
    types = [[graph.values[name].type for name in names if name is not None] for names in (node.operands, node.outputs)]
    shapes = [[type.shape for type in each if isinstance(type, TensorType)] for each in types]
    if any(dim is None for each in shapes for shape in each for dim in shape) or len(shapes[0]) < len(types[0]):
        return None
    return count(node, *shapes)


def _matmul(node: Node, operands: list[Shape], results: list[Shape]) -> Known:
    inner = operands[0][-2 if node.attributes.get("transpose_a") and len(operands[0]) > 1 else -1]
    return 2 * _product(results[0]) * _known(inner)


def _expert_matmul(node: Node, operands: list[Shape], results: list[Shape]) -> Known:
    return 2 * _product(results[0]) * _known(operands[0][-1])


def _conv(node: Node, operands: list[Shape], results: list[Shape]) -> Known:
    return 2 * _product(results[0]) * _product(operands[1][1:])


def _conv_transpose(node: Node, operands: list[Shape], results: list[Shape]) -> Known:
    return 2 * _product(operands[0]) * _product(operands[1][1:])


def _attention(node: Node, operands: list[Shape], results: list[Shape]) -> Known:
    """Count both products, over the keys that a causal mask allows, or all keys if their number is a symbol."""
    query, keys, values = operands[:3]
    rows, count = query[-2], keys[-2]
    scores: Known = _known(rows) * _known(count)
    if node.causal and isinstance(rows, int) and isinstance(count, int) and isinstance(node.causal_offset, int):
        scores = sum(min(max(row + node.causal_offset + 1, 0), count) for row in range(rows))
    return 2 * _product(query[:-2]) * scores * (_known(query[-1]) + _known(values[-1]))


def _recurrent(node: Node, operands: list[Shape], results: list[Shape]) -> Known:
    """Count the products of the state with its matrix for each time step; products of the input are separate nodes."""
    gates, matrix = operands[:2]
    return 2 * _product(gates[:-1]) * _product(matrix[-2:])


def _product(shape: Shape) -> Known:
    return prod(map(_known, shape), start=1)


def _known(dim: Dim) -> Known:
    assert dim is not None
    return dim


COUNTS: dict[str, _Count] = {
    "matmul": _matmul, "matmul_integer": _matmul, "expert_matmul": _expert_matmul, "conv": _conv, "conv_integer": _conv,
    "conv_transpose": _conv_transpose, "attention": _attention,
    "lstm": _recurrent, "gru": _recurrent, "rnn": _recurrent,
}  # fmt: skip

"""Skip rows that nothing reads: a gather of a few rows moves above ops that act on each row alone.

For the logits of a prompt's last token, a language model's last layer must compute only that row.
"""

from __future__ import annotations

from typing import Any

from ingot.ir.graph import Graph, Node

_ATTENTION_ROWS = (0, 3, 4)  # the operands of cached_attention with a row per row of its result


def take_rows_first(graph: Graph) -> bool:
    """Rewrite gather(op(x), few) along axis 0 to op(gather(x, few)), if nothing else reads the other rows of op(x)."""
    changed = False
    waiting = [node for node in graph.nodes if node.op.name == "gather" and node.axis == 0]
    while waiting:
        gather = waiting.pop()
        if _gathers_few(graph, gather) and (moved := _move(graph, gather)):
            waiting += moved
            changed = True
    return changed


def _gathers_few(graph: Graph, gather: Node) -> bool:
    indices, rows = graph.type(str(gather.operands[1])).shape, graph.type(str(gather.operands[0])).shape[0]
    if len(indices) != 1 or not isinstance(indices[0], int) or not isinstance(rows, int):
        return False
    return indices[0] < rows


def _move(graph: Graph, gather: Node) -> list[Node]:
    """Move a gather above the node that it reads; return the new gathers, or none if it stays."""
    value, indices = gather.operands
    node = graph.producer(value)
    if node is None or len(node.outputs) > 1 or graph.only_user(node.output) is not gather:
        return []
    if _is_of_weight(graph, node):  # lowering gathers directly from the stored table
        return []
    rows, count = graph.type(node.output).shape[0], graph.type(str(indices)).shape[0]
    operands, moved = list(node.operands), []
    for i in _row_operands(graph, node, rows):
        above = graph.add("gather", [operands[i], indices], f"{operands[i]}.gathered", before=gather, axis=0)
        operands[i] = above.output
        moved.append(above)
    if not moved:
        return []
    name, attributes = node.output, node.attributes | _resized(node, count)
    gathered = graph.add(node.op.name, operands, f"{name}.gathered", before=gather, **attributes).output
    graph.replace(gather, gathered)
    graph.remove(node)
    graph.rename(gathered, name)
    return moved


def _row_operands(graph: Graph, node: Node, rows: Any) -> list[int]:
    """Return the operands whose row i alone determines row i of the result; none if that is unknown."""
    shapes = [() if o is None else graph.type(o).shape for o in node.operands]
    keeps_rows = any(shape[:1] == (rows,) for shape in shapes[:1])
    rank = graph.type(node.output).rank
    match node.op.name:
        case "matmul":
            is_flat = not node.transpose_a and [len(shape) for shape in shapes] == [2, 2]
            return [0] if is_flat else []
        case "cached_attention":
            return list(_ATTENTION_ROWS)
        case "expert_matmul":
            return [0, 1]
        case "reshape":
            return [0] if keeps_rows else []
        case "gather":
            return [0] if keeps_rows and node.axis else []
        case "slice":
            return [0] if keeps_rows and (node.starts[0], node.steps[0]) == (0, 1) else []
        case _ if node.op.acts_on == "element" or (node.op.acts_on == "row" and rank > 1):
            return [i for i, shape in enumerate(shapes) if len(shape) == rank and shape[0] == rows]
    return []


def _resized(node: Node, count: Any) -> dict[str, Any]:
    """Return the attributes that specify the number of rows."""
    match node.op.name:
        case "reshape":
            return {"shape": (count, *node.shape[1:])}
        case "slice":
            return {"stops": (count, *node.stops[1:])}
    return {}


def _is_of_weight(graph: Graph, node: Node) -> bool:
    """Return whether a node ends a chain of one-operand ops on a weight or a constant."""
    value = node.output
    while (producer := graph.producer(value)) is not None:
        if len(producer.operands) != 1:
            return False
        value = str(producer.operands[0])
    return graph.values[value].kind in ("weight", "constant")

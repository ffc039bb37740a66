"""Sinking: a reshape that only merges rows moves below what treats rows alike, where it meets the one that splits them.

Models written with 2-D layers (GPT-2's Conv1D, addmm) wrap each in such a pair; without it, bias, activation and
residual follow the matmul directly.
"""

from __future__ import annotations

from ingot.ir import Graph, Node
from ingot.ops.define import product


def sink_reshapes(graph: Graph) -> bool:
    """op(reshape(x)) becomes reshape(op(x)) for matmuls with a matrix and for what acts on rows alone, beside operands
    that all rows share."""
    changed = False
    for node in graph.nodes:
        index = _reshaped_operand(graph, node)
        if index is None:
            continue
        reshape = graph.producer(node.operands[index])
        assert reshape is not None
        operands = list(node.operands)
        operands[index] = reshape.operands[0]
        name = node.output
        moved = graph.add(node.op.name, operands, f"{name}.rows", before=node, **node.attributes)
        shape = graph.type(name).shape
        below = graph.add("reshape", [moved.output], f"{name}.merged", before=node, shape=shape)
        graph.replace(node, below.output)
        graph.rename(below.output, name)
        changed = True
    return changed


def _reshaped_operand(graph: Graph, node: Node) -> int | None:
    """Which operand is a merge of rows that may go below the node."""
    if node.op.name == "matmul" and not node.transpose_a and graph.type(str(node.operands[1])).rank == 2:
        return 0 if _merges_rows(graph, node.operands[0]) else None
    if node.op.acts_on in ("element", "row"):
        shapes = [() if o is None else graph.type(o).shape for o in node.operands]
        for index, name in enumerate(node.operands):
            shared = ((), (1,), shapes[index][-1:])
            others = shapes[:index] + shapes[index + 1 :]
            if all(shape in shared for shape in others) and _merges_rows(graph, name):
                return index
    return None


def _merges_rows(graph: Graph, name: str | None) -> bool:
    """True for a reshape [..., rows, columns] -> [all rows, columns]; of no columns, it may change how many rows."""
    node = graph.producer(name)
    if node is None or node.op.name != "reshape":
        return False
    source, target = graph.type(str(node.operands[0])).shape, graph.type(node.output).shape
    known = None not in source and None not in target
    columns_kept = known and len(target) == 2 and len(source) > 2 and source[-1] == target[-1]
    return columns_kept and product(source[:-1]) == target[0]

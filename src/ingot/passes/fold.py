"""Constant folding through each op's reference, within a budget of bytes."""

from typing import Any

import numpy as np

from ingot.ir.dim import Expr
from ingot.ir.graph import Graph, Node, TensorType, Value
from ingot.ir.sized import is_sized
from ingot.ops.define import evaluate

LIMIT_BYTES = 1 << 20  # of one folded value, and of a weight that folding may read
TOTAL_BYTES = 64 << 20  # of all constants of a graph, and of one value that is read
WORK_BYTES = 1 << 30  # of all operands and results of folded nodes, views at their full size
_MAX_VIEWS = 16  # between a weight and the node that reads it

# Their references allocate arrays larger than operands and results, such as padded images or scores.
_SPACIOUS = frozenset(
    ("attention", "avg_pool", "cached_attention", "conv", "conv_transpose", "expert_matmul", "max_pool")
)

# The ops that decode quantized weights, or blocks, to floats.
DECODERS = frozenset(("affine_blocks", "decode_blocks", "dequantize", "unpack", "unpack_bits"))
_LAYOUT = frozenset(("reshape", "permute", "slice", "expand", "concat", "cast"))
_MOVES = _LAYOUT | {"gather"}  # of quantized values


def fold_constants(graph: Graph) -> bool:
    """Replace nodes over constants, and over small weights, by constants.

    A weight's layout is never folded: reshape, permute, slice, expand, concat and cast of a float weight are views or a
    packed weight of the weight store, which packs the weight once instead of keeping a second copy. The same holds for
    decoders of quantized matrices, and for moves of the quantized values before. Only concat and cast of vectors
    (biases) fold. Integer and bool buffers up to the limit count as constants.
    """
    spent = sum(v.data.nbytes for v in graph.values.values() if v.kind == "constant" and v.data is not None)
    worked, changed = 0, False
    candidates: set[str | None] = {None, *(name for name, value in graph.values.items() if value.data is not None)}
    for node in graph.nodes:
        if not candidates.issuperset(node.operands):
            continue  # most nodes, which need no further check
        if node.op.view:
            candidates.update(node.outputs)
        nbytes = _result_bytes(graph, node)
        if nbytes is None or nbytes > LIMIT_BYTES or spent + nbytes > TOTAL_BYTES:
            continue
        if node.op.name in _SPACIOUS or _is_weight_layout(graph, node) or _decodes(graph, node):
            continue
        operands = [None if o is None else known(graph, o) for o in node.operands]
        if any(o is not None and array is None for o, array in zip(node.operands, operands, strict=True)):
            continue
        types = [graph.type(name) for name in (*node.operands, *node.outputs) if name is not None]
        work = sum(type.dtype.nbytes(type.extent) for type in types)
        if worked + work > WORK_BYTES:
            continue
        _replace(graph, node, evaluate(node, operands))
        candidates.update(node.outputs)
        spent, worked, changed = spent + nbytes, worked + work, True
    return changed


def known(graph: Graph, name: str, limit_bytes: int = LIMIT_BYTES) -> np.ndarray | None:
    """Return the array of a constant, of a weight up to the limit, or of a view of one up to TOTAL_BYTES; else None."""
    type = graph.type(name)
    if type.dtype.nbytes(type.extent) > TOTAL_BYTES:
        return None
    views: list[Node] = []
    value = graph.values[name]
    while value.data is None:
        node = value.producer
        if node is None or not node.op.view or len(views) == _MAX_VIEWS or not _is_static(graph, node):
            return None
        assert node.operands[0] is not None
        views.append(node)
        value = graph.values[node.operands[0]]
    if value.kind != "constant" and value.data.nbytes > limit_bytes:
        return None
    array = value.data
    for view in reversed(views):
        (array,) = evaluate(view, [array])
    return array


def _replace(graph: Graph, node: Node, results: list[np.ndarray]) -> None:
    names, constants = node.outputs, []
    for name, result in zip(names, results, strict=True):
        type = graph.type(name)
        assert result.shape == type.dims and result.dtype == type.dtype.numpy, f"{node} folds to {result.dtype}"
        constants.append(graph.add_constant(graph.fresh(f"{name}.folded"), np.array(result, order="C")))
        graph.replace_uses(name, constants[-1])
    graph.remove(node)
    for name, constant in zip(names, constants, strict=True):
        graph.rename(constant, name)


def _is_static(graph: Graph, node: Node) -> bool:
    types = [graph.values[name].type for name in (*node.operands, *node.outputs) if name is not None]
    return (
        all(isinstance(t, TensorType) and t.is_static for t in types)
        and not any(_is_symbolic(value) for value in node.attributes.values())
        and not is_sized(graph, node)
    )


def _is_symbolic(attribute: Any) -> bool:
    if isinstance(attribute, tuple):
        return any(map(_is_symbolic, attribute))
    return attribute is None or isinstance(attribute, (Expr, Graph))


def _result_bytes(graph: Graph, node: Node) -> int | None:
    """Return the bytes of a node's outputs; None when it is not static."""
    return sum(graph.type(name).nbytes for name in node.outputs) if _is_static(graph, node) else None


def _is_weight_layout(graph: Graph, node: Node) -> bool:
    if node.op.name not in _LAYOUT:
        return False
    sources = [_float_weight(graph, o) for o in node.operands if o is not None]
    if node.op.name in ("concat", "cast") and all(graph.type(o).rank == 1 for o in node.operands if o is not None):
        return False
    return any(source is not None for source in sources)


def _decodes(graph: Graph, node: Node) -> bool:
    """Return whether a node decodes a matrix or filters from fewer bytes, or only computes an operand of one."""
    if node.op.name in DECODERS:
        return graph.type(node.outputs[0]).rank > 1
    users = graph.users(node.outputs[0]) if node.op.name in _MOVES else []
    return bool(users) and all(_decodes(graph, user) for user in users)


def _float_weight(graph: Graph, name: str) -> Value | None:
    """Return the float weight that a value is a view of."""
    value = graph.values[name]
    for _ in range(_MAX_VIEWS):
        if value.producer is None or value.producer.op.name not in _LAYOUT:
            break
        value = graph.values[str(value.producer.operands[0])]
    is_float = isinstance(value.type, TensorType) and value.type.dtype.kind == "f"
    return value if value.kind == "weight" and is_float else None

"""Compute nodes of dtypes with few kernels in a wider dtype between casts.

The reference does the same: 16-bit floats are computed in f32 and rounded once. Integers wrap, so the low bits of i64
equal the result of a narrower dtype.
"""

from __future__ import annotations

from collections.abc import Collection

from ingot.ir.dtype import DType, bf16, boolean, f16, f32, i8, i16, i32, i64, u8, u16, u32
from ingot.ir.graph import Graph, Node, TensorType, Type
from ingot.ops.define import Expansion, replace_node

WIDER = {f16: f32, bf16: f32} | dict.fromkeys((i32, i16, i8, u32, u16, u8, boolean), i64)
# Over no elements, these ops return the smallest or largest value of their dtype.
_OVER_NO_ELEMENTS = {"reduce_max", "reduce_min", "max_pool"}


def widened_dtype(graph: Graph, node: Node) -> DType | None:
    """Return the dtype that a node can be computed in instead of its first operand's dtype; None if there is none."""
    if not node.op.computes or not node.operands or node.operands[0] is None:
        return None
    return WIDER.get(graph.type(node.operands[0]).dtype)


def widen_node(graph: Graph, node: Node) -> None:
    """Replace a node that has a `widened_dtype`; its values keep their names and dtypes."""
    build, wide = Expansion(graph, node), widened_dtype(graph, node)
    narrow = graph.type(str(node.operands[0])).dtype
    assert wide is not None, f"{node} has no wider dtype"
    operands = [
        build.cast(name, dtype=wide) if name is not None and graph.type(name).dtype is narrow else name
        for name in node.operands
    ]
    widened = build.add_all(node.op.name, *operands, **node.attributes)
    results = []
    for name, result in zip(node.outputs, widened, strict=True):
        dtype = graph.type(name).dtype
        if graph.type(result).dtype is not dtype:
            if node.op.name in _OVER_NO_ELEMENTS and dtype.limits is not None:
                low, high = dtype.limits
                result = build.clip(result, minimum=low, maximum=high)
            result = build.cast(result, dtype=dtype)
        results.append(result)
    replace_node(graph, node, results)


def foreign_values(graph: Graph, held: Collection[DType]) -> dict[str | None, str]:
    """Return the values that no kernel accepts, and why. held: the dtypes that kernels accept."""
    reasons: dict[Type, str] = {}
    for type in graph.types:
        if not isinstance(type, TensorType) or not type.is_static:
            reasons[type] = f"the shape of {type} depends on data"
        elif type.dtype not in held:
            reasons[type] = f"kernels have no {type.dtype}"
    return {n: reasons[v.type] for n, v in graph.values.items() if v.type in reasons} if reasons else {}

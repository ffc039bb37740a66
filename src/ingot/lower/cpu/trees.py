"""Rows of ensembles of trees."""

from __future__ import annotations

import math

from ingot.dtype import DType, f32, f64
from ingot.ir import Node
from ingot.lower.cpu.rows import both, of, row
from ingot.lower.lowered import FAULT, Field, Pointer
from ingot.lower.lowering import Lowering, pointer

_STEP = 3.0  # nanoseconds of a row from one node to the next


def _adds_up(lowering: Lowering, node: Node) -> str:
    return "" if node.aggregate in ("sum", "average") else f"aggregate is {node.aggregate!r}, expected sum or average"


def _trees(kernel: str, dtype: DType) -> None:
    @row("tree_ensemble", kernel, both(of(dtype), _adds_up))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.rows(node.operands[0])
        tables = [lowering.contiguous(operand) for operand in node.operands[1:]]
        splits, nodes, leaves, weights, targets, roots, members = tables
        out = lowering.result(node.output)
        fields: dict[str, Field] = {
            "x": pointer(x), "splits": pointer(splits), "nodes": pointer(nodes), "leaves": pointer(leaves),
            "weights": pointer(weights), "targets": pointer(targets), "roots": pointer(roots),
            "members": pointer(members), "out": pointer(out), "fault": Pointer(FAULT),
            "rows": x.shape[0], "features": x.shape[1], "x_stride": x.strides[0],
            "divisor": roots.size if node.aggregate == "average" else 1,
            "node_count": splits.size, "leaf_count": leaves.shape[0], "vote_count": weights.size,
            "target_count": node.targets, "tree_count": roots.size, "member_count": members.size,
        }  # fmt: skip
        depth = 1 + math.log2(1 + splits.size / max(1, roots.size))
        lowering.step(kernel, "tree_args", fields, [x, *tables], [out], work=x.shape[0] * roots.size * depth * _STEP)


for _dtype in (f32, f64):
    _trees(f"tree_ensemble_{_dtype}", _dtype)

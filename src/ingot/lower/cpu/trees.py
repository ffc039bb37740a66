"""Kernel rules of tree ensembles."""

from __future__ import annotations

import math

import numpy as np

from ingot.ir.dtype import DType, f32, f64, i32, i64, u8
from ingot.ir.graph import Node, TensorType
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.kernel_rules import both, kernel_rule, of
from ingot.lower.lowered import FAULT, Field, Pointer
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.selection import Selection
from ingot.lower.weight_expr import WeightExpr
from ingot.ops.trees import FALSE, FEATURE, MEMBERS, MEMBERS_END, MISSING, MODE, TRUE
from ingot.support import abi


def _known(selection: Selection, node: Node) -> str:
    return "" if {*node.operands[1:3]} <= selection.static else "the nodes are not constant"


def _columns(table: WeightExpr, first: int, stop: int) -> WeightExpr:
    rows = table.dims[0]
    return table.derive("slice", starts=(0, first), stops=(rows, stop), steps=(1, 1))


def _packed_nodes(nodes: WeightExpr, splits: WeightExpr) -> WeightExpr:
    """Pack the fields that each step of a walk reads into 32 bits; a number that does not fit becomes out of range."""
    kind = _columns(nodes, MODE, MODE + 1)
    for column, factor in ((MISSING, 8), (FEATURE, 16)):
        times = WeightExpr(str(factor), (TensorType(i64, ()),), data=np.array(factor))
        kind = kind.derive("add", _columns(nodes, column, column + 1).derive("mul", times))
    whole = kind.derive("concat", _columns(nodes, TRUE, FALSE + 1), axis=1)
    whole = whole.derive("clip", minimum=-(2.0**31), maximum=2.0**31 - 1).derive("cast", dtype=i32)
    bits = splits.derive("cast", dtype=f32).derive("bitcast", dtype=i32)
    return whole.derive("concat", bits.derive("reshape", shape=(nodes.dims[0], 1)), axis=1)


def _trees(kernel: str, dtype: DType) -> None:
    @kernel_rule("tree_ensemble", kernel, both(of(dtype), _known))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.rows(node.operands[0])
        compared, table = (lowering.weight_expr(str(operand)) for operand in node.operands[1:3])
        packed, ranges = _packed_nodes(table, compared), _columns(table, MEMBERS, MEMBERS_END + 1)
        nodes, sets = lowering.weight(packed), lowering.weight(ranges)
        tables = [lowering.contiguous(operand) for i, operand in enumerate(node.operands) if i not in (0, 2)]
        splits, leaves, weights, targets, roots, members = tables
        out = lowering.result(node.output)
        writes, fields = [out], dict[str, Field]()
        if node.aggregate in ("min", "max"):
            writes.append(lowering.temporary(f"{node.output}.voted", u8, out.shape))
            fields = {"voted": pointer(writes[1]), "merge": abi.constant(f"INGOT_MERGE_{node.aggregate}")}
        fields |= {
            "x": pointer(x), "splits": pointer(splits), "nodes": pointer(nodes), "sets": pointer(sets),
            "leaves": pointer(leaves),
            "weights": pointer(weights), "targets": pointer(targets), "roots": pointer(roots),
            "members": pointer(members), "out": pointer(out), "fault": Pointer(FAULT),
            "rows": x.shape[0], "features": x.shape[1], "x_stride": x.strides[0],
            "divisor": roots.size if node.aggregate == "average" else 1,
            "node_count": splits.size, "leaf_count": leaves.shape[0], "vote_count": weights.size,
            "target_count": node.targets, "tree_count": roots.size, "member_count": members.size,
        }  # fmt: skip
        depth = 1 + math.log2(1 + splits.size / max(1, roots.size))
        work = x.shape[0] * roots.size * depth * NS.tree_level
        lowering.step(kernel, "tree_args", fields, [x, nodes, sets, *tables], writes, work=work)


for _dtype in (f32, f64):
    _trees(f"tree_ensemble_{_dtype}", _dtype)

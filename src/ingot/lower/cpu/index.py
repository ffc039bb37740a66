"""Rows of gather, topk and rotary."""

from __future__ import annotations

import math

from ingot.dtype import f32, i32, i64
from ingot.ir import Node
from ingot.lower.cpu.formats import FORMATS
from ingot.lower.cpu.rows import Condition, both, last_axis, of, operand_type, row, stored
from ingot.lower.formats import Format
from ingot.lower.lowered import FAULT, Field, Pointer
from ingot.lower.lowering import Lowering, broadcast_view, pointer
from ingot.lower.matrix import matrix

_BYTE = 0.1  # nanoseconds per byte moved on one thread


def _rows_of_a_matrix(lowering: Lowering, node: Node) -> str:
    if operand_type(lowering, node, 0).rank != 2:
        return f"the table has {operand_type(lowering, node, 0).rank} axes, expected 2"
    return "" if node.axis == 0 else f"axis is {node.axis}, expected 0"


def _from_panels(lowering: Lowering, node: Node) -> str:
    return "" if lowering.is_panel_table(node.operands[0]) else "the table is not packed for a matmul"


def _gather_rows(kernel: str, format: Format, layout: str, *conditions: Condition) -> None:
    """Declares a kernel for rows of a static matrix of a format in a layout."""

    @row("gather", kernel, both(of(f32), _rows_of_a_matrix, *conditions))
    def lower(lowering: Lowering, node: Node) -> None:
        table = matrix(lowering, str(node.operands[0]), format, layout, layout == "panels")
        indices = lowering.contiguous(node.operands[1])
        out = lowering.result(node.output)
        fields = _gather_fields(4) | {
            "table": pointer(table), "indices": pointer(indices), "out": pointer(out),
            "outer": 1, "limit": table.shape[0], "inner": table.shape[1], "count": math.prod(indices.shape),
            "index_bytes": indices.dtype.itemsize,
        }  # fmt: skip
        work = out.size * 4 * _BYTE
        lowering.step(kernel, "gather_args", fields, [table, indices], [out], work=work)


for _format in reversed(FORMATS):
    _gather_rows(f"gather_{_format.tables}_panels", _format, "panels", stored(0, _format), _from_panels)
    if _format.decoder:  # else any table will do
        _gather_rows(f"gather_{_format.tables}", _format, "raw", stored(0, _format))


def _indices(dtype):  # type: ignore[no-untyped-def]
    def refuse(lowering: Lowering, node: Node) -> str:
        found = operand_type(lowering, node, 1).dtype
        return "" if found is dtype else f"indices are {found}, expected {dtype}"

    return refuse


def _gather(dtype) -> None:  # type: ignore[no-untyped-def]
    kernel = f"gather_{dtype}"

    @row("gather", kernel, _indices(dtype))
    def lower(lowering: Lowering, node: Node) -> None:
        table, indices = lowering.contiguous(node.operands[0]), lowering.contiguous(node.operands[1])
        out = lowering.result(node.output)
        outer = inner = 1
        for dim in table.shape[: node.axis]:
            outer *= dim
        for dim in table.shape[node.axis + 1 :]:
            inner *= dim
        fields = _gather_fields(table.dtype.itemsize) | {
            "table": pointer(table), "indices": pointer(indices), "out": pointer(out),
            "outer": outer, "limit": table.shape[node.axis], "inner": inner, "count": math.prod(indices.shape),
        }  # fmt: skip
        work = out.size * table.dtype.itemsize * _BYTE
        lowering.step(kernel, "gather_args", fields, [table, indices], [out], work=work)


_gather(i64)
_gather(i32)


def _gather_fields(itemsize: int) -> dict[str, Field]:
    return {"fault": Pointer(FAULT), "item_bytes": itemsize}


@row("gather_elements", "gather_elements_i64", _indices(i64))
def _gather_elements(lowering: Lowering, node: Node) -> None:
    x, indices = lowering.view(node.operands[0]), lowering.contiguous(node.operands[1])
    out = lowering.result(node.output)
    fields = _gather_fields(x.dtype.itemsize) | {
        "x": pointer(x), "indices": pointer(indices), "out": pointer(out),
        "rank": len(out.shape), "axis": node.axis, "shape": out.shape, "x_strides": x.strides,
        "limit": x.shape[node.axis],
    }  # fmt: skip
    work = out.size * 4.0
    lowering.step("gather_elements_i64", "gather_elements_args", fields, [x, indices], [out], work=work)


@row("topk", "topk_f32", both(of(f32), last_axis))
def _topk(lowering: Lowering, node: Node) -> None:
    x = lowering.rows(node.operands[0])
    out, indices = (lowering.result(name) for name in node.outputs)
    fields: dict[str, Field] = {
        "x": pointer(x), "out": pointer(out), "indices": pointer(indices), "rows": x.shape[0], "cols": x.shape[1],
        "k": node.k, "x_stride": x.strides[0], "largest": int(node.largest),
    }  # fmt: skip
    lowering.step("topk_f32", "topk_args", fields, [x], [out, indices], work=x.size * 2.0)


def _few_axes(lowering: Lowering, node: Node) -> str:
    rank = operand_type(lowering, node).rank
    return "" if rank <= 4 else f"x has rank {rank}, expected at most 4"


@row("rotary", "rotary_f32", both(of(f32), _few_axes))
def _rotary(lowering: Lowering, node: Node) -> None:
    x = lowering.adjacent(node.operands[0])
    out = lowering.accepted_result(node.output, lambda view: view.strides[-1] == 1)
    cos, sin = (broadcast_view(lowering.adjacent(o), x.shape) for o in node.operands[1:])
    missing = 4 - len(x.shape)
    batch, heads, rows, head_dim = (1,) * missing + x.shape
    fields: dict[str, Field] = {
        "x": pointer(x), "cos": pointer(cos), "sin": pointer(sin), "out": pointer(out),
        "batch": batch, "heads": heads, "rows": rows, "head_dim": head_dim,
    }  # fmt: skip
    for name, view in (("x", x), ("cos", cos), ("sin", sin), ("out", out)):
        fields[f"{name}_strides"] = ((0,) * missing + view.strides)[:3]
    lowering.step("rotary_f32", "rotary_args", fields, [x, cos, sin], [out], work=x.size * 1.0)

"""Kernel rules of the ops over a cache of keys and values."""

from __future__ import annotations

from ingot.ir.dtype import DType, bf16, f16, f32, i8, i32, u8
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.kernel_rules import kernel_rule, of, overwritten
from ingot.lower.lowered import FAULT, Field, Pointer
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.view import View
from ingot.ops.kv_cache import CACHE_BLOCK


def _position_views(
    lowering: Lowering, positions: str | None, owners: str | None, blocks: str | None
) -> tuple[list[View], dict[str, Field]]:
    """Return the views with the positions of rows, and the fields for them that both argument structs have."""
    views = [lowering.contiguous(value) for value in (positions, owners, blocks)]
    fields: dict[str, Field] = {
        "positions": pointer(views[0]), "owners": pointer(views[1]), "blocks": pointer(views[2]),
        "sequences": views[2].shape[0], "blocks_each": views[2].shape[1], "fault": Pointer(FAULT),
    }  # fmt: skip
    return views, fields


def _declare_append(op: str, kernel: str, *dtypes: DType) -> None:
    @kernel_rule(op, kernel, of(*dtypes))
    def lower(lowering: Lowering, node: Node) -> None:
        appended = [overwritten(lowering, node, i) for i in range(len(node.outputs))]
        inputs, caches = [before for before, _ in appended], [after for _, after in appended]
        rows = lowering.adjacent(node.operands[len(caches)])
        views, fields = _position_views(lowering, *node.operands[len(caches) + 1 :])
        fields |= {
            "x": pointer(rows), "cache": pointer(caches[0]), "rows": rows.shape[0], "kv_heads": rows.shape[1],
            "dim": rows.shape[2], "x_strides": rows.strides[:2], "total_blocks": caches[0].shape[0],
        }  # fmt: skip
        if len(caches) > 1:
            fields["scales"] = pointer(caches[1])
        work = rows.size * NS.appended
        lowering.step(kernel, "append_args", fields, [rows, *views, *inputs], caches, work=work, keeps=len(inputs))


for _name in ("keys", "values"):
    _declare_append(f"append_{_name}", f"append_{_name}_f32", f32, f32)
    _declare_append(f"append_{_name}", f"append_{_name}_bf16", bf16, f32)
    _declare_append(f"append_{_name}_int8", f"append_{_name}_i8", i8, f32, f32)
    _declare_append(f"append_{_name}_int4", f"append_{_name}_i4", u8, f16, f32)


def _declare_attention(kernel: str, dtype: DType, *quantization: DType) -> None:
    @kernel_rule("cached_attention", kernel, of(f32, dtype, dtype, *quantization))
    def lower(lowering: Lowering, node: Node) -> None:
        q = lowering.adjacent(node.operands[0])
        caches = [lowering.contiguous(o) for o in (*node.operands[1:3], *node.operands[6:8]) if o is not None]
        of_scores = {
            name: lowering.contiguous(operand)
            for name, operand in zip(("sinks", "biases"), node.operands[8:], strict=False)
            if operand is not None
        }
        views, fields = _position_views(lowering, *node.operands[3:6])
        out = lowering.accepted_result(node.output, lambda view: view.has_adjacent_columns)
        (rows, heads, head_dim), v_dim = q.shape, out.shape[-1]
        fields |= {
            "q": pointer(q), "keys": pointer(caches[0]), "values": pointer(caches[1]), "out": pointer(out),
            "rows": rows, "heads": heads, "kv_heads": caches[0].shape[1], "head_dim": head_dim, "v_dim": v_dim,
            "q_strides": q.strides[:2], "out_strides": out.strides[:2], "total_blocks": caches[0].shape[0],
            "window": node.window, "segment": node.segment, "scale": node.scale, "softcap": node.softcap, "chunks": 0,
            "relative": int(node.relative),
        }  # fmt: skip
        if len(caches) > 2:
            fields |= {"key_scales": pointer(caches[2]), "value_scales": pointer(caches[3])}
        fields |= {name: pointer(view) for name, view in of_scores.items()}
        positions = views[2].shape[1] * CACHE_BLOCK
        visible = min(node.window or positions, node.segment or positions, positions) / 2
        work = rows * heads * visible * ((head_dim + v_dim) * NS.multiply_add_cached + NS.softmax_weight)
        reads = [q, *caches, *views, *of_scores.values()]
        lowering.step(kernel, "cached_attention_args", fields, reads, [out], work=work)


_declare_attention("cached_attention_f32", f32)
_declare_attention("cached_attention_bf16", bf16)
_declare_attention("cached_attention_i8", i8, i32, i32, i32, f32, f32)
_declare_attention("cached_attention_i4", u8, i32, i32, i32, f16, f16)

"""Kernel rules of attention: with complete rows of scores, or online over tiles of keys."""

from __future__ import annotations

from ingot.ir.dtype import DType, bf16, f32
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.formats import PANEL
from ingot.lower.cpu.kernel_rules import Condition, accept, both, kernel_rule, of
from ingot.lower.cpu.limits import ONLINE_KEYS
from ingot.lower.cpu.optimise import drawing_fields
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.selection import Selection
from ingot.lower.states import undecoded
from ingot.lower.view import View, broadcast_view
from ingot.support import abi

_BLOCK_ROWS = abi.constant("INGOT_ATTENTION_ROWS")


def _many_keys(dtype: DType) -> Condition:
    """Refuse if the number of keys of the dtype is too large for complete rows of scores."""
    limit = ONLINE_KEYS[dtype]

    def refuse(selection: Selection, node: Node) -> str:
        (_, heads, rows, _), (_, kv_heads, keys, _) = (selection.graph.type(str(o)).dims for o in node.operands[:2])
        if keys < limit or not kv_heads or heads // kv_heads * rows <= _BLOCK_ROWS:
            return ""
        return f"{keys} keys, expected fewer than {limit}"

    return refuse


def _rounded(dtype: DType) -> Condition:
    """Refuse queries, keys and values that were not rounded for dot products."""

    def refuse(selection: Selection, node: Node) -> str:
        if dtype not in selection.target.rounded:
            return f"the target has no dot products of {dtype}, or they are disabled"
        if any(undecoded(selection.graph, operand, dtype) is None for operand in node.operands[:3]):
            return f"queries, keys or values are not rounded to {dtype}"
        width = selection.graph.type(str(node.operands[0])).dims[-1]
        return f"rows have {width} elements, expected an even number" if width % 2 else ""

    return refuse


def _in_tiles(selection: Selection, node: Node) -> str:
    return "" if selection.target.split_sums else "the target has no split sums"


def _declare(kernel: str, dtype: DType, *conditions: Condition, avoid: Condition = accept) -> None:
    """Declare a kernel for queries, keys and values of a dtype; operands other than f32 were rounded before."""

    @kernel_rule("attention", kernel, both(of(f32, f32, f32), *conditions), avoid)
    def lower(lowering: Lowering, node: Node) -> None:
        read = (o if dtype is f32 else undecoded(lowering.graph, o, dtype) for o in node.operands[:3])
        q, k, v = (lowering.adjacent(operand) for operand in read)
        _lower_attention(lowering, node, kernel, q, k, v)


_declare("attention_bf16_tiles", bf16, _rounded(bf16), _in_tiles)
_declare("attention_bf16", bf16, _rounded(bf16), avoid=_many_keys(bf16))
_declare("attention_bf16_online", bf16, _rounded(bf16))
_declare("attention_f32", f32, avoid=_many_keys(f32))
_declare("attention_f32_online", f32)


def _lower_attention(lowering: Lowering, node: Node, kernel: str, q: View, k: View, v: View) -> None:
    rounding = lowering.groups[node].rounding if node in lowering.groups else None
    value = node.output if rounding is None else rounding.output
    out = lowering.accepted_result(value, lambda view: view.has_adjacent_columns)
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _), v_dim = q.shape, k.shape, v.shape[-1]
    if not heads:
        return
    reads = [q, k, v]
    fields: dict[str, Field] = {
        "q": pointer(q), "k": pointer(k), "v": pointer(v), "out": pointer(out),
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
        "head_dim": head_dim, "v_dim": v_dim,
        "q_strides": q.strides[:3], "k_strides": k.strides[:3], "v_strides": v.strides[:3],
        "out_strides": out.strides[:3], "scale": node.scale, "causal": int(node.causal),
        "causal_offset": node.causal_offset,
        "safe": int(node.safe or kv_len == 0),  # without keys, the output is zero whatever the softmax weights
        "zero_nan": int(node.zero_nan), "rounds": int(rounding is not None),
    }  # fmt: skip
    if len(node.operands) > 3 and node.operands[3] is not None:
        mask = broadcast_view(lowering.view(node.operands[3]), (batch, heads, q_len, kv_len))
        reads.append(mask)
        kind = "INGOT_MASK_FLOAT" if mask.dtype is f32 else "INGOT_MASK_BOOL"
        fields |= {"mask": pointer(mask), "mask_strides": mask.strides, "mask_kind": abi.constant(kind)}
    work = batch * heads * _head_nanoseconds(int(q_len), int(kv_len), head_dim, v_dim)
    if node.op.name == "attention_dropout":
        fields |= _drawn(lowering, node, 4, reads)
        work += batch * heads * q_len * kv_len * NS.drawn
    lowering.step(kernel, "attention_args", fields, reads, [out], work=work)


def _drawn(lowering: Lowering, node: Node, first: int, reads: list[View]) -> dict[str, Field]:
    """Return the dropout fields; the step and part operands, at index `first` and after, are appended to `reads`."""
    found = drawing_fields(node)
    for name, operand in zip(("step", "part"), node.operands[first:], strict=False):
        if operand is not None:
            reads.append(lowering.contiguous(operand))
            found[name] = pointer(reads[-1])
    return found


def _in_step(selection: Selection, node: Node) -> str:
    return "" if node.operands[4] is not None else "the node has no dropout"


def _declare_dropout(kernel: str, avoid: Condition = accept) -> None:
    @kernel_rule("attention_dropout", kernel, both(of(f32, f32, f32), _in_step), avoid)
    def lower(lowering: Lowering, node: Node) -> None:
        q, k, v = (lowering.adjacent(operand) for operand in node.operands[:3])
        _lower_attention(lowering, node, kernel, q, k, v)


_declare_dropout("attention_dropout_f32", avoid=_many_keys(f32))
_declare_dropout("attention_dropout_f32_online")


@kernel_rule("attention_gradient", "attention_gradient_f32", of(f32, f32, f32, f32))
@kernel_rule("attention_dropout_gradient", "attention_dropout_gradient_f32", of(f32, f32, f32, f32))
def _attention_gradient(lowering: Lowering, node: Node) -> None:
    reads = [lowering.adjacent(operand) for operand in node.operands[:4]]
    writes = [lowering.accepted_result(value, lambda view: view.has_adjacent_columns) for value in node.outputs]
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, v_dim) = reads[0].shape, reads[2].shape
    if not kv_heads:
        return
    fields: dict[str, Field] = {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
        "head_dim": head_dim, "v_dim": v_dim, "scale": node.scale, "causal": int(node.causal),
        "causal_offset": node.causal_offset,
    }  # fmt: skip
    for name, view in zip(("q", "k", "v", "d", "dq", "dk", "dv"), (*reads, *writes), strict=True):
        fields |= {name: pointer(view), f"{name}_strides": view.strides[:3]}
    work = NS.attention_gradient_factor * batch * heads * _head_nanoseconds(int(q_len), int(kv_len), head_dim, v_dim)
    if node.op.name == "attention_dropout_gradient":
        fields |= _drawn(lowering, node, 4, reads)
        work += batch * heads * q_len * kv_len * NS.drawn
    lowering.step(f"{node.op.name}_f32", "attention_gradient_args", fields, reads, writes, work=work)


def _head_nanoseconds(q_len: int, kv_len: int, head_dim: int, v_dim: int) -> float:
    """Estimate the time of one head on one thread: both products over panels, softmax, and packing of k and v."""
    keys, columns = (-(-n // PANEL) * PANEL for n in (kv_len, v_dim))
    products = q_len * keys * (head_dim + columns) * NS.multiply_add
    return products + q_len * keys * NS.softmax_weight + (keys * head_dim + kv_len * columns) * NS.packed_keys

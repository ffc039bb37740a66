"""Rows of attention: whole rows of scores, or online over tiles of them."""

from __future__ import annotations

from ingot import abi
from ingot.dtype import f32
from ingot.ir import Node
from ingot.lower.cpu.formats import PANEL
from ingot.lower.cpu.rows import of, row
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, broadcast_view, pointer

# Nanoseconds on one thread: per multiply-add in a packed kernel, per weight of the softmax, per element packed.
_FMA, _WEIGHT, _PACK = 0.018, 0.4, 0.3
# Attention over more keys than this runs online, unless the rows that read a head of keys are one block: those need no
# packed copy of the keys, and whole rows of their scores are small.
_FULL_ROW_KEYS = 4096
_BLOCK_ROWS = abi.constant("INGOT_ATTENTION_ROWS")


def _many_keys(lowering: Lowering, node: Node) -> str:
    (_, heads, rows, _), (_, kv_heads, keys, _) = (lowering.graph.type(str(o)).dims for o in node.operands[:2])
    if keys <= _FULL_ROW_KEYS or not kv_heads or heads // kv_heads * rows <= _BLOCK_ROWS:
        return ""
    return f"{keys} keys, expected at most {_FULL_ROW_KEYS}"


@row("attention", "attention_f32", of(f32, f32, f32), avoid=_many_keys)
def _attention(lowering: Lowering, node: Node) -> None:
    _lower_attention(lowering, node, "attention_f32")


@row("attention", "attention_f32_online", of(f32, f32, f32))
def _attention_online(lowering: Lowering, node: Node) -> None:
    _lower_attention(lowering, node, "attention_f32_online")


def _lower_attention(lowering: Lowering, node: Node, kernel: str) -> None:
    q, k, v = (lowering.adjacent(o) for o in node.operands[:3])
    out = lowering.accepted_result(node.output, lambda view: view.has_adjacent_columns)
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
        "safe": int(node.safe or kv_len == 0),  # values of no columns sum to zeros, whatever their weights
        "zero_nan": int(node.zero_nan),
    }  # fmt: skip
    if len(node.operands) > 3 and node.operands[3] is not None:
        mask = broadcast_view(lowering.view(node.operands[3]), (batch, heads, q_len, kv_len))
        reads.append(mask)
        kind = "INGOT_MASK_FLOAT" if mask.dtype is f32 else "INGOT_MASK_BOOL"
        fields |= {"mask": pointer(mask), "mask_strides": mask.strides, "mask_kind": abi.constant(kind)}
    work = batch * heads * _head_nanoseconds(int(q_len), int(kv_len), head_dim, v_dim)
    lowering.step(kernel, "attention_args", fields, reads, [out], work=work)


def _head_nanoseconds(q_len: int, kv_len: int, head_dim: int, v_dim: int) -> float:
    """An estimate for one head on one thread: both products over whole panels, softmax, and packing k and v."""
    keys, columns = (-(-n // PANEL) * PANEL for n in (kv_len, v_dim))
    products = q_len * keys * (head_dim + columns) * _FMA
    return products + q_len * keys * _WEIGHT + (keys * head_dim + kv_len * columns) * _PACK

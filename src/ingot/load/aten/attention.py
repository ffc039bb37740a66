"""Rules for scaled dot-product attention."""

import math

from ingot.errors import UnsupportedError
from ingot.load.aten.builder import AtenBuilder, Tensor, broadcast, element_count
from ingot.load.aten.registry import aten


@aten("scaled_dot_product_attention.default")
def attention(
    b: AtenBuilder, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Axes before the heads are merged into the batch; operands without heads get one head."""
    if dropout_p and not (b.drops and dropout_p < 1):
        raise UnsupportedError(f"torch node {b.hint!r}: attention with dropout, got {dropout_p}, expected 0")
    if scale is None:
        scale = 1 / math.sqrt(b.static(b.shape(query)[-1], "the head size"))
    rank = max(b.rank(x) for x in (query, key, value))
    leading = broadcast(b.hint, *(b.shape(x)[:-3] for x in (query, key, value)))
    shape = (*b.shape(query)[:-1], b.shape(value)[-1])
    q, k, v = (_with_batch(b, x, leading, rank) for x in (query, key, value))
    mask = None if attn_mask is None else _mask(b, attn_mask, leading, rank)
    if mask is not None and b.dtype(mask).kind == "f":
        mask = b.cast(mask, b.dtype(q))
    result = b.add("attention", q, k, v, mask, scale=float(scale), causal=bool(is_causal), dropout=float(dropout_p))
    return b.reshape(result, (*leading, *shape[-3:]) if rank > 3 else shape)


def _with_batch(b: AtenBuilder, x: Tensor, leading: tuple, rank: int) -> Tensor:
    """Reshape x to [batch, heads, rows, columns]."""
    shape = b.shape(x)
    if rank < 4:  # torch reads rank 3 as [batch, rows, columns]: one head each
        return b.reshape(x, (*(shape[:-2] or (1,)), 1, *shape[-2:]))
    expanded = b.expand(x, (*leading, *shape[-3:]))
    return b.reshape(expanded, (element_count(leading), *shape[-3:]))


def _mask(b: AtenBuilder, mask: Tensor, leading: tuple, rank: int) -> Tensor:
    """Reshape the mask so that it broadcasts to [batch, heads, rows, columns]."""
    shape = b.shape(mask)
    if rank < 4:
        return b.reshape(mask, (shape[0], 1, *shape[-2:])) if len(shape) == 3 else mask
    if len(shape) <= 4 and rank == 4:
        return mask
    inner = (1,) * (3 - len(shape)) + shape[-3:]
    return b.reshape(b.expand(mask, (*leading, *inner)), (element_count(leading), *inner))


@aten("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention_for_cpu(
    b: AtenBuilder, query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    return attention(b, query, key, value, attn_mask, dropout_p, is_causal, scale), None

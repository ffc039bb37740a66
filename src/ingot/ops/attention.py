"""Attention and rotary position embedding."""

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dim import dim_of, divides
from ingot.ir.dtype import f32, i64
from ingot.ir.graph import TensorType
from ingot.ops.define import broadcast_shapes, expect_kind, op, sample, unify
from ingot.ops.dropout import dropout as drop
from ingot.ops.dropout import infer_dropout

ATTENTIONS = ("attention", "attention_dropout")  # their first operands are q, k, v and an optional mask

_LOG2E = float(np.log2(np.e))


def _infer_attention(q, k, v, mask=None, *, scale, causal, causal_offset, safe, zero_nan, dropout=0.0):
    if not q.rank == k.rank == v.rank == 4 or not q.dtype is k.dtype is v.dtype:
        raise ShapeError(f"attention: bad operands, got {q}, {k} and {v}, expected rank 4 and one dtype")
    expect_kind("attention", q, "f")
    if not 0 <= dropout < 1:
        raise ShapeError(f"attention: dropout out of range, got {dropout}, expected 0 <= dropout < 1")
    where, types = "attention of {}, {} and {}", (q, k, v)
    batch = unify(where, unify(where, q.shape[0], k.shape[0], *types), v.shape[0], *types)
    heads, kv_heads = q.shape[1], unify(where, k.shape[1], v.shape[1], *types)
    unify(where, q.shape[3], k.shape[3], *types)
    columns = unify(where, k.shape[2], v.shape[2], *types)
    is_known = isinstance(heads, int) and isinstance(kv_heads, int)
    if is_known and not (divides(kv_heads, heads) if kv_heads else not heads):
        raise ShapeError(f"attention: heads do not group, got {dim_of(heads)} over {dim_of(kv_heads)}")
    if mask is not None:
        _check_mask(q, mask, (batch, heads, q.shape[2], columns))
    return TensorType(q.dtype, (batch, heads, q.shape[2], v.shape[3]))


def _check_mask(q: TensorType, mask: TensorType, scores: tuple) -> None:
    if mask.dtype.kind != "b" and mask.dtype is not q.dtype:
        raise ShapeError(f"attention: bad mask, got {mask}, expected bool or {q.dtype}")
    shape = broadcast_shapes("attention: mask", mask.shape, scores)
    if mask.rank > 4 or any(a != b and isinstance(a, int) and isinstance(b, int) for a, b in zip(shape, scores)):  # noqa: B905
        raise ShapeError(f"attention: mask does not broadcast, got {mask}, expected {list(scores)}")


def expand_heads(g, x, heads):
    """Repeat each head of k or v for its group of query heads."""
    batch, kv_heads, length, width = g.type(x).shape
    if kv_heads == heads:
        return x
    groups = heads // kv_heads
    x = g.reshape(x, shape=(batch, kv_heads, 1, length, width))
    x = g.expand(x, shape=(batch, kv_heads, groups, length, width))
    return g.reshape(x, shape=(batch, heads, length, width))


def expand_weights(g, q, k, mask, *, scale, causal, causal_offset, safe, zero_nan, dropout=0.0):
    """Compute the attention weights, [B,H,S,T], for a k with one head per query head."""
    rows, columns = g.type(q).shape[2], g.type(k).shape[2]
    scores = g.matmul(q, k, transpose_b=True, scale=scale)
    if mask is not None:
        added = g.type(mask).dtype.kind == "f"
        scores = g.add(scores, mask) if added else g.where(mask, scores, float("-inf"))
    if causal:
        row = g.reshape(g.iota(length=rows, start=0, step=1, dtype=i64), shape=(rows, 1))
        column = g.iota(length=columns, start=0, step=1, dtype=i64)
        scores = g.where(g.less_equal(g.sub(column, row), causal_offset), scores, float("-inf"))
    largest = g.reduce_max(scores, axes=(3,), keepdims=True)
    if safe:  # replacing a maximum of -inf by a finite number keeps exp(-inf - m) at 0 instead of NaN
        largest = g.maximum(largest, float(np.finfo(np.float32).min))
    power = g.exp(g.sub(scores, largest))
    total = g.reduce_sum(power, axes=(3,), keepdims=True)
    if safe:  # a row that sees any column sums to at least exp(0) = 1
        total = g.maximum(total, 1.0)
    weights = g.div(power, total)
    return g.where(g.isnan(weights), 0.0, weights) if zero_nan else weights


def _expand_attention(g, q, k, v, mask=None, **attributes):
    heads = g.type(q).shape[1]
    weights = expand_weights(g, q, expand_heads(g, k, heads), mask, **attributes)
    return g.matmul(weights, expand_heads(g, v, heads))


@op(
    infer=_infer_attention,
    tolerance={f32: 5e-6},
    expand=_expand_attention,
    samples=[
        sample("q[2,3,5,8] k[2,3,7,8] v[2,3,7,8]", scale=0.35),
        sample("q[1,4,9,16] k[1,4,9,16] v[1,4,9,16]", scale=0.25, causal=True),
        sample("q[1,4,3,8] k[1,2,7,8] v[1,2,7,5]", scale=0.3, causal=True, causal_offset=4),
        sample("q[2,6,5,4] k[2,2,5,4] v[2,2,5,4] m:bool[5,5]", scale=0.5),
        sample("q[2,2,5,4] k[2,2,6,4] v[2,2,6,4] m[2,1,1,6]", scale=0.5),
        sample("q[2,2,5,4] k[2,2,6,4] v[2,2,6,4] m:bool[2,1,5,6]", scale=0.5, causal=True),
        sample("q[1,1,5,4] k[1,1,3,4] v[1,1,3,4]", scale=0.5, causal=True, causal_offset=-2),
        sample("q[1,1,5,4] k[1,1,3,4] v[1,1,3,4]", scale=0.5, causal=True, causal_offset=2**63 - 1),
        sample("q[1,1,5,4] k[1,1,3,4] v[1,1,3,4]", scale=0.5, causal=True, causal_offset=-(2**63)),
        sample("q[1,2,1,64] k[1,2,65,64] v[1,2,65,64]", scale=0.125),
        sample("q[1,1,1,1] k[1,1,1,1] v[1,1,1,1]", scale=1.0),
        sample("q[0,2,3,4] k[0,2,3,4] v[0,2,3,4]", scale=0.5),
        sample("q[2,0,3,4] k[2,0,3,4] v[2,0,3,4]", scale=0.5),
        sample("q[1,2,3,4] k[1,2,0,4] v[1,2,0,4]", scale=0.5),
        sample("q[1,2,3,4] k[1,2,0,4] v[1,2,0,4]", scale=0.5, safe=False),
        sample("q[1,1,5,4] k[1,1,3,4] v[1,1,3,5]", scale=0.5, causal=True, causal_offset=-2, safe=False),
        sample("q[2,2,5,4] k[2,2,3,4] v[2,2,3,4] m:bool[2,1,5,3]", scale=0.5, safe=False),
        sample("q[1,1,5,4] k[1,1,3,4] v[1,1,3,5]", scale=0.5, causal=True, causal_offset=-2, zero_nan=True),
    ],
)
def attention(
    q, k, v, mask=None, *,
    scale: float, causal: bool = False, causal_offset: int = 0, safe: bool = True, zero_nan: bool = False,
    dropout: float = 0.0,
):  # fmt: skip
    """softmax(scale * q k^T + mask) v, with a group of query heads for each key and value head.

    q [B,H,S,D], k [B,Hk,T,D], v [B,Hk,T,Dv], mask bool (true keeps) or float (added), broadcastable to [B,H,S,T].
    causal: row i sees columns up to i + causal_offset. A row whose scores are all -inf sees nothing: its result is
    zeros if `safe`, as in attention of torch and ONNX; else NaN, as in their softmax. q is scaled first; a row with
    scores of +inf or NaN, beyond the range of floats, is NaN; all smaller scores give the exact limit.
    zero_nan: weights that are NaN count as zero, so a NaN row becomes zeros.
    dropout: the share of weights that a training step drops; inference ignores it.
    Vaswani et al., "Attention Is All You Need", 2017; Ainslie et al., "GQA", 2023.
    """
    stored = q.dtype
    if stored.itemsize == 2:  # rounded once, at the end
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        mask = mask if mask is None or mask.dtype.kind == "b" else mask.astype(np.float32)
    groups = q.shape[1] // max(k.shape[1], 1)
    weights = _weights(q, np.repeat(k, groups, 1), mask, scale, causal, causal_offset, safe, zero_nan)
    return np.matmul(weights, np.repeat(v, groups, 1)).astype(stored)


def _weights(q, k, mask, scale, causal, causal_offset, safe, zero_nan):
    """Return the attention weights, for a k with one head per query head."""
    transposed = np.swapaxes(k, -1, -2)
    scores = np.matmul(q * q.dtype.type(scale), transposed)
    if not (np.abs(scores) < 1e36).all():  # in the kernels' unit, log2(e), scores leave the range of floats earlier
        in_bits = np.matmul(q * q.dtype.type(scale * _LOG2E), transposed)
        scores = np.where(np.isfinite(in_bits), scores, in_bits)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype.kind == "b" else scores + mask
    if causal:
        rows, columns = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
        scores = np.where(columns - rows <= causal_offset, scores, -np.inf)
    largest = np.max(scores, -1, keepdims=True, initial=-np.inf)
    is_masked = (largest == -np.inf) & safe
    power = np.exp(scores - np.where(is_masked, 0, largest))
    total = np.sum(power, -1, np.float64, keepdims=True).astype(power.dtype)
    weights = power / np.where(is_masked, 1, total)
    return np.where(np.isnan(weights) & zero_nan, 0, weights)


def _infer_attention_dropout(q, k, v, mask=None, step=None, part=None, *, rate, seed, stream, **attributes):
    result = _infer_attention(q, k, v, mask, **attributes)
    infer_dropout(result, step, part, rate=rate, seed=seed, stream=stream)
    return result


def _expand_attention_dropout(g, q, k, v, mask=None, step=None, part=None, *, rate, seed, stream, **attributes):
    heads = g.type(q).shape[1]
    weights = expand_weights(g, q, expand_heads(g, k, heads), mask, **attributes)
    weights = g.dropout(weights, step, part, rate=rate, seed=seed, stream=stream)
    return g.matmul(weights, expand_heads(g, v, heads))


@op(
    infer=_infer_attention_dropout,
    tolerance={f32: 5e-6},
    expand=_expand_attention_dropout,
    samples=[
        sample("q[2,3,5,8] k[2,3,7,8] v[2,3,7,8] none s:f64>0<9[] none", scale=0.35, rate=0.3, seed=5),
        sample(
            "q[2,4,9,16] k[2,2,9,16] v[2,2,9,5] none s:f64>0<9[] p:f64>1<5[]",
            scale=0.25, causal=True, rate=0.5, seed=2**40 + 3, stream=2,
        ),
        sample("q[2,2,5,4] k[2,2,6,4] v[2,2,6,4] m[2,1,1,6] s:f64>0<9[] none", scale=0.5, rate=0.2, stream=1),
        sample("q[1,2,30,8] k[1,2,70,8] v[1,2,70,8] m:bool[30,70] s:f64>0<9[] none", scale=0.5, rate=0.1),
        sample("q[1,1,5,4] k[1,1,3,4] v[1,1,3,4] none none none", scale=0.5, rate=0.5),
        sample("q[0,2,3,4] k[0,2,3,4] v[0,2,3,4] none s:f64>0<9[] none", scale=0.5, rate=0.5),
        sample("q[1,2,3,4] k[1,2,0,4] v[1,2,0,4] none s:f64>0<9[] none", scale=0.5, rate=0.5),
    ],
)  # fmt: skip
def attention_dropout(
    q, k, v, mask=None, step=None, part=None, *,
    scale: float, causal: bool = False, causal_offset: int = 0, safe: bool = True, zero_nan: bool = False,
    rate: float, seed: int = 0, stream: int = 0,
):  # fmt: skip
    """attention with dropout on its weights, [B,H,S,T], before the product with v.

    The dropped weights are those that `dropout` drops with the same step, part, rate, seed and stream; without a step
    none are dropped.
    """
    groups = q.shape[1] // max(k.shape[1], 1)
    weights = _weights(q, np.repeat(k, groups, 1), mask, scale, causal, causal_offset, safe, zero_nan)
    weights = drop(weights, step, part, rate=rate, seed=seed, stream=stream)
    return np.matmul(weights, np.repeat(v, groups, 1))


def _infer_attention_gradient(q, k, v, d, *, scale, causal, causal_offset):
    settings = {"scale": scale, "causal": causal, "causal_offset": causal_offset}
    result = _infer_attention(q, k, v, **settings, safe=True, zero_nan=False)
    if d != result:
        raise ShapeError(f"attention_gradient: bad gradient, got {d}, expected {result}")
    return q, k, v


def _expand_grouped(g, d, like):
    """Sum gradients over the query heads of each key head."""
    batch, kv_heads, length, width = g.type(like).shape
    heads = g.type(d).shape[1]
    if heads == kv_heads:
        return d
    d = g.reshape(d, shape=(batch, kv_heads, heads // kv_heads, length, width))
    return g.reduce_sum(d, axes=(2,), keepdims=False)


def expand_gradients(g, q, k, v, d, mask, drops=lambda x: x, **attributes):
    """Compute the gradients of q, k, v and of the scores: first through softmax, then through the products. drops:
    applied to the weights before the product with v, and to their gradients.
    """
    heads = g.type(q).shape[1]
    wide_k, wide_v = expand_heads(g, k, heads), expand_heads(g, v, heads)
    weights = expand_weights(g, q, wide_k, mask, **attributes)
    read = g.mul(weights, drops(g.matmul(d, wide_v, transpose_b=True)))
    scores = g.sub(read, g.mul(weights, g.reduce_sum(read, axes=(3,), keepdims=True)))
    of_q = g.matmul(scores, wide_k, scale=attributes["scale"])
    of_k = g.matmul(scores, q, transpose_a=True, scale=attributes["scale"])
    of_v = g.matmul(drops(weights), d, transpose_a=True)
    return of_q, _expand_grouped(g, of_k, k), _expand_grouped(g, of_v, v), scores


def _expand_attention_gradient(g, q, k, v, d, **attributes):
    return expand_gradients(g, q, k, v, d, None, **attributes, safe=True, zero_nan=False)[:3]


@op(
    infer=_infer_attention_gradient,
    outputs=3,
    tolerance={f32: 2e-5},
    expand=_expand_attention_gradient,
    samples=[
        sample("q[2,3,5,8] k[2,3,7,8] v[2,3,7,8] d[2,3,5,8]", scale=0.35),
        sample("q[1,4,9,16] k[1,4,9,16] v[1,4,9,16] d[1,4,9,16]", scale=0.25, causal=True),
        sample("q[1,4,3,8] k[1,2,7,8] v[1,2,7,5] d[1,4,3,5]", scale=0.3, causal=True, causal_offset=4),
        sample("q[1,2,70,33] k[1,1,70,33] v[1,1,70,40] d[1,2,70,40]", scale=0.2, causal=True),
        sample("q[1,1,5,4] k[1,1,3,4] v[1,1,3,4] d[1,1,5,4]", scale=0.5, causal=True, causal_offset=-2),
        sample("q[1,1,5,4] k[1,1,3,4] v[1,1,3,4] d[1,1,5,4]", scale=0.5, causal=True, causal_offset=-(2**63)),
        sample("q[0,2,3,4] k[0,2,3,4] v[0,2,3,4] d[0,2,3,4]", scale=0.5),
        sample("q[1,2,3,4] k[1,2,0,4] v[1,2,0,4] d[1,2,3,4]", scale=0.5),
    ],
)
def attention_gradient(q, k, v, d, *, scale: float, causal: bool = False, causal_offset: int = 0):
    """The gradients of q, k and v of attention without a mask, from d, the gradient of its result.

    A row that sees nothing has weights of 0, and so gradients of 0. The gradient of a key or value head is the sum over
    the query heads that read it. Dao and others, "FlashAttention", 2022.
    """
    return _gradients(q, k, v, d, scale, causal, causal_offset, lambda x: x)


def _gradients(q, k, v, d, scale, causal, causal_offset, drops):
    groups = q.shape[1] // max(k.shape[1], 1)
    wide_k, wide_v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    real = q.dtype.type(scale)
    weights = _weights(q, wide_k, None, scale, causal, causal_offset, True, False)
    read = weights * drops(np.matmul(d, np.swapaxes(wide_v, -1, -2)))
    scores = (read - weights * np.sum(read, -1, keepdims=True)) * real

    def grouped(x, like):
        return x.reshape(*like.shape[:2], max(groups, 1), *like.shape[2:]).sum(2) if like.size else np.zeros_like(like)

    of_k = grouped(np.matmul(np.swapaxes(scores, -1, -2), q), k)
    return np.matmul(scores, wide_k), of_k, grouped(np.matmul(np.swapaxes(drops(weights), -1, -2), d), v)


def _infer_dropout_gradient(q, k, v, d, step, part=None, *, rate, seed, stream, **attributes):
    infer_dropout(q, step, part, rate=rate, seed=seed, stream=stream)
    return _infer_attention_gradient(q, k, v, d, **attributes)


def _expand_dropout_gradient(g, q, k, v, d, step, part=None, *, rate, seed, stream, **attributes):
    def drops(x):
        return g.dropout(x, step, part, rate=rate, seed=seed, stream=stream)

    return expand_gradients(g, q, k, v, d, None, drops, **attributes, safe=True, zero_nan=False)[:3]


@op(
    infer=_infer_dropout_gradient,
    outputs=3,
    tolerance={f32: 2e-5},
    expand=_expand_dropout_gradient,
    samples=[
        sample("q[2,3,5,8] k[2,3,7,8] v[2,3,7,8] d[2,3,5,8] s:f64>0<9[] none", scale=0.35, rate=0.3, seed=5),
        sample(
            "q[2,4,70,33] k[2,2,70,33] v[2,2,70,40] d[2,4,70,40] s:f64>0<9[] p:f64>1<5[]",
            scale=0.2, causal=True, rate=0.5, seed=2**40 + 3, stream=2,
        ),
        sample("q[0,2,3,4] k[0,2,3,4] v[0,2,3,4] d[0,2,3,4] s:f64>0<9[] none", scale=0.5, rate=0.5),
        sample("q[1,2,3,4] k[1,2,0,4] v[1,2,0,4] d[1,2,3,4] s:f64>0<9[] none", scale=0.5, rate=0.5),
    ],
)  # fmt: skip
def attention_dropout_gradient(
    q, k, v, d, step, part=None, *,
    scale: float, causal: bool = False, causal_offset: int = 0, rate: float, seed: int = 0, stream: int = 0,
):  # fmt: skip
    """The gradients of q, k and v of attention_dropout without a mask, from d, the gradient of its result.

    As those of attention; dropped weights contribute nothing.
    """

    def drops(x):
        return drop(x, step, part, rate=rate, seed=seed, stream=stream)

    return _gradients(q, k, v, d, scale, causal, causal_offset, drops)


def _infer_rotary(x, cos, sin):
    if not x.dtype is cos.dtype is sin.dtype or not x.rank >= 2:
        raise ShapeError(f"rotary: bad operands, got {x}, {cos} and {sin}, expected one dtype and rank 2 or more")
    expect_kind("rotary", x, "f")
    width = x.shape[-1]
    if not isinstance(width, int) or width % 2:
        raise ShapeError(f"rotary: bad last dim of x, got {x}, expected an even number")
    for angles in (cos, sin):
        shape = broadcast_shapes("rotary", x.shape, angles.shape)
        if len(shape) != x.rank or any(a != b and isinstance(b, int) for a, b in zip(shape, x.shape, strict=True)):
            raise ShapeError(f"rotary: angles do not broadcast, got {angles}, expected {list(x.shape)}")
        if angles.shape[-1:] != (width,):
            raise ShapeError(f"rotary: bad last dim of the angles, got {angles}, expected {width}")
    return x


def _expand_rotary(g, x, cos, sin):
    shape = g.type(x).shape
    half, last = shape[-1] // 2, len(shape) - 1
    zeros, steps = (0,) * len(shape), (1,) * len(shape)
    low = g.slice(x, starts=zeros, stops=(*shape[:-1], half), steps=steps)
    high = g.slice(x, starts=(*zeros[:-1], half), stops=shape, steps=steps)
    rotated = g.concat(g.neg(high), low, axis=last)
    return g.add(g.mul(x, cos), g.mul(rotated, sin))


@op(
    infer=_infer_rotary,
    acts_on="row",
    expand=_expand_rotary,
    samples=[
        sample("x[2,3,5,8] cos[5,8] sin[5,8]"),
        sample("x[2,3,5,34] cos[2,1,5,34] sin[2,1,5,34]"),
        sample("x[1,1,1,2] cos[1,2] sin[1,2]"),
        sample("x[0,2,3,4] cos[3,4] sin[3,4]"),
        sample("x[5,3,8] cos[5,1,8] sin[5,1,8]"),
        sample("x[5,8] cos[5,8] sin[5,8]"),
    ],
)
def rotary(x, cos, sin):
    """x * cos + rotate_half(x) * sin, where rotate_half([a, b]) = [-b, a] on halves of the last axis.

    x [B,H,S,D]; cos and sin [..,S,D] or [D] broadcast to it, with one angle per column. Su et al., "RoFormer", 2021, in
    the half-split layout.
    """
    half = x.shape[-1] // 2
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin

"""Rule for LinearAttention of ONNX and com.microsoft, as exported for language models with recurrent layers."""

from __future__ import annotations

from ingot.ir.dim import floordiv
from ingot.ir.dtype import f32
from ingot.load.onnx.attention import default_scale
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import MICROSOFT, onnx

# The update rules: whether the state decays, and whether it is corrected by what it already has of a key (delta).
_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


@onnx("LinearAttention")
@onnx("LinearAttention", domain=MICROSOFT)
def linear_attention(call: Call) -> tuple[str | None, ...]:
    """Read packed heads [B,T,H*D], a state [B,Hkv,K,V], logarithms of decays, and the rates of updates.

    The side with fewer heads, queries or keys, is repeated. The computation is in f32, as in ONNX Runtime.
    """
    if call.attr_int("state_window", 0):
        raise call.unsupported("a window of states")
    heads, kv_heads = call.attr_int("q_num_heads"), call.attr_int("kv_num_heads")
    if min(heads, kv_heads) < 1 or max(heads, kv_heads) % min(heads, kv_heads):
        raise call.malformed(f"{heads} heads over {kv_heads}")
    decays, corrects = _RULES[call.word("update_rule", "gated_delta", tuple(_RULES))]
    q, (k, v) = _split(call, 0, heads), (_split(call, i, kv_heads) for i in (1, 2))
    batch, steps, _, k_dim = call.known_shape(call.build.type(q))
    scale = call.attr_float("scale", 0.0) or default_scale(call, k_dim)
    decay = call.build.exp(_split(call, 4, kv_heads)) if decays else None
    beta = call.build.expand(call.cast(call[5], f32), shape=(batch, steps, kv_heads)) if corrects else None
    groups = max(1, heads // kv_heads)
    parts = [_repeated(call, q, 2, max(1, kv_heads // heads))]
    parts += [_repeated(call, each, axis, groups) for each, axis in ((k, 2), (v, 2), (_state(call, k, v), 1))]
    rest = [each and _repeated(call, each, 2, groups) for each in (decay, beta)]
    result, last = call.build.add_all("linear_attention", *parts, *rest, scale=scale)
    width = call.known_shape(call.build.type(result))[3]
    packed = call.reshape(result, (batch, steps, max(heads, kv_heads) * width))
    last = call.slice(last, 1, 0, heads, groups) if groups > 1 else last
    kept = call.type(3).dtype if call.has(3) else call.type(0).dtype
    return call.cast(packed, call.type(0).dtype), call.cast(last, kept)


def _split(call: Call, index: int, heads: int) -> str:
    """Return an operand [B,T,H*D] in f32 as [B,T,H,D]."""
    shape = call.shape(index)
    if len(shape) != 3 or (isinstance(shape[2], int) and shape[2] % heads):
        raise call.malformed(f"{heads} heads do not fit {call.type(index)}")
    return call.reshape(call.cast(call[index], f32), (*shape[:2], heads, floordiv(shape[2], heads)))


def _state(call: Call, k: str, v: str) -> str:
    """Return the state before the first step, by default zeros."""
    if call.has(3):
        return call.cast(call[3], f32)
    (batch, _, heads, k_dim), v_dim = call.known_shape(call.build.type(k)), call.known_shape(call.build.type(v))[3]
    return call.build.expand(call.build.scalar(0.0, f32), shape=(batch, heads, k_dim, v_dim))


def _repeated(call: Call, x: str, axis: int, count: int) -> str:
    """Repeat each head, along an axis."""
    if count == 1:
        return x
    shape = call.known_shape(call.build.type(x))
    before, heads, after = shape[:axis], shape[axis], shape[axis + 1 :]
    x = call.build.expand(call.reshape(x, (*before, heads, 1, *after)), shape=(*before, heads, count, *after))
    return call.reshape(x, (*before, heads * count, *after))

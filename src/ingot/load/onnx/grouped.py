"""Rule for GroupQueryAttention of com.microsoft: attention with a cache, as exported for language models."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ingot.ir.dtype import boolean, i64
from ingot.load.onnx.attention import appended, attend, default_scale, join_heads, rotated, split_heads
from ingot.load.onnx.call import Call
from ingot.load.onnx.index import checked
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size

_NO_SCORES, _SCORES, _WEIGHTS = 0, 1, 2  # values of `qk_output`


@dataclass(slots=True)
class _Lengths:
    """The lengths of a call. before: i64[B, 1, 1, 1], the number of cached keys of each row."""

    rows: Size
    past: Size
    total: Size
    before: str


@onnx("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(call: Call) -> tuple[str | None, ...]:
    """Append keys and values to the cache of each row, whose length is in `seqlens_k`.

    The new cache is as long as the longest row, or as the given cache if that is longer. Ainslie et al., "GQA", 2023.
    """
    _refuse_rest(call)
    heads, kv_heads = call.attr_int("num_heads"), call.attr_int("kv_num_heads")
    q, k, v = _parts(call, heads, kv_heads)
    lengths = _lengths(call, call.known_shape(call.build.type(q))[2])
    if call.attr_int("do_rotary", 0):
        q, k = (_transposed(call, x, lengths) for x in (q, k))
    if call.has(3) and call.has(4):
        sizes = lengths.before, lengths.past, lengths.total, lengths.rows
        k, v = appended(call, call[3], k, *sizes), appended(call, call[4], v, *sizes)
    scale, mask = call.attr_float("scale", 0.0) or None, _mask(call, lengths)
    cap, sinks = call.attr_float("softcap", 0.0), _sinks(call, heads)
    if cap == 0.0 and sinks is None and not call.attr_int("qk_output", 0):
        return join_heads(call, attend(call, q, k, v, mask, scale=scale)), k, v
    result, scores, weights = _with_plain_ops(call, (q, k, v), mask, scale, cap, sinks)
    build, requested = call.build, call.attr_int("qk_output", 0)
    if requested == _SCORES:  # 0 for hidden keys
        return join_heads(call, result), k, v, build.where(build.equal(scores, -math.inf), 0.0, scores)
    return join_heads(call, result), k, v, weights if requested == _WEIGHTS else None


def _refuse_rest(call: Call) -> None:
    requested = [f"input {i}" for i in range(12, len(call)) if call.has(i)]
    requested += [f"a cache of {call.type(3).dtype}"] if call.has(3) and call.type(3).dtype.kind != "f" else []
    scores = call.attr_int("qk_output", 0)
    requested += [] if scores in (_NO_SCORES, _SCORES, _WEIGHTS) else [f"qk_output {scores}"]
    if requested or call.has(3) != call.has(4):
        raise call.unsupported(f"{', '.join(requested) or 'half a cache'}")


def _parts(call: Call, heads: int, kv_heads: int) -> list[str]:
    """Return query, keys and values, each [B,heads,S,D]; the query operand may hold the columns of all three."""
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise call.malformed(f"{heads} heads over {kv_heads}")
    counts = (heads, kv_heads, kv_heads)
    if call.has(1) and call.has(2):
        return [split_heads(call, call[i], count) for i, count in enumerate(counts)]
    width = call.shape(0)[-1] if call.type(0).rank == 3 else 1
    if not isinstance(width, int):
        raise call.unbound(f"operand {call.type(0)} for {counts} heads")
    if width % sum(counts):
        raise call.malformed(f"operand {call.type(0)} for {counts} heads")
    size, start, parts = width // sum(counts), 0, []
    for count in counts:
        parts.append(split_heads(call, call.slice(call[0], 2, start, start + count * size), count))
        start += count * size
    return parts


def _lengths(call: Call, rows: Size) -> _Lengths:
    build = call.build
    past: Size = call.shape(3)[2] if call.has(3) else 0
    total = _total(call, past, rows)
    last = call.reshape(call.cast(checked(call, call[5], total, "seqlens_k"), i64), (call.shape(0)[0], 1, 1, 1))
    before = build.maximum(build.add(last, build.scalar(1, i64)), build.dims(values=(rows,)))
    return _Lengths(rows, past, total, build.sub(before, build.dims(values=(rows,))))


def _total(call: Call, past: Size, rows: Size) -> Size:
    """Return the length of the new cache."""
    build, known = call.build, call.known(6)
    total: Size = known.item() if known is not None and known.size == 1 else -1
    if not call.has(3):
        return rows
    if total == past + rows:
        return total
    if isinstance(total, int) and isinstance(past, int) and total >= 0:
        return max(total, past)
    longest = build.maximum(call.reshape(call.cast(call[6], i64), (1,)), build.dims(values=(past,)))
    return call.measured(longest)[0]


def _position(call: Call, lengths: _Lengths) -> str:
    """Return the position of each new row: i64[B, 1, S, 1]."""
    rows = call.build.iota(length=lengths.rows, start=0, step=1, dtype=i64)
    return call.build.add(lengths.before, call.reshape(rows, (1, 1, lengths.rows, 1)))


def _transposed(call: Call, x: str, lengths: _Lengths) -> str:
    batch, _, rows, width = call.known_shape(call.build.type(x))
    positions = call.get(9) or call.reshape(_position(call, lengths), (batch, rows))
    if call.type(7).rank != 2:
        raise call.malformed(f"a cache {call.type(7)} of angles")
    half = call.type(7).shape[-1]
    if not isinstance(half, int) or not isinstance(width, int):
        raise call.unbound(f"a cache {call.type(7)} of angles")
    interleaved = bool(call.attr_int("rotary_interleaved", 0))
    return rotated(call, x, call[7], call[8], positions, part=2 * half, interleaved=interleaved)


def _mask(call: Call, lengths: _Lengths) -> str:
    """Return the mask of visible keys, [B,1,S,total]: keys up to the row itself (all keys if not causal), within a
    window; combined with a bias of the scores, if given.
    """
    build, window = call.build, call.attr_int("local_window_size", -1)
    column = build.iota(length=lengths.total, start=0, step=1, dtype=i64)
    position = _position(call, lengths)
    if call.attr_int("causal", 1):
        visible = build.less_equal(column, position)
    else:
        visible = build.less(column, build.add(lengths.before, build.dims(values=(lengths.rows,))))
    if window > 0:
        visible = build.logical_and(visible, build.greater(column, build.sub(position, build.scalar(window, i64))))
    if not call.has(10):
        return visible
    return build.where(visible, call[10], build.scalar(-math.inf, call.type(10).dtype))


def _sinks(call: Call, heads: int) -> str | None:
    """Return an extra score of each head, [1,H,1,1], that joins the softmax but has no value; 0 for smooth softmax."""
    if call.has(11):
        return call.reshape(call.cast(call[11], call.type(0).dtype), (1, heads, 1, 1))
    if call.attr_int("smooth_softmax", 0) > 0:
        return call.build.scalar(0.0, call.type(0).dtype)
    return None


def _with_plain_ops(
    call: Call, parts: tuple[str, str, str], mask: str, scale: float | None, cap: float, sinks: str | None
) -> tuple[str, str, str]:
    """Compute attention with plain ops, for soft-capped scores and sinks, which the attention op does not support.
    Returns the result, the scores and the weights [B,H,S,total].
    """
    build = call.build
    (batch, heads, rows, width), (_, kv_heads, columns, _) = (call.known_shape(build.type(x)) for x in parts[:2])
    q = call.reshape(parts[0], (batch, kv_heads, heads // kv_heads, rows, width))
    k, v = (call.reshape(x, (batch, kv_heads, 1, columns, width)) for x in parts[1:])
    scores = call.reshape(
        build.matmul(q, k, transpose_b=True, scale=scale or default_scale(call, width)), (batch, heads, rows, columns)
    )
    if cap:
        scores = build.mul(build.tanh(build.div(scores, cap)), cap)
    if build.type(mask).dtype is boolean:
        scores = build.where(mask, scores, build.scalar(-math.inf, build.type(scores).dtype))
    else:
        scores = build.add(scores, mask)
    with_sinks = scores
    if sinks is not None:
        with_sinks = build.concat(scores, build.expand(sinks, shape=(batch, heads, rows, 1)), axis=3)
    weights = call.slice(build.softmax(with_sinks, axis=3), 3, 0, columns)
    grouped = call.reshape(weights, (batch, kv_heads, heads // kv_heads, rows, columns))
    return call.reshape(build.matmul(grouped, v), (batch, heads, rows, width)), scores, weights

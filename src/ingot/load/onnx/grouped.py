"""GroupQueryAttention of com.microsoft: attention with a cache, as exporters of language models write it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ingot.dtype import i64
from ingot.load.onnx.attention import attend, join_heads, rotated, split_heads
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size


@dataclass(slots=True)
class _Lengths:
    """The lengths of a call. before: i64[B, 1, 1, 1], the keys of each row that came earlier."""

    rows: Size
    past: Size
    total: Size
    before: str


@onnx("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(call: Call) -> tuple[str | None, ...]:
    """Keys and values go behind those of each row's cache, which counts by `seqlens_k`.

    The new cache is as long as the longest row, or as the one that is given. Ainslie et al., "GQA", 2023.
    """
    _refuse_rest(call)
    heads, kv_heads = call.attr_int("num_heads"), call.attr_int("kv_num_heads")
    q, k, v = _parts(call, heads, kv_heads)
    lengths = _lengths(call, call.known_shape(call.build.type(q))[2])
    if call.attr_int("do_rotary", 0):
        q, k = (_turned(call, x, lengths) for x in (q, k))
    if call.has(3) and call.has(4):
        k, v = _appended(call, call[3], k, lengths), _appended(call, call[4], v, lengths)
    scale = call.attr_float("scale", 0.0) or None
    result = attend(call, q, k, v, _mask(call, lengths), scale=scale)
    return join_heads(call, result), k, v


def _refuse_rest(call: Call) -> None:
    asked = [name for name in ("smooth_softmax", "qk_output") if call.attr_int(name, 0) > 0]
    asked += ["softcap"] if call.attr_float("softcap", 0.0) else []
    asked += [name for name in ("k_quant_type", "v_quant_type") if call.attr_text(name, "NONE") != "NONE"]
    asked += [f"input {i}" for i in range(11, len(call)) if call.has(i)]
    if asked or call.has(3) != call.has(4):
        raise call.unsupported(f"{', '.join(asked) or 'half a cache'}")


def _parts(call: Call, heads: int, kv_heads: int) -> list[str]:
    """Query, keys and values, each [B,heads,S,D]; all may be the query's columns."""
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise call.malformed(f"{heads} heads over {kv_heads}")
    counts = (heads, kv_heads, kv_heads)
    if call.has(1) and call.has(2):
        return [split_heads(call, call[i], count) for i, count in enumerate(counts)]
    width = call.shape(0)[-1] if call.type(0).rank == 3 else None
    if not isinstance(width, int) or width % sum(counts):
        raise call.malformed(f"operand {call.type(0)} for {counts} heads")
    size, start, parts = width // sum(counts), 0, []
    for count in counts:
        parts.append(split_heads(call, call.slice(call[0], 2, start, start + count * size), count))
        start += count * size
    return parts


def _lengths(call: Call, rows: Size) -> _Lengths:
    build = call.build
    past: Size = call.shape(3)[2] if call.has(3) else 0
    last = call.reshape(call.cast(call[5], i64), (call.shape(0)[0], 1, 1, 1))
    before = build.maximum(build.add(last, build.scalar(1, i64)), build.dims(values=(rows,)))
    before = build.sub(before, build.dims(values=(rows,)))
    known = call.known(6)
    total: Size = known.item() if known is not None and known.size == 1 else -1
    if not call.has(3):
        return _Lengths(rows, 0, rows, before)
    if total == past + rows or (isinstance(total, int) and isinstance(past, int) and total >= 0):
        return _Lengths(rows, past, total if total == past + rows else max(total, past), before)  # type: ignore[type-var]
    longest = build.maximum(call.reshape(call.cast(call[6], i64), (1,)), build.dims(values=(past,)))
    return _Lengths(rows, past, call.measured(longest)[0], before)


def _appended(call: Call, cache: str, x: str, lengths: _Lengths) -> str:
    """Each row's cache, its new elements in their place in it: [B,heads,total,D]."""
    build = call.build
    both = build.concat(cache, x, axis=2)
    batch, heads, _, width = call.known_shape(build.type(both))
    place = call.reshape(build.iota(length=lengths.total, start=0, step=1, dtype=i64), (1, 1, lengths.total, 1))
    behind = build.sub(place, lengths.before)
    is_new = build.logical_and(build.greater_equal(behind, 0), build.less(behind, build.dims(values=(lengths.rows,))))
    index = build.where(is_new, build.add(behind, build.dims(values=(lengths.past,))), place)
    return build.gather_elements(both, build.expand(index, shape=(batch, heads, lengths.total, width)), axis=2)


def _position(call: Call, lengths: _Lengths) -> str:
    """The position of each new row: i64[B, 1, S, 1]."""
    rows = call.build.iota(length=lengths.rows, start=0, step=1, dtype=i64)
    return call.build.add(lengths.before, call.reshape(rows, (1, 1, lengths.rows, 1)))


def _turned(call: Call, x: str, lengths: _Lengths) -> str:
    batch, _, rows, width = call.known_shape(call.build.type(x))
    positions = call.get(9) or call.reshape(_position(call, lengths), (batch, rows))
    half = call.type(7).shape[-1] if call.type(7).rank == 2 else None
    if not isinstance(half, int) or not isinstance(width, int):
        raise call.malformed(f"a cache {call.type(7)} of angles")
    interleaved = bool(call.attr_int("rotary_interleaved", 0))
    return rotated(call, x, call[7], call[8], positions, part=2 * half, interleaved=interleaved)


def _mask(call: Call, lengths: _Lengths) -> str:
    """Which keys each row sees, [B,1,S,total]: those up to itself, within a window; and a bias of the scores."""
    build, window = call.build, call.attr_int("local_window_size", -1)
    column = build.iota(length=lengths.total, start=0, step=1, dtype=i64)
    position = _position(call, lengths)
    seen = build.less_equal(column, position)
    if window > 0:
        seen = build.logical_and(seen, build.greater(column, build.sub(position, build.scalar(window, i64))))
    if not call.has(10):
        return seen
    return build.where(seen, call[10], build.scalar(-math.inf, call.type(10).dtype))

"""Rules for attention and rotary position embeddings, of ONNX and of com.microsoft."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from ingot.ir.dim import floordiv
from ingot.ir.dtype import boolean, f32, i32, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.index import checked
from ingot.load.onnx.linear import multiply
from ingot.load.onnx.quantize import centred
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size

_ANY_COUNT = 1 << 31  # a limit for i32 counts that rejects only negative ones


@onnx("Attention", since=23)
def attention(call: Call) -> tuple[str | None, ...] | None:
    """Attention on operands of rank 4, or of rank 3 with the heads inside the last dim; a cache precedes the keys and
    values.

    A soft cap, a window, the scores as an output, and a length per row are left to the function body in the schema.
    """
    if call.has(6) and call.type(1).rank > 1:  # the schema's body compares it with positions
        lengths = checked(call, call[6], call.shape(1)[-2] + 1, "nonpad_kv_seqlen")
        call.operands = [*call.operands[:6], lengths]
    special = call.has(6) or len(call.outputs) > 3 or call.attr_float("softcap", 0.0) != 0.0
    windowed = any(call.attr_int(name, -1) != -1 for name in ("left_window_size", "right_window_size"))
    if special or windowed:
        return None
    q_heads, kv_heads = call.attr_int("q_num_heads", 0), call.attr_int("kv_num_heads", 0)
    flat = call.type(0).rank == 3
    q = split_heads(call, call[0], q_heads) if flat else call[0]
    k = split_heads(call, call[1], kv_heads) if flat else call[1]
    v = split_heads(call, call[2], kv_heads) if flat else call[2]
    past: Size = 0
    if call.has(4) and call.has(5):
        past = _rank4(call, call[4])[2]
        k, v = call.build.concat(call[4], k, axis=2), call.build.concat(call[5], v, axis=2)
    mask = call.get(3)
    if mask is not None:
        mask = mask if call.type(3).dtype is boolean else call.cast(mask, call.type(0).dtype)
        mask = _padded_mask(call, mask, _rank4(call, k)[2])
    scale = call.attr_float("scale", None)
    causal = bool(call.attr_int("is_causal", 0))
    result = attend(call, q, k, v, mask, scale=scale, causal=causal, offset=past if causal else 0)
    return (join_heads(call, result) if flat else result), k, v


def _rank4(call: Call, x: str) -> tuple[Size, ...]:
    shape = call.known_shape(call.build.type(x))
    if len(shape) != 4:
        raise call.malformed(f"rank 4 expected, got {call.build.type(x)}")
    return shape


def _padded_mask(call: Call, mask: str, columns: Size) -> str:
    """Pad a mask that has fewer columns than there are keys: the padding hides the remaining keys."""
    type = call.build.type(mask)
    if type.rank == 0 or type.shape[-1] in (1, columns):
        return mask
    missing = columns - call.known_shape(type)[-1]
    if not isinstance(missing, int) or missing < 0:
        return mask
    low, high = (0,) * type.rank, (*[0] * (type.rank - 1), missing)
    return call.build.pad(mask, low=low, high=high, value=False if type.dtype is boolean else -math.inf)


def attend(
    call: Call, q: str, k: str, v: str, mask: str | None, *, scale: float | None, causal: bool = False,
    offset: Size = 0, safe: bool = True,
) -> str:  # fmt: skip
    """Add the attention op, on operands of rank 4."""
    scale = default_scale(call, _rank4(call, q)[3]) if scale is None else scale
    if not isinstance(offset, int):
        raise call.unbound("a causal mask over a cache of symbolic length")
    return call.build.attention(q, k, v, mask, scale=scale, causal=causal, causal_offset=offset, safe=safe)


def default_scale(call: Call, width: Size) -> float:
    """Return 1 / sqrt(head size)."""
    if not isinstance(width, int):
        raise call.unbound(f"a head size of {width}")
    if width == 0:
        raise call.unsupported("a head size of 0")
    return 1 / math.sqrt(width)


def split_heads(call: Call, x: str, heads: int) -> str:
    """Reshape [B,S,H*D] -> [B,H,S,D]."""
    shape = call.known_shape(call.build.type(x))
    if len(shape) != 3 or heads < 1 or (isinstance(shape[2], int) and shape[2] % heads):
        raise call.malformed(f"{heads} heads do not fit {call.build.type(x)}")
    batch, length, width = shape
    return call.permute(call.reshape(x, (batch, length, heads, floordiv(width, heads))), (0, 2, 1, 3))


def join_heads(call: Call, x: str) -> str:
    """Reshape [B,H,S,D] -> [B,S,H*D]."""
    batch, heads, length, width = _rank4(call, x)
    return call.reshape(call.permute(x, (0, 2, 1, 3)), (batch, length, heads * width))


@onnx("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(call: Call) -> tuple[str | None, ...]:
    """query [B,S,H*D], key and value [B,T,H*D], or already split into heads; bias, padding mask, bias of scores.

    The cache is full, unless `past_sequence_length` is given: then the cache is longer, and its end is free.
    """
    if call.type(0).rank != 3 or not call.has(1) or not call.has(2) or call.has(9) or len(call.outputs) > 3:
        raise call.unsupported("a packed operand, beams, or scores as an output")
    build, heads = call.build, call.attr_int("num_heads")
    q, k, v = (split_heads(call, p, heads) if build.type(p).rank == 3 else p for p in _with_bias(call))
    past: Size = 0
    masks = []
    if call.has(6) and call.has(7) and call.has(8):
        rows, past = _rank4(call, k)[2], _rank4(call, call[6])[2]
        before = checked(call, call[8], past - rows + 1, "past_sequence_length")
        before = call.reshape(call.cast(before, i64), (1, 1, 1, 1))
        k, v = (appended(call, call[i], x, before, past, past, rows) for i, x in ((6, k), (7, v)))
        column = build.iota(length=past, start=0, step=1, dtype=i64)
        masks.append(build.less(column, build.add(before, build.dims(values=(rows,)))))
        if call.attr_int("unidirectional", 0):
            raise call.unsupported("a cache with a free end under a causal mask")
    elif call.has(6) and call.has(7):
        past = _rank4(call, call[6])[2]
        k, v = build.concat(call[6], k, axis=2), build.concat(call[7], v, axis=2)
    if call.has(4):
        masks += _padding_mask(call, call[4], _rank4(call, q)[0], _rank4(call, k)[2], "key_padding_mask")
    result = _masked(call, q, k, v, masks, call.get(5), bool(call.attr_int("unidirectional", 0)), past)
    return join_heads(call, result), k, v


def _with_bias(call: Call) -> list[str]:
    """Return query, key and value. The slice of the bias is added to each operand that is not yet split into heads."""
    build, parts = call.build, [call[0], call[1], call[2]]
    if not call.has(3):
        return parts
    start: Size = 0
    for i, part in enumerate(parts):
        if build.type(part).rank == 3:
            width = call.known_shape(build.type(part))[-1]
            parts[i] = build.add(part, call.slice(call[3], 0, start, start + width))
            start = start + width
    return parts


def appended(call: Call, cache: str, x: str, before: str, past: Size, total: Size, rows: Size) -> str:
    """Append new elements [B,H,rows,D] to a cache [B,H,past,D] that holds `before` elements per row, as [B,H,total,D].
    before: i64[B, 1, 1, 1], or [1, 1, 1, 1] for all rows.
    """
    build = call.build
    both = build.concat(cache, x, axis=2)
    batch, heads, _, width = call.known_shape(build.type(both))
    slot = call.reshape(build.iota(length=total, start=0, step=1, dtype=i64), (1, 1, total, 1))
    behind = build.sub(slot, before)
    is_new = build.logical_and(build.greater_equal(behind, 0), build.less(behind, build.dims(values=(rows,))))
    index = build.where(is_new, build.add(behind, build.dims(values=(past,))), slot)
    return build.gather_elements(both, build.expand(index, shape=(batch, heads, total, width)), axis=2)


@onnx("Attention", domain=MICROSOFT)
def packed_attention(call: Call) -> tuple[str | None, ...]:
    """One matrix product computes query, key and value: x [B,S,C], weights [C,3*H*D], bias [3*H*D]."""
    is_shared = call.has(4) and call.attr_int("past_present_share_buffer", 0)
    if is_shared or call.attr_int("do_rotary", 0):
        raise call.unsupported("a shared cache, or rotation")
    fused = multiply(call, call[0], call[1])
    fused = call.build.add(fused, call[2]) if call.has(2) else fused
    return _unpacked(call, fused, mask=3, cache=4, bias=call.get(5))


@onnx("QAttention", domain=MICROSOFT)
def quantized_attention(call: Call) -> tuple[str | None, ...]:
    """As `packed_attention`, with a quantized product: the scales are operands 3 and 4, the zero points 6 and 7."""
    if call.attr_int("do_rotary", 0):
        raise call.unsupported("rotation")
    build = call.build
    sums = multiply(call, centred(call, 0, 6, i32, rows=True), centred(call, 1, 7, i32))
    scale = build.mul(call.cast(call.reshape(call[3], ()), f32), call.cast(call[4], f32))
    fused = build.add(build.mul(call.cast(sums, f32), scale), call.cast(call[2], f32))
    fused = call.cast(fused, call.type(2).dtype)
    return _unpacked(call, fused, mask=5, cache=8, bias=None)


def _unpacked(call: Call, fused: str, *, mask: int, cache: int, bias: str | None) -> tuple[str | None, ...]:
    """Attention on concatenated query, key and value; a cache [2,B,H,P,D] precedes the keys and values."""
    build, heads = call.build, call.attr_int("num_heads")
    width = call.known_shape(build.type(fused))[-1]
    sizes = call.attr_ints("qkv_hidden_sizes", (floordiv(width, 3),) * 3)
    if not isinstance(width, int):
        raise call.unbound(f"query, key and value of {width} together")
    if len(sizes) != 3 or sum(sizes) != width:
        raise call.malformed(f"query, key and value of {list(sizes)} do not fill {width}")
    stops = (sizes[0], sizes[0] + sizes[1], width)
    parts = [call.slice(fused, 2, start, stop) for start, stop in zip((0, *stops), stops, strict=False)]
    q, k, v = (split_heads(call, p, heads) for p in parts)
    past: Size = 0
    if call.has(cache):
        shape = call.shape(cache)
        if len(shape) != 5:
            raise call.malformed(f"a cache {call.type(cache)}, expected rank 5")
        past = shape[3]
        earlier = [call.reshape(call.slice(call[cache], 0, i, i + 1), shape[1:]) for i in range(2)]
        k, v = (build.concat(before, each, axis=2) for before, each in zip(earlier, (k, v), strict=True))
    present = None
    if len(call.outputs) > 1:
        present = build.concat(*(call.reshape(each, (1, *_rank4(call, each))) for each in (k, v)), axis=0)
    masks = []
    if call.has(mask):
        masks = _padding_mask(call, call[mask], _rank4(call, q)[0], _rank4(call, k)[2], "mask_index")
    result = _masked(call, q, k, v, masks, bias, bool(call.attr_int("unidirectional", 0)), past)
    return join_heads(call, result), present


def _padding_mask(call: Call, mask: str, batch: Size, columns: Size, what: str) -> list[str]:
    """Return padding masks as bool, broadcast to [B,H,S,T].

    mask: int32 [B,T] or [B,S,T] is nonzero for each visible key; [B,1] hides nothing; [B] gives the end of each row,
    [2B] the ends and then the starts, [3B+2] begins with the ends. what: the name of the operand in the schema.
    """
    build, shape = call.build, call.known_shape(call.build.type(mask))
    match len(shape):
        case 1:
            bounds = call.cast(checked(call, mask, _ANY_COUNT, what), i64)
            column = build.iota(length=columns, start=0, step=1, dtype=i64)

            def part(index: int) -> str:
                own = bounds if shape[0] == batch else call.slice(bounds, 0, batch * index, batch * (index + 1))
                return call.reshape(own, (batch, 1, 1, 1))

            ends = build.less(column, part(0))
            return [ends, build.greater_equal(column, part(1))] if shape[0] == batch * 2 else [ends]
        case 2 if shape[1] == 1 and columns != 1:
            return []
        case 2:
            return [call.cast(call.reshape(mask, (shape[0], 1, 1, shape[1])), boolean)]
        case 3:
            return [call.cast(call.reshape(mask, (shape[0], 1, *shape[1:])), boolean)]
    raise call.unsupported(f"a mask of type {build.type(mask)}")


def _masked(call: Call, q: str, k: str, v: str, masks: list[str], bias: str | None, causal: bool, past: Size) -> str:
    """Attention under padding masks and a bias of the scores, combined into one float mask.

    ONNX Runtime adds a finite number to hidden scores, and its softmax is undefined for a row of only -inf.
    """
    build, scale = call.build, call.attr_float("scale", 0.0)
    mask = bias
    if masks:
        visible, hidden = (
            build.scalar(x, build.type(q).dtype) for x in (0.0, call.attr_float("mask_filter_value", -1e4))
        )
        padding = build.where(reduce(build.logical_and, masks), visible, hidden)
        mask = padding if bias is None else build.add(padding, bias)
    return attend(call, q, k, v, mask, scale=scale or None, causal=causal, offset=past if causal else 0, safe=False)


@onnx("RotaryEmbedding", since=23)
def rotary_embedding(call: Call) -> str:
    return _rotate(call, call[1], call[2], call.get(3))


@onnx("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding_microsoft(call: Call) -> str:
    """ONNX Runtime ignores `scale` and `is_packed_batching` on a CPU."""
    positions = call[1]
    if call.type(1).rank < 2:  # the position of the first row
        batch, rows = call.shape(0)[0], call.shape(0)[-2]
        slot = call.build.iota(length=rows, start=0, step=1, dtype=i64)
        if call.type(2).rank == 2:
            positions = checked(call, positions, call.shape(2)[0] - rows + 1, "position_ids")
        positions = call.build.expand(call.build.add(call.cast(positions, i64), slot), shape=(batch, rows))
    return _rotate(call, call[2], call[3], positions)


@onnx("MRotaryEmbedding", domain=MICROSOFT)
def rotary_embedding_of_axes(call: Call) -> str:
    """Rotate each column by the angle of one of three positions [3,B,S]: its time, its height or its width.

    mrope_section: the number of columns of each. They are adjacent, or, with `mrope_layout`, in turn, as
    long as a section has columns left; the columns of the time fill the rest.
    """
    build, sections = call.build, call.attr_ints("mrope_section")
    half = call.type(2).shape[-1]
    if not isinstance(half, int):
        raise call.unbound(f"a cache {call.type(2)}")
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != half:
        raise call.malformed(f"attribute 'mrope_section' is {list(sections)}, expected three sizes, {half} in all")
    streams = np.repeat(np.arange(3), sections)
    if call.attr_int("mrope_layout", 0):
        column = np.arange(sum(sections))
        streams = np.where(column < 3 * np.array(sections)[column % 3], column % 3, 0)
    positions = checked(call, call[1], call.shape(2)[0], "position_ids")
    chosen = [call.build.constant(streams == stream) for stream in (1, 2)]
    scale = call.attr_float("scale", 1.0)

    def angles(table: str) -> str:
        """Return [B,S,D/2]."""
        parts = build.gather(table, positions, axis=0)
        parts = parts if scale == 1.0 else build.mul(parts, scale)
        time, height, width = (
            call.reshape(call.slice(parts, 0, i, i + 1), call.known_shape(build.type(parts))[1:]) for i in range(3)
        )
        return build.where(chosen[0], height, build.where(chosen[1], width, time))

    return _rotate(call, angles(call[2]), angles(call[3]), None)


def _rotate(call: Call, cos: str, sin: str, positions: str | None) -> str:
    """Rotate x [B,H,S,D] or [B,S,H*D]. cos and sin are tables [P,D/2], gathered by positions [B,S], or [B,S,D/2]."""
    build, x, flat = call.build, call[0], call.type(0).rank == 3
    if flat:
        heads = call.attr_int("num_heads", 0)
        if heads == 0:
            # com.microsoft omits the count when the tables imply the head size.
            heads = _head_count(call, call.known_shape(build.type(x))[2], build.type(cos).shape[-1])
        x = split_heads(call, x, heads)
    width = _rank4(call, x)[3]
    result = rotated(
        call, x, cos, sin, positions, part=call.attr_int("rotary_embedding_dim", 0) or width,
        interleaved=bool(call.attr_int("interleaved", 0)),
    )  # fmt: skip
    return join_heads(call, result) if flat else result


def rotated(call: Call, x: str, cos: str, sin: str, positions: str | None, *, part: Size, interleaved: bool) -> str:
    """Rotate the first `part` columns of x [B,H,S,D]: the two halves, or adjacent pairs if `interleaved`."""
    build, (*lead, width) = call.build, _rank4(call, x)
    if not isinstance(width, int) or not isinstance(part, int):
        raise call.unbound(f"a rotation of {part} of {width}")
    if not 2 <= part <= width or part % 2:
        raise call.malformed(f"rotates {part} of {width}")
    if positions is not None and build.type(cos).rank == 2:
        positions = checked(call, positions, call.known_shape(build.type(cos))[0], "position_ids")
    angles = [_angles(call, cache, positions, part // 2) for cache in (cos, sin)]
    transposed, rest = call.slice(x, 3, 0, part), [call.slice(x, 3, part, width)] if part < width else []
    if interleaved:
        transposed = _swap_pairs(call, transposed, lead, (part // 2, 2))
    transposed = build.rotary(transposed, *(build.concat(a, a, axis=3) for a in angles))
    if interleaved:
        transposed = _swap_pairs(call, transposed, lead, (2, part // 2))
    return build.concat(transposed, *rest, axis=3) if rest else transposed


def _head_count(call: Call, width: Size, half: object) -> int:
    if not isinstance(width, int) or not isinstance(half, int):
        raise call.unbound(f"attribute 'num_heads' is missing, and {half} angles of {width}")
    if half < 1 or width % (2 * half):
        raise call.malformed(f"attribute 'num_heads' is missing, and {half} angles do not divide {width}")
    return width // (2 * half)


def _swap_pairs(call: Call, x: str, lead: list[Size], pair: tuple[int, int]) -> str:
    """View the last dim as `pair` and transpose it: even and odd elements into halves, or back."""
    split = call.permute(call.reshape(x, (*lead, *pair)), (0, 1, 2, 4, 3))
    return call.reshape(split, (*lead, pair[0] * pair[1]))


def _angles(call: Call, cache: str, positions: str | None, half: int) -> str:
    """Return the angles of the rows: [B,1,S,D/2], or [1,1,S,D/2]."""
    picked = cache if positions is None else call.build.gather(cache, positions, axis=0)
    shape = call.known_shape(call.build.type(picked))
    if len(shape) not in (2, 3) or shape[-1] != half:
        raise call.malformed(f"a cache {call.build.type(cache)} does not fit, expected {half} angles")
    return call.reshape(picked, (shape[0] if len(shape) == 3 else 1, 1, *shape[-2:]))

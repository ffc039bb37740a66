"""Ops over a paged cache of keys and values: the state of a language model's sequences.

A cache has blocks of CACHE_BLOCK positions: keys [blocks, kv_heads, head_dim, 64], values [blocks, kv_heads, 64,
v_dim], and for int8 scales [blocks, kv_heads, 64] of each. Position p of sequence s is stored in slot p % 64 of the
cache's block `blocks[s, p // 64]`. Row r of x or q is at position `positions[r]` of sequence `owners[r]`; if several
rows write one slot, the last one wins. Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention",
2023.
"""

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dim import divides
from ingot.ir.dtype import f32, i8, i32, u8
from ingot.ir.graph import Index, TensorType
from ingot.ops.define import expect_kind, expect_within, op, sample, unify
from ingot.support import abi

CACHE_BLOCK = abi.constant("INGOT_CACHE_BLOCK")  # positions in a block
CACHE_GROUP = abi.constant("INGOT_CACHE_GROUP")  # dims that share a scale and a min in int4


def _expect_addresses(name: str, rows, positions: TensorType, owners: TensorType, blocks: TensorType) -> None:
    """Raise ShapeError unless positions [rows], owners [rows] and blocks [sequences, blocks each] are i32."""
    found = (positions, owners, blocks)
    if any(t.dtype is not i32 for t in found) or tuple(t.rank for t in found) != (1, 1, 2):
        got = ", ".join(map(str, found))
        raise ShapeError(f"{name}: bad positions, owners or blocks, got {got}, expected i32 of rank 1, 1 and 2")
    for t in (positions, owners):
        unify(f"{name}: rows", rows, t.shape[0])


def _expect_cache(name: str, cache: TensorType, slots: int) -> None:
    """Raise ShapeError unless a cache has rank 4 and 64 positions on axis `slots`."""
    if cache.rank != 4:
        raise ShapeError(f"{name}: bad cache, got {cache}, expected rank 4")
    unify("{}: positions in a block of {}", cache.shape[slots], CACHE_BLOCK, name, cache)


def _expect_scales(name: str, cache: TensorType, slots: int, scales: TensorType) -> None:
    """Raise ShapeError unless a cache of rank 4 is i8 and has a float scale for every position and head."""
    if cache.dtype is not i8 or scales.dtype.kind != "f" or scales.rank != 3:
        raise ShapeError(f"{name}: bad int8 cache, got {cache} with scales {scales}, expected i8 and float of rank 3")
    for i, axis in enumerate((0, 1, slots)):
        unify("{}: scales {} of {}", scales.shape[i], cache.shape[axis], name, scales, cache)


def packed_dims(dim: int) -> tuple[int, int]:
    """Return the bytes of a head's dims in an int4 cache, and the total number of its scales and mins."""
    return dim // 2, 2 * -(-dim // CACHE_GROUP)


def _expect_quads(name: str, cache: TensorType, slots: int, scales: TensorType, dim) -> None:
    """Raise ShapeError unless a cache of rank 4 has `dim` int4 values, and its scales and mins fit."""
    is_odd = isinstance(dim, int) and dim % 2
    if cache.dtype is not u8 or scales.dtype.kind != "f" or scales.rank != 4 or is_odd:
        got = f"{cache} with scales {scales} for {dim} dims"
        raise ShapeError(f"{name}: bad int4 cache, got {got}, expected u8, float of rank 4 and an even number")
    where, arguments = "{}: scales {} of {}", (name, scales, cache)
    pairs = [(scales.shape[0], cache.shape[0]), (scales.shape[1], cache.shape[1]), (scales.shape[3], CACHE_BLOCK)]
    if isinstance(dim, int):
        pairs += zip((cache.shape[5 - slots], scales.shape[2]), packed_dims(dim), strict=True)
    for found, expected in pairs:
        unify(where, found, expected, *arguments)


def _infer_append(name: str, slots: int):
    def infer(cache, x, positions, owners, blocks):
        expect_kind(name, cache, "f")
        _expect_appended(name, cache, slots, x)
        _expect_addresses(name, x.shape[0], positions, owners, blocks)
        return cache

    return infer


def _infer_append_int8(name: str, slots: int):
    def infer(cache, scales, x, positions, owners, blocks):
        _expect_appended(name, cache, slots, x)
        _expect_scales(name, cache, slots, scales)
        _expect_addresses(name, x.shape[0], positions, owners, blocks)
        return cache, scales

    return infer


def _infer_append_int4(name: str, slots: int):
    def infer(cache, scales, x, positions, owners, blocks):
        _expect_cache(name, cache, slots)
        if x.dtype.kind != "f" or x.rank != 3:
            raise ShapeError(f"{name}: bad x, got {x}, expected float of rank 3")
        unify("{}: heads of {} and {}", x.shape[1], cache.shape[1], name, x, cache)
        _expect_quads(name, cache, slots, scales, x.shape[2])
        _expect_addresses(name, x.shape[0], positions, owners, blocks)
        return cache, scales

    return infer


def _expect_appended(name: str, cache: TensorType, slots: int, x: TensorType) -> None:
    _expect_cache(name, cache, slots)
    if x.dtype.kind != "f" or x.rank != 3:
        raise ShapeError(f"{name}: bad x, got {x}, expected float of rank 3")
    unify("{}: heads of {} and {}", x.shape[1], cache.shape[1], name, x, cache)
    unify("{}: last dim of {} and {}", x.shape[2], cache.shape[5 - slots], name, x, cache)


def _slots(positions, owners, blocks, limit: int):
    """Return the block and the slot of each position. Raises InputError for an index out of range; limit: blocks of the
    cache.
    """
    sequences, each = blocks.shape
    expect_within("owners", owners, range(sequences))
    expect_within("positions", positions, range(each * CACHE_BLOCK))
    found = blocks[owners, positions // CACHE_BLOCK]
    expect_within("blocks", found, range(limit))
    return found, positions % CACHE_BLOCK


def _blocks_each(*operands, **_) -> range:
    return range(operands[-1].shape[1] * CACHE_BLOCK)


# The entry of an unused block may be any number.
_APPENDED = {
    "positions": Index(_blocks_each),
    "owners": Index(lambda *operands: range(len(operands[-1]))),
    "blocks": Index(lambda cache, *_: range(len(cache)), own=True),
}


def _int8(x, scales):
    """Quantize over the last axis to -127..127 with scale absmax / 127, in f32 for every dtype of x, so
    that the quantized values are exact.

    If a scale is 0, infinity or NaN, its quantized values are 0: they represent zeros, or NaN.
    """
    x = x.astype(np.float32)
    scale = np.max(np.abs(x), -1, keepdims=True, initial=0) / np.float32(127)
    usable = np.isfinite(scale) & (scale > 0)
    quantized = np.clip(np.rint(x / np.where(usable, scale, np.float32(1))), -127, 127)
    return np.where(usable, quantized, 0).astype(np.int8), scale[..., 0].astype(scales.dtype)


def _groups(dim: int) -> list[slice]:
    return [slice(d, min(d + CACHE_GROUP, dim)) for d in range(0, dim, CACHE_GROUP)]


def _int4(x):
    """Quantize to bytes [..., dims / 2], and the scale and the min of each group of the last axis, interleaved,
    in f16.

    Quantized values are 0..15. If a scale is 0, infinity or NaN, they are 0.
    """
    x = x.astype(np.float32)
    nbytes, scales = [], []
    for group in _groups(x.shape[-1]):
        least, most = x[..., group].min(-1, keepdims=True), x[..., group].max(-1, keepdims=True)
        with np.errstate(over="ignore", invalid="ignore"):
            group_scale, least = ((most - least) / np.float32(15)).astype(np.float16), least.astype(np.float16)
            wide, begin = group_scale.astype(np.float32), least.astype(np.float32)
            usable = np.isfinite(wide) & (wide > 0) & np.isfinite(begin)
            quantized = np.clip(np.rint((x[..., group] - begin) / np.where(usable, wide, np.float32(1))), 0, 15)
        quantized = np.where(usable, quantized, 0).astype(np.uint8)
        half = quantized.shape[-1] // 2
        nbytes.append(quantized[..., :half] | quantized[..., half:] << 4)
        scales += [group_scale, least]
    return np.concatenate(nbytes, -1), np.concatenate(scales, -1)


def _of_int4(packed, scales, dtype):
    """Dequantize the values that `_int4` packed."""
    dims = []
    for i, group in enumerate(_groups(2 * packed.shape[-1])):
        packed_group = packed[..., group.start // 2 : group.stop // 2]
        quantized = np.concatenate([packed_group & 15, packed_group >> 4], -1).astype(dtype)
        dims.append(quantized * scales[..., 2 * i, None].astype(dtype) + scales[..., 2 * i + 1, None].astype(dtype))
    return np.concatenate(dims, -1)


_ADDRESSES = "p:i32<128[7] o:i32<3[7] b:i32<6[3,2]"
_ONE = "p:i32<64[1] o:i32<1[1] b:i32<1[1,1]"
_NONE = "p:i32<64[0] o:i32<1[0] b:i32<6[1,3]"


@op(
    computes=False,
    infer=_infer_append("append_keys", 3),
    addresses=_APPENDED,
    inplace=(0,),
    samples=[
        sample(f"c[6,2,8,64] x[7,2,8] {_ADDRESSES}"),
        sample(f"c:bf16[6,2,5,64] x[7,2,5] {_ADDRESSES}"),
        sample(f"c[1,1,1,64] x[1,1,1] {_ONE}"),
        sample(f"c[6,1,4,64] x[0,1,4] {_NONE}"),
    ],
)
def append_keys(cache, x, positions, owners, blocks):
    """The cache of keys with rows x written at their positions, in the cache's dtype.

    cache [blocks, kv_heads, head_dim, 64], x [rows, kv_heads, head_dim]. A position, owner or block out of range is an
    error.
    """
    block, slot = _slots(positions, owners, blocks, cache.shape[0])
    cache = cache.copy()
    cache[block, :, :, slot] = x.astype(cache.dtype)
    return cache


@op(
    computes=False,
    infer=_infer_append("append_values", 2),
    addresses=_APPENDED,
    inplace=(0,),
    samples=[
        sample(f"c[6,2,64,8] x[7,2,8] {_ADDRESSES}"),
        sample(f"c:bf16[6,2,64,5] x[7,2,5] {_ADDRESSES}"),
        sample(f"c[1,1,64,1] x[1,1,1] {_ONE}"),
        sample(f"c[6,1,64,4] x[0,1,4] {_NONE}"),
    ],
)
def append_values(cache, x, positions, owners, blocks):
    """The cache of values with rows x written at their positions, in the cache's dtype.

    cache [blocks, kv_heads, 64, v_dim], x [rows, kv_heads, v_dim]. A position, owner or block out of range is an error.
    """
    block, slot = _slots(positions, owners, blocks, cache.shape[0])
    cache = cache.copy()
    cache[block, :, slot] = x.astype(cache.dtype)
    return cache


@op(
    computes=False,
    infer=_infer_append_int8("append_keys_int8", 3),
    addresses=_APPENDED,
    outputs=2,
    inplace=(0, 1),
    samples=[
        sample(f"c:i8>-127<128[6,2,8,64] s[6,2,64] x[7,2,8] {_ADDRESSES}"),
        sample(f"c:i8>-127<128[1,1,1,64] s[1,1,64] x[1,1,1] {_ONE}"),
        sample(f"c:i8>-127<128[6,1,4,64] s[6,1,64] x[0,1,4] {_NONE}"),
    ],
)
def append_keys_int8(cache, scales, x, positions, owners, blocks):
    """The int8 cache of keys and its scales with rows x written at their positions.

    cache [blocks, kv_heads, head_dim, 64], scales [blocks, kv_heads, 64], x [rows, kv_heads, head_dim]. A head of a
    row becomes round(x / scale), half to even, with scale = max |x| / 127.
    """
    block, slot = _slots(positions, owners, blocks, cache.shape[0])
    cache, scales = cache.copy(), scales.copy()
    cache[block, :, :, slot], scales[block, :, slot] = _int8(x, scales)
    return cache, scales


@op(
    computes=False,
    infer=_infer_append_int8("append_values_int8", 2),
    addresses=_APPENDED,
    outputs=2,
    inplace=(0, 1),
    samples=[
        sample(f"c:i8>-127<128[6,2,64,8] s[6,2,64] x[7,2,8] {_ADDRESSES}"),
        sample(f"c:i8>-127<128[1,1,64,1] s[1,1,64] x[1,1,1] {_ONE}"),
        sample(f"c:i8>-127<128[6,1,64,4] s[6,1,64] x[0,1,4] {_NONE}"),
    ],
)
def append_values_int8(cache, scales, x, positions, owners, blocks):
    """The int8 cache of values and its scales with rows x written at their positions.

    cache [blocks, kv_heads, 64, v_dim], scales [blocks, kv_heads, 64], x [rows, kv_heads, v_dim]; as append_keys_int8.
    """
    block, slot = _slots(positions, owners, blocks, cache.shape[0])
    cache, scales = cache.copy(), scales.copy()
    cache[block, :, slot], scales[block, :, slot] = _int8(x, scales)
    return cache, scales


@op(
    computes=False,
    infer=_infer_append_int4("append_keys_int4", 3),
    addresses=_APPENDED,
    outputs=2,
    inplace=(0, 1),
    samples=[
        sample(f"c:u8[6,2,24,64] s:f16[6,2,4,64] x[7,2,48] {_ADDRESSES}"),
        sample(f"c:u8[1,1,1,64] s:f16[1,1,2,64] x[1,1,2] {_ONE}"),
        sample(f"c:u8[6,1,2,64] s:f16[6,1,2,64] x[0,1,4] {_NONE}"),
    ],
)
def append_keys_int4(cache, scales, x, positions, owners, blocks):
    """The int4 cache of keys and its scales with rows x written at their positions.

    cache [blocks, kv_heads, head_dim / 2, 64], scales f16 [blocks, kv_heads, 2 * groups, 64], x [rows, kv_heads,
    head_dim]. Each 32 dims of a head become round((x - min) / scale), half to even, with scale = (max - min) / 15;
    scale and min are f16 and stored in `scales`. A byte holds dim i of the first half of the group in its low bits, and
    of the second half in its high bits. The last group may be smaller; its size is even.
    """
    block, slot = _slots(positions, owners, blocks, cache.shape[0])
    cache, scales = cache.copy(), scales.copy()
    cache[block, :, :, slot], scales[block, :, :, slot] = _int4(x)
    return cache, scales


@op(
    computes=False,
    infer=_infer_append_int4("append_values_int4", 2),
    addresses=_APPENDED,
    outputs=2,
    inplace=(0, 1),
    samples=[
        sample(f"c:u8[6,2,64,24] s:f16[6,2,4,64] x[7,2,48] {_ADDRESSES}"),
        sample(f"c:u8[1,1,64,1] s:f16[1,1,2,64] x[1,1,2] {_ONE}"),
        sample(f"c:u8[6,1,64,2] s:f16[6,1,2,64] x[0,1,4] {_NONE}"),
    ],
)
def append_values_int4(cache, scales, x, positions, owners, blocks):
    """The int4 cache of values and its scales with rows x written at their positions.

    cache [blocks, kv_heads, 64, v_dim / 2], scales as those of append_keys_int4, x [rows, kv_heads, v_dim].
    """
    block, slot = _slots(positions, owners, blocks, cache.shape[0])
    cache, scales = cache.copy(), scales.copy()
    cache[block, :, slot], scales[block, :, :, slot] = _int4(x)
    return cache, scales


_ATTENDED = {
    "positions": Index(lambda q, keys, values, positions, owners, blocks, *_, **__: _blocks_each(blocks)),
    "owners": Index(lambda q, keys, values, positions, owners, blocks, *_, **__: range(len(blocks))),
    "blocks": Index(lambda q, keys, *_, **__: range(len(keys)), own=True),
}


def _infer_cached_attention(
    q,
    keys,
    values,
    positions,
    owners,
    blocks,
    key_scales=None,
    value_scales=None,
    sinks=None,
    biases=None,
    *,
    scale,
    window,
    softcap,
    segment,
    relative,
):
    name = "cached_attention"
    if q.rank != 3 or q.dtype.kind != "f":
        raise ShapeError(f"{name}: bad q, got {q}, expected float of rank 3")
    _expect_cache(name, keys, 3)
    _expect_cache(name, values, 2)
    if keys.dtype is not values.dtype or (key_scales is None) != (value_scales is None):
        raise ShapeError(f"{name}: keys and values differ, got {keys} and {values}, expected both float or both int8")
    v_dim = values.shape[3]
    if key_scales is None or value_scales is None:
        expect_kind(name, keys, "f")
    elif keys.dtype is u8:
        v_dim = 2 * v_dim
        _expect_quads(name, keys, 3, key_scales, q.shape[2])
        _expect_quads(name, values, 2, value_scales, v_dim)
    else:
        _expect_scales(name, keys, 3, key_scales)
        _expect_scales(name, values, 2, value_scales)
    where, arguments = "{} of {}, {} and {}", (name, q, keys, values)
    unify(where, keys.shape[0], values.shape[0], *arguments)
    if keys.dtype is not u8:
        unify(where, q.shape[2], keys.shape[2], *arguments)
    heads, kv_heads = q.shape[1], unify(where, keys.shape[1], values.shape[1], *arguments)
    if isinstance(heads, int) and isinstance(kv_heads, int) and (not kv_heads or not divides(kv_heads, heads)):
        raise ShapeError(f"{name}: heads do not group, got {heads} over {kv_heads}")
    if window < 0 or segment < 0 or not softcap >= 0:
        got = f"{window}, {segment} and {softcap}"
        raise ShapeError(f"{name}: bad window, segment or softcap, got {got}, expected 0 or more")
    if sinks is not None:
        if sinks.rank != 1 or sinks.dtype is not q.dtype:
            raise ShapeError(f"{name}: bad sinks, got {sinks}, expected {q.dtype} of rank 1")
        unify("{}: sinks {} of the heads of {}", sinks.shape[0], heads, name, sinks, q)
    _expect_addresses(name, q.shape[0], positions, owners, blocks)
    if biases is not None:
        if biases.rank != 2 or biases.dtype is not q.dtype:
            raise ShapeError(f"{name}: bad biases, got {biases}, expected {q.dtype} of rank 2")
        unify("{}: biases {} of the heads of {}", biases.shape[0], heads, name, biases, q)
        positions_each = blocks.shape[1] * CACHE_BLOCK
        unify("{}: biases {} of the positions of {}", biases.shape[1], positions_each, name, biases, blocks)
    return TensorType(q.dtype, (q.shape[0], heads, v_dim))


_INT8 = "k:i8>-127<128[6,2,8,64] v:i8>-127<128[6,2,64,5]"
_SCALES = "ks>0.001<0.02[6,2,64] vs>0.001<0.02[6,2,64]"
_INT4 = "k:u8[6,2,4,64] v:u8[6,2,64,17]"
_STEPS = "ks:f16>0.001<0.2[6,2,2,64] vs:f16>0.001<0.2[6,2,4,64]"


@op(
    infer=_infer_cached_attention,
    addresses=_ATTENDED,
    tolerance={f32: 5e-6},
    samples=[
        sample(f"q[7,2,8] k[6,2,8,64] v[6,2,64,8] {_ADDRESSES}", scale=0.35),
        sample(f"q[7,4,8] k[6,2,8,64] v[6,2,64,5] {_ADDRESSES}", scale=0.35),
        sample(f"q[7,4,8] k:bf16[6,2,8,64] v:bf16[6,2,64,5] {_ADDRESSES}", scale=0.35),
        sample(f"q[7,6,8] {_INT8} {_ADDRESSES} {_SCALES}", scale=0.35),
        sample(f"q[7,6,8] {_INT4} {_ADDRESSES} {_STEPS}", scale=0.35),
        sample(f"q[7,2,8] k[6,2,8,64] v[6,2,64,8] {_ADDRESSES}", scale=0.35, window=9),
        sample(f"q[7,2,8] k[6,1,8,64] v[6,1,64,33] {_ADDRESSES}", scale=0.35, window=70, softcap=1.5),
        sample(f"q[7,2,8] k[6,2,8,64] v[6,2,64,8] {_ADDRESSES}", scale=0.35, segment=20),
        sample(f"q[7,4,8] k[6,2,8,64] v[6,2,64,5] {_ADDRESSES} none none s>-3<3[4]", scale=0.35, window=9),
        sample(f"q[7,6,8] {_INT8} {_ADDRESSES} {_SCALES} s>-3<3[6]", scale=0.35, segment=70),
        sample(f"q[7,2,8] k[6,2,8,64] v[6,2,64,8] {_ADDRESSES} none none none a>-3<3[2,128]", scale=0.35),
        sample(
            f"q[7,6,8] {_INT8} {_ADDRESSES} {_SCALES} s>-3<3[6] a>-3<3[6,128]", scale=0.35, window=70, relative=True
        ),
        sample("q[2,4,64] k[12,2,64,64] v[12,2,64,64] p:i32>600<640[2] o:i32<2[2] b:i32<12[2,10]", scale=0.125),
        sample(f"q[1,1,1] k[1,1,1,64] v[1,1,64,1] {_ONE}", scale=1.0),
        sample(f"q[0,1,4] k[6,1,4,64] v[6,1,64,4] {_NONE}", scale=0.5),
    ],
)
def cached_attention(
    q,
    keys,
    values,
    positions,
    owners,
    blocks,
    key_scales=None,
    value_scales=None,
    sinks=None,
    biases=None,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    segment: int = 0,
    relative: bool = False,
):
    """softmax(cap(scale * q k^T) + biases) v over the positions of its sequence that a row sees, its own the last.

    q [rows, heads, head_dim], keys [blocks, kv_heads, head_dim, 64], values [blocks, kv_heads, 64, v_dim] give [rows,
    heads, v_dim]; each key and value head serves a group of query heads. window: the number of positions that a row
    sees, 0 for all; segment: it sees no position before the last multiple of this, 0 for none. softcap c: cap(s) = c
    tanh(s / c), 0 for none. sinks [heads]: each head has an additional score, without a value. biases [heads,
    positions] are added to the scores of a head: the element of a key is that of its position, or, if relative, the
    last one is that of the row's own position, the one before it that of the position before. int8 keys and values have
    scales [blocks, kv_heads, 64]; int4 ones are as in append_keys_int4. Dao et al., "FlashAttention", 2022; Gemma
    Team, "Gemma 2", 2024 (capping); Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023;
    Press et al., "Train Short, Test Long", 2022 (biases).
    """
    out = np.empty((*q.shape[:2], values.shape[3] * (2 if keys.dtype == np.uint8 else 1)), q.dtype)
    groups = q.shape[1] // keys.shape[1]
    expect_within("positions", positions, range(blocks.shape[1] * CACHE_BLOCK))
    for row, (position, owner) in enumerate(zip(positions.tolist(), owners.tolist(), strict=True)):
        first = max(0, position - window + 1) if window else 0
        visible = np.arange(max(first, position // segment * segment if segment else 0), position + 1)
        block, slot = _slots(visible, np.full_like(visible, owner), blocks, keys.shape[0])
        k, v = keys[block, :, :, slot], values[block, :, slot]
        if keys.dtype == np.uint8:
            k = _of_int4(k, key_scales[block, :, :, slot], q.dtype)
            v = _of_int4(v, value_scales[block, :, :, slot], q.dtype)
        elif key_scales is not None and value_scales is not None:
            k, v = k.astype(q.dtype), v.astype(q.dtype)
            k, v = k * key_scales[block, :, slot][..., None], v * value_scales[block, :, slot][..., None]
        k, v = (np.repeat(each.astype(q.dtype), groups, 1) for each in (k, v))
        scores = np.matmul(k.transpose(1, 0, 2), q[row][:, :, None])[..., 0] * q.dtype.type(scale)
        if softcap:
            scores = q.dtype.type(softcap) * np.tanh(scores / q.dtype.type(softcap))
        if biases is not None:
            scores = scores + biases[:, visible - position - 1 if relative else visible]
        if sinks is not None:
            scores = np.concatenate([scores, sinks[:, None]], -1)
        power = np.exp(scores - np.max(scores, -1, keepdims=True))
        weights = power / np.sum(power, -1, np.float64, keepdims=True).astype(q.dtype)
        weights = weights[:, : len(visible)]
        out[row] = np.matmul(weights[:, None, :], v.transpose(1, 0, 2))[:, 0]
    return out

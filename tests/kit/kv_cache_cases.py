"""Cases of the ops over a cache of keys and values; in torch, a sequence's blocks are laid end to end and masked."""

import numpy as np
import torch
import torch.nn.functional as F


def addressed(positions, owners, blocks, attention=False):
    """Operands over a cache of two blocks, one head and 64 wide; to append, or to attend."""
    x, cache = np.zeros((len(positions), 1, 64), np.float32), np.zeros((2, 1, 64, 64), np.float32)
    operands = [x, cache, cache] if attention else [cache, x]
    return [*operands, *(np.array(a, np.int32) for a in (positions, owners, blocks))]


def appended(slots, cache, x, positions, owners, blocks):
    cache = cache.clone()
    for row, (position, owner) in enumerate(zip(positions.tolist(), owners.tolist(), strict=True)):
        cache[blocks[owner, position // 64]].select(slots - 1, position % 64).copy_(x[row])
    return cache


def append_int8(slots):
    def append(cache, scales, x, positions, owners, blocks):
        x = x.float()
        scale = x.abs().amax(-1) / 127
        codes = torch.round(x / scale[..., None]).to(torch.int8)
        where = (positions, owners, blocks)
        return appended(slots, cache, codes, *where), appended(2, scales, scale.to(scales.dtype), *where)

    return append


def groups_of(x):
    """Groups of 32 along the last axis, the last of what is left."""
    return [x[..., d : d + 32] for d in range(0, x.shape[-1], 32)]


def append_int4(slots):
    def append(cache, scales, x, positions, owners, blocks):
        packed, beside = [], []
        for group in groups_of(x.float()):
            least = group.amin(-1, keepdim=True).half()
            step = ((group.amax(-1, keepdim=True) - group.amin(-1, keepdim=True)) / 15).half()
            codes = ((group - least.float()) / step.float()).round().clamp(0, 15).to(torch.uint8)
            low, high = codes.chunk(2, -1)
            packed.append(low + 16 * high)
            beside += [step, least]
        where = (positions, owners, blocks)
        beside = torch.cat(beside, -1).to(scales.dtype)
        return appended(slots, cache, torch.cat(packed, -1), *where), appended(3, scales, beside, *where)

    return append


def unpacked(codes, scales, dtype):
    """The values of int4: codes [..., 64, dims / 2], scales [..., 2 * groups, 64]."""
    found = []
    for i, group in enumerate(codes.split(16, -1)):
        numbers = torch.cat([group % 16, group // 16], -1).to(dtype)
        found.append(numbers * scales[..., 2 * i, :, None].to(dtype) + scales[..., 2 * i + 1, :, None].to(dtype))
    return torch.cat(found, -1)


def cached_attention(
    q, k, v, positions, owners, blocks, ks=None, vs=None, sinks=None, biases=None,
    *, scale, window=0, softcap=0.0, segment=0, relative=False,
):  # fmt: skip
    if k.dtype == torch.uint8:
        k, v = unpacked(k.mT, ks, q.dtype).mT, unpacked(v, vs, q.dtype)
    elif ks is not None:
        k, v = k * ks[:, :, None], v * vs[..., None]
    out = torch.empty(*q.shape[:2], v.shape[3], dtype=q.dtype)
    for row, (position, owner) in enumerate(zip(positions.tolist(), owners.tolist(), strict=True)):
        keys, values = torch.cat([*k[blocks[owner].long()]], -1), torch.cat([*v[blocks[owner].long()]], -2)
        column = torch.arange(keys.shape[-1])
        keep = (column <= position) & (column > position - (window or len(column)))
        keep &= column >= (position // segment * segment if segment else 0)
        heads = {
            "attn_mask": torch.zeros(len(column), dtype=q.dtype).masked_fill(~keep, -torch.inf)[None],
            "scale": scale,
        }
        if softcap:
            scores = q[row].unflatten(0, (len(keys), -1)) @ keys.to(q.dtype) * scale
            heads["attn_mask"] = (softcap * torch.tanh(scores / softcap) + heads["attn_mask"]).flatten(0, 1)[:, None]
            heads["scale"] = 0.0
        if biases is not None:
            found = biases.roll(position + 1, 1) if relative else biases
            heads["attn_mask"] = heads["attn_mask"] + found.to(q.dtype)[:, None]
        if sinks is not None:  # a key whose score is the sink's, with a value of zeros
            mask = heads["attn_mask"].expand(len(sinks), 1, -1)
            heads["attn_mask"] = torch.cat([mask, sinks[:, None, None].to(q.dtype)], -1)[None]
            keys, values = F.pad(keys, (0, 1)), F.pad(values, (0, 0, 0, 1))
        out[row] = F.scaled_dot_product_attention(
            q[row][None, :, None], keys.mT[None].to(q.dtype), values[None].to(q.dtype), enable_gqa=True, **heads
        )[0, :, 0]
    return out


ORACLE = {
    "append_keys": lambda *operands: appended(3, *operands),
    "append_values": lambda *operands: appended(2, *operands),
    "append_keys_int4": append_int4(3),
    "append_values_int4": append_int4(2),
    "append_keys_int8": append_int8(3),
    "append_values_int8": append_int8(2),
    "cached_attention": cached_attention,
}

ADDRESSES = "p:i32[5] o:i32[5] b:i32[2,2]"
REFUSED = [
    ("append_keys", f"c[3,2,4,60] x[5,2,4] {ADDRESSES}", {}, r"dims differ, got 60 and 64"),
    ("append_keys", f"c:i8[3,2,4,64] x[5,2,4] {ADDRESSES}", {}, r"wrong dtype, got i8\[3, 2, 4, 64\], expected float"),
    ("append_keys", f"c[3,2,4,64] x[4,2,4] {ADDRESSES}", {}, r"append_keys: rows: dims differ, got 4 and 5"),
    ("append_keys", f"c[3,2,4,64] x[5,8] {ADDRESSES}", {}, r"bad x, got f32\[5, 8\]"),
    ("append_values", f"c[3,2,64,4] x[5,1,4] {ADDRESSES}", {}, r"heads of .*: dims differ, got 1 and 2"),
    ("append_values", f"c[3,2,64,4] x[5,2,5] {ADDRESSES}", {}, r"last dim of .*: dims differ, got 5 and 4"),
    ("append_values", "c[3,2,64,4] x[5,2,4] p:i64[5] o:i32[5] b:i32[2,2]", {}, r"i64\[5\], i32\[5\], i32\[2, 2\]"),
    ("append_keys_int8", f"c[3,2,4,64] s[3,2,64] x[5,2,4] {ADDRESSES}", {}, r"bad int8 cache, got f32"),
    ("append_keys_int8", f"c:i8[3,2,4] s[3,2,64] x[5,2,4] {ADDRESSES}", {}, r"bad cache, got i8\[3, 2, 4\]"),
    ("append_values_int8", f"c:i8[3,2,64,4] s[3,2,4] x[5,2,4] {ADDRESSES}", {}, r"scales.*: dims differ, got 4 and 64"),
    ("append_keys_int4", f"c:i8[3,2,4,64] s:f16[3,2,2,64] x[5,2,8] {ADDRESSES}", {}, r"bad int4 cache, got i8"),
    ("append_keys_int4", f"c:u8[3,2,4,64] s:f16[3,2,2,64] x[5,2,7] {ADDRESSES}", {}, r"for 7 dims, .* an even number"),
    (
        "append_values_int4",
        f"c:u8[3,2,64,4] s:f16[3,2,1,64] x[5,2,8] {ADDRESSES}",
        {},
        r"scales.*: dims differ, got 1 and 2",
    ),
    ("append_keys_int4", f"c:u8[3,2,4,64] s:f16[3,2,2,64] x[5,8] {ADDRESSES}", {}, r"bad x, got f32\[5, 8\]"),
    ("cached_attention", f"q[5,3,4] k[3,2,4,64] v[3,2,64,4] {ADDRESSES}", {"scale": 1.0}, r"got 3 over 2"),
    ("cached_attention", f"q[5,2,4] k[3,2,5,64] v[3,2,64,4] {ADDRESSES}", {"scale": 1.0}, r"dims differ, got 4 and 5"),
    ("cached_attention", f"q[5,2,4] k:i8[3,2,4,64] v:i8[3,2,64,4] {ADDRESSES}", {"scale": 1.0}, r"got i8"),
    ("cached_attention", f"q[5,2,4] k[3,2,4,64] v[3,2,64,4] {ADDRESSES}", {"scale": 1.0, "window": -1}, r"got -1"),
    (
        "cached_attention",
        f"q[5,2,4] k[3,2,4,64] v[3,2,64,4] {ADDRESSES} none none none a[2,64]",
        {"scale": 1.0},
        r"biases .*: dims differ, got 64 and 128",
    ),
]
BAD_DATA = [
    (
        "append_keys",
        addressed([128], [0], [[0, 1]]),
        {},
        r"positions: index out of range, got 128, expected 0..127",
    ),
    ("append_values", addressed([3], [2], [[0, 1]]), {}, r"owners: index out of range, got 2, expected 0..0"),
    (
        "append_values",
        addressed([65], [0], [[0, -1]]),
        {},
        r"blocks: index out of range, got -1, expected 0..1",
    ),
    ("cached_attention", addressed([-1], [0], [[0, 1]], True), {"scale": 1.0}, r"positions: .* got -1"),
    ("cached_attention", addressed([64], [0], [[0, 2]], True), {"scale": 1.0}, r"blocks: .* got 2"),
]

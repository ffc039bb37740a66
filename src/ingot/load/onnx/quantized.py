"""Matrices of few bits with scales for blocks of their rows: they stay codes, which `dequantize` says."""

from __future__ import annotations

import numpy as np

from ingot.ir.dtype import DTYPES, DType, f32, u8
from ingot.load.onnx.call import Call
from ingot.load.onnx.linear import multiply
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size
from ingot.load.quantized import grouped
from ingot.ops.index import inverse_order

_BITS = (2, 4, 8)


@onnx("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(call: Call) -> str:
    """A product with rows of 2, 4 or 8 bits, whose blocks along the sum have a scale and a zero point of their own.

    B u8 [N, blocks, bytes], the first element of a byte in its low bits. g_idx i32 [K]: the block whose scale and zero
    point each element has, where its place does not say so.
    """
    build, dtype = call.build, call.type(0).dtype
    rows, columns, block = call.attr_int("N"), call.attr_int("K"), call.attr_int("block_size")
    bits = call.attr_int("bits", 4)
    if bits not in _BITS or block < 16 or block & (block - 1) or min(rows, columns) < 1:
        raise call.unsupported(f"{bits} bits in blocks of {block}, {rows} x {columns}")
    blocks = -(-columns // block)
    call.expect_sizes(1)
    if call.type(1).shape != (rows, blocks, block * bits // 8) or call.type(1).dtype is not u8:
        raise call.malformed(f"operand {call.type(1)}, expected u8[{rows}, {blocks}, {block * bits // 8}]")
    packed = call.reshape(call[1], (rows, blocks * block * bits // 8))
    scale, zeros, places = call.reshape(call[2], (rows, blocks)), call.get(3), _places(call, columns, block)
    if zeros is not None and call.type(3).dtype is not u8:
        codes = _unpacked(call, packed, bits, False)
        weight = _centred_on_floats(call, codes, scale, call.reshape(zeros, (rows, blocks)), columns, places)
    else:
        zeros = None if zeros is None else call.reshape(zeros, (rows, -(-blocks * bits // 8)))
        weight = _decoded(call, packed, scale, zeros, bits, columns, 1, block, f32, places)
    product = multiply(call, call.cast(call[0], f32), weight, transpose_b=True)
    product = build.add(product, call.cast(call[5], f32)) if call.has(5) else product
    return call.cast(product, dtype)


@onnx("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(call: Call) -> str:
    """Rows of a table of few bits. Codes in u8 lie along its last axis, as those of MatMulNBits do."""
    build, data, rank = call.build, call.type(0), call.type(0).rank
    axis, along = call.attr_axis("gather_axis", 0, rank), call.attr_axis("quantize_axis", 1, rank)
    block, bits = call.attr_int("block_size", 128), call.attr_int("bits", 4)
    if data.dtype.limits is None or block < 16 or block & (block - 1) or bits not in _BITS:
        raise call.unsupported(f"a table {data} of {bits} bits in blocks of {block}")
    zeros, dtype = call.get(3), call.type(2).dtype
    if data.dtype is u8:
        per = 8 // bits
        columns = call.shape(0)[-1] * per
        table = _decoded(call, call[0], call[2], zeros, bits, columns, along, block, dtype)
    else:
        table = build.dequantize(call[0], _narrowed(call, call[2]), zeros, axis=along, block=block, dtype=dtype)
    return build.gather(table, call[1], axis=axis)


def _decoded(
    call: Call,
    packed: str,
    scale: str,
    zeros: str | None,
    bits: int,
    columns: Size,
    axis: int,
    block: int,
    dtype: DType,
    places: np.ndarray | None = None,
) -> str:
    """Floats of codes that lie in bytes along their last axis; without zero points the middle code stands for 0.

    columns: elements of that axis, which the last byte may have more of. axis: of blocks. Zero points lie as codes do.
    places: of each element's block, where they do not follow each other. Where blocks are whole, the elements of each
    are put side by side, as kernels of codes have them, and in order again as floats.
    """
    build = call.build
    codes = _first(call, _unpacked(call, packed, bits, zeros is None), columns)
    if zeros is not None:
        zeros = _first(call, _unpacked(call, zeros, bits, False), call.known_shape(build.type(scale))[-1])
    order = None if places is None else grouped(places, block)
    if order is not None:
        codes = build.gather(codes, build.table(order), axis=axis)
    elif places is not None:
        scale, block = build.gather(scale, build.table(places), axis=axis), 1
        zeros = None if zeros is None else build.gather(zeros, build.table(places), axis=axis)
    decoded = build.dequantize(codes, _narrowed(call, scale), zeros, axis=axis, block=block, dtype=dtype)
    if order is None:
        return decoded
    back = inverse_order(order)
    assert back is not None
    return build.gather(decoded, build.table(back), axis=axis)


def _places(call: Call, columns: int, block: int) -> np.ndarray | None:
    """The block of each column where a product says another than its place does. Raises LoadError for one that is not
    there.
    """
    if not call.has(4):
        return None
    places = call.build.graph.data(call[4])
    if places is None or places.dtype.kind not in "iu" or places.ndim != 1 or len(places) < columns:
        raise call.unsupported(f"g_idx as {call.type(4)}, expected fixed integers [{columns}]")
    places, blocks = places[:columns].astype(np.int64), -(-columns // block)
    if not ((places >= 0) & (places < blocks)).all():
        raise call.malformed(f"g_idx is from {places.min()} to {places.max()}, expected 0..{blocks - 1}")
    return None if np.array_equal(places, np.arange(columns) // block) else places.astype(np.int32)


def _unpacked(call: Call, packed: str, bits: int, centred: bool) -> str:
    """The codes in bytes, the lowest bits first. centred: less the middle one, which the top bit of each flips."""
    build = call.build
    if centred:
        middles = sum(1 << place for place in range(bits - 1, 8, bits))
        packed = build.bitwise_xor(packed, build.scalar(middles, u8))
    dtype = DTYPES[f"{'i' if centred else 'u'}{bits}"]
    if bits < 8:
        return build.unpack(packed, axis=build.type(packed).rank - 1, dtype=dtype)
    return build.bitcast(packed, dtype=dtype) if centred else packed


def _first(call: Call, x: str, columns: Size) -> str:
    """The first so many elements of the last axis."""
    last = call.build.type(x).rank - 1
    return x if call.build.type(x).shape[last] == columns else call.slice(x, last, 0, columns)


def _centred_on_floats(call: Call, codes: str, scale: str, zeros: str, columns: Size, places: np.ndarray | None) -> str:
    """(code - zero) * scale, where zero points are no codes. codes: of whole blocks. scale, zeros: [rows, blocks]."""
    build, (rows, blocks) = call.build, call.known_shape(call.build.type(scale))
    wide, points, steps = (call.cast(x, f32) for x in (codes, zeros, scale))
    if places is not None:
        blocks_of = build.table(places)
        points, steps = (build.gather(x, blocks_of, axis=1) for x in (points, steps))
        return build.mul(build.sub(_first(call, wide, columns), points), steps)
    points, steps = (call.reshape(x, (rows, blocks, 1)) for x in (points, steps))
    whole = call.known_shape(build.type(codes))[1]
    wide = call.reshape(wide, (rows, blocks, whole // blocks))
    return _first(call, call.reshape(build.mul(build.sub(wide, points), steps), (rows, whole)), columns)


def _narrowed(call: Call, scale: str) -> str:
    """Scales as the f16 that panels of codes have, where that loses nothing."""
    data = call.build.graph.data(scale)
    if data is None or data.dtype != np.float32:
        return scale
    with np.errstate(over="ignore"):
        narrow = data.astype(np.float16)
    return call.build.table(narrow) if np.array_equal(narrow, data) else scale

"""Rules for matrices of low-bit quantized values with scales for blocks of their rows; `dequantize` describes them."""

from __future__ import annotations

import numpy as np

from ingot.ir.dtype import DTYPES, DType, f32, i32, u8
from ingot.load.onnx.call import Call
from ingot.load.onnx.linear import multiply
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size
from ingot.load.quantized import grouped
from ingot.ops.index import inverse_order

_BITS = (2, 4, 8)


@onnx("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(call: Call) -> str:
    """Multiply by a matrix whose rows have 2, 4 or 8 bits per element, with a scale and a zero point per block.

    B u8 [N, blocks, bytes], the first element of a byte in its low bits. Blocks follow the axis of the sum. g_idx i32
    [K]: the block of each element, where the elements of a block are not adjacent.
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
    scale, zero_points, block_of = call.reshape(call[2], (rows, blocks)), call.get(3), _blocks_of(call, columns, block)
    if zero_points is not None and call.type(3).dtype is not u8:
        values = _unpacked(call, packed, bits, False)
        weight = _centred_on_floats(call, values, scale, call.reshape(zero_points, (rows, blocks)), columns, block_of)
    else:
        zero_points = None if zero_points is None else call.reshape(zero_points, (rows, -(-blocks * bits // 8)))
        weight = _decoded(call, packed, scale, zero_points, bits, columns, 1, block, f32, block_of)
    product = multiply(call, call.cast(call[0], f32), weight, transpose_b=True)
    product = build.add(product, call.cast(call[5], f32)) if call.has(5) else product
    return call.cast(product, dtype)


# The 16 values of an element, by attribute quant_type of MatMulBnb4: FP4 and NF4.
_BNB4 = (
    (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
     -0.0, -0.0052083333, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25),
    (-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
     0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)  # fmt: skip


@onnx("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(call: Call) -> str:
    """Multiply by a matrix [N, K] of 4 bits per element, with a scale per block of its elements in order.

    The first element of a byte is in its high bits.
    """
    build, dtype = call.build, call.type(0).dtype
    rows, columns, block = call.attr_int("N"), call.attr_int("K"), call.attr_int("block_size")
    kind, size = call.attr_int("quant_type"), rows * columns
    blocks = -(-size // block) if block > 0 else 0
    if min(rows, columns) < 1 or blocks < 1 or kind not in (0, 1):
        raise call.malformed(f"{rows} x {columns} in blocks of {block}, quant_type {kind}")
    pairs = call.reshape(call[1], (-(-size // 2), 1))
    halves = [build.div(pairs, build.scalar(16, u8)), build.bitwise_and(pairs, build.scalar(15, u8))]
    indices = _first(call, call.reshape(build.concat(*halves, axis=1), (2 * -(-size // 2),)), size)
    numbers = build.gather(build.constant(np.array(_BNB4[kind], np.float32)), call.cast(indices, i32), axis=0)
    scales = build.expand(call.reshape(call.cast(call[2], f32), (blocks, 1)), shape=(blocks, block))
    scales = _first(call, call.reshape(scales, (blocks * block,)), size)
    weight = call.reshape(build.mul(numbers, scales), (rows, columns))
    product = multiply(call, call.cast(call[0], f32), weight, transpose_b=bool(call.attr_int("transB", 1)))
    return call.cast(product, dtype)


@onnx("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(call: Call) -> str:
    """Gather rows of a table of low-bit values. Quantized values in u8 are packed along its last axis, as in
    MatMulNBits.
    """
    build, data, rank = call.build, call.type(0), call.type(0).rank
    axis, along = call.attr_axis("gather_axis", 0, rank), call.attr_axis("quantize_axis", 1, rank)
    block, bits = call.attr_int("block_size", 128), call.attr_int("bits", 4)
    if data.dtype.limits is None or block < 16 or block & (block - 1) or bits not in _BITS:
        raise call.unsupported(f"a table {data} of {bits} bits in blocks of {block}")
    zero_points, dtype = call.get(3), call.type(2).dtype
    if data.dtype is u8:
        per = 8 // bits
        columns = call.shape(0)[-1] * per
        table = _decoded(call, call[0], call[2], zero_points, bits, columns, along, block, dtype)
    else:
        table = build.dequantize(call[0], _narrowed(call, call[2]), zero_points, axis=along, block=block, dtype=dtype)
    return build.gather(table, call[1], axis=axis)


def _decoded(
    call: Call,
    packed: str,
    scale: str,
    zero_points: str | None,
    bits: int,
    columns: Size,
    axis: int,
    block: int,
    dtype: DType,
    block_of: np.ndarray | None = None,
) -> str:
    """Dequantize values packed in bytes along their last axis; without zero points the middle value represents
    0.

    columns: the length of that axis without padding in the last byte. axis: the axis of the blocks. Zero points are
    packed like the values. block_of: the block of each element, where the elements of a block are not adjacent. If all
    blocks are full, the values are gathered block by block, the layout of the quantized kernels, and restored to their
    order as floats.
    """
    build = call.build
    values = _first(call, _unpacked(call, packed, bits, zero_points is None), columns)
    if zero_points is not None:
        zero_points = _first(call, _unpacked(call, zero_points, bits, False), call.known_shape(build.type(scale))[-1])
    order = None if block_of is None else grouped(block_of, block)
    if order is not None:
        values = build.gather(values, build.table(order), axis=axis)
    elif block_of is not None:
        scale, block = build.gather(scale, build.table(block_of), axis=axis), 1
        zero_points = None if zero_points is None else build.gather(zero_points, build.table(block_of), axis=axis)
    decoded = build.dequantize(values, _narrowed(call, scale), zero_points, axis=axis, block=block, dtype=dtype)
    if order is None:
        return decoded
    restore = inverse_order(order)
    assert restore is not None
    return build.gather(decoded, build.table(restore), axis=axis)


def _blocks_of(call: Call, columns: int, block: int) -> np.ndarray | None:
    """Return the block of each column where a product assigns columns to blocks out of order, else None. Raises
    LoadError for a block out of range.
    """
    if not call.has(4):
        return None
    block_of = call.build.graph.data(call[4])
    if block_of is None or block_of.dtype.kind not in "iu" or block_of.ndim != 1 or len(block_of) < columns:
        raise call.unsupported(f"g_idx as {call.type(4)}, expected fixed integers [{columns}]")
    block_of, blocks = block_of[:columns].astype(np.int64), -(-columns // block)
    if not ((block_of >= 0) & (block_of < blocks)).all():
        raise call.malformed(f"g_idx is from {block_of.min()} to {block_of.max()}, expected 0..{blocks - 1}")
    return None if np.array_equal(block_of, np.arange(columns) // block) else block_of.astype(np.int32)


def _unpacked(call: Call, packed: str, bits: int, centred: bool) -> str:
    """Unpack the quantized values in bytes, the lowest bits first. centred: minus the middle value, by flipping the top
    bit of each value.
    """
    build = call.build
    if centred:
        middles = sum(1 << bit for bit in range(bits - 1, 8, bits))
        packed = build.bitwise_xor(packed, build.scalar(middles, u8))
    dtype = DTYPES[f"{'i' if centred else 'u'}{bits}"]
    if bits < 8:
        return build.unpack(packed, axis=build.type(packed).rank - 1, dtype=dtype)
    return build.bitcast(packed, dtype=dtype) if centred else packed


def _first(call: Call, x: str, columns: Size) -> str:
    """Return the first `columns` elements of the last axis."""
    last = call.build.type(x).rank - 1
    return x if call.build.type(x).shape[last] == columns else call.slice(x, last, 0, columns)


def _centred_on_floats(
    call: Call, values: str, scale: str, zero_points: str, columns: Size, block_of: np.ndarray | None
) -> str:
    """Compute (value - zero point) * scale with float zero points. values: padded to full blocks. scale, zeros:
    [rows, blocks].
    """
    build, (rows, blocks) = call.build, call.known_shape(call.build.type(scale))
    wide, points, steps = (call.cast(x, f32) for x in (values, zero_points, scale))
    if block_of is not None:
        blocks_of = build.table(block_of)
        points, steps = (build.gather(x, blocks_of, axis=1) for x in (points, steps))
        return build.mul(build.sub(_first(call, wide, columns), points), steps)
    points, steps = (call.reshape(x, (rows, blocks, 1)) for x in (points, steps))
    padded = call.known_shape(build.type(values))[1]
    wide = call.reshape(wide, (rows, blocks, padded // blocks))
    return _first(call, call.reshape(build.mul(build.sub(wide, points), steps), (rows, padded)), columns)


def _narrowed(call: Call, scale: str) -> str:
    """Convert scales to the f16 of quantized panels, if this is exact."""
    data = call.build.graph.data(scale)
    if data is None or data.dtype != np.float32:
        return scale
    with np.errstate(over="ignore"):
        narrow = data.astype(np.float16)
    return call.build.table(narrow) if np.array_equal(narrow, data) else scale

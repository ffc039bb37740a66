"""Rules for quantization, and for integer products of quantized values, whose sums are exact."""

from __future__ import annotations

import numpy as np

from ingot.ir.dtype import DType, f32, i32, u8
from ingot.load.onnx.call import Call
from ingot.load.onnx.conv import average_pool, convolve
from ingot.load.onnx.linear import multiply
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size, count
from ingot.ops.define import normalize_axis
from ingot.ops.integer import BYTES
from ingot.ops.quantize import FLOATS
from ingot.ops.sequence import is_single


@onnx("QuantizeLinear")
@onnx("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(call: Call) -> str:
    zero_point = call.get(2)
    dtype = u8 if zero_point is None else call.type(2).dtype
    if call.attr_int("output_dtype", 0):
        dtype = call.attr_dtype("output_dtype")
        if zero_point is not None and call.type(2).dtype is not dtype:
            raise call.malformed(f"attribute 'output_dtype' is {dtype}, the zero point {call.type(2)}")
    precision = call.type(1).dtype if call.type(1).dtype in FLOATS else f32
    if call.attr_int("precision", 0):
        precision = call.attr_dtype("precision")
    axis, block = _granularity(call)
    expect_scale(call, 1)
    saturate = bool(call.attr_int("saturate", 1))
    return call.build.quantize(
        call[0], call[1], zero_point, axis=axis, block=block, dtype=dtype, precision=precision, saturate=saturate
    )


@onnx("DequantizeLinear")
@onnx("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(call: Call) -> str:
    dtype = call.type(1).dtype if call.type(1).dtype in FLOATS else f32
    if call.attr_int("output_dtype", 0):
        dtype = call.attr_dtype("output_dtype")
    axis, block = _granularity(call)
    expect_scale(call, 1)
    return call.build.dequantize(call[0], call[1], call.get(2), axis=axis, block=block, dtype=dtype)


def _granularity(call: Call) -> tuple[int, int]:
    """Return the axis (0 for a single scale) and the block size (0 without blocks)."""
    block = call.attr_int("block_size", 0)
    if not 0 <= block < 2**31:
        raise call.malformed(f"attribute 'block_size' is {block}, expected 0 or more")
    if call.type(1).rank == 0 or call.type(1).shape == (1,):
        return 0, 0
    return call.attr_axis("axis", 1, call.type(0).rank), block


@onnx("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> tuple[str, ...]:
    return call.build.add_all("dynamic_quantize", call[0])


@onnx("MatMulInteger")
def matmul_integer(call: Call) -> str:
    return _product(call, (0, 2), (1, 3), i32)


@onnx("ConvInteger")
def conv_integer(call: Call) -> str:
    return _convolution(call, (0, 2), (1, 3), None)


@onnx("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(call: Call) -> str:
    return _scaled_product(call, _product(call, (0, 4), (1, 5), i32), call[2], b_scale=3, bias=6)


@onnx("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(call: Call) -> str:
    build = call.build
    quantized, scale, zero = build.add_all("dynamic_quantize", call[0])
    inner = call.replaced(quantized, call[1], zero, call.get(3))
    return _scaled_product(call, _product(inner, (0, 2), (1, 3), i32), scale, b_scale=2, bias=4)


def _scaled_product(call: Call, sums: str, a_scale: str, *, b_scale: int, bias: int) -> str:
    """Scale the sums by the scales of both operands, in the dtype of the scales; a vector of scales of b has one per
    column.
    """
    build, dtype = call.build, call.type(b_scale).dtype
    scale = build.mul(call.reshape(call.cast(a_scale, f32), ()), _scale(call, b_scale, 1))
    result = build.mul(call.cast(sums, f32), scale)
    result = build.add(result, call.cast(call[bias], f32)) if call.has(bias) else result
    return call.cast(result, dtype)


@onnx("QLinearMatMul")
def qlinear_matmul(call: Call) -> str:
    """The three scales are combined first, as the scale of the sums."""
    build, wide = call.build, i32 if call.type(0).dtype.kind in "iu" and call.type(3).dtype.kind in "iu" else f32
    sums = _product(call, (0, 2), (3, 5), wide)
    rank = build.type(sums).rank
    scale = build.mul(_scale(call, 1, rank, rows=True), _scale(call, 4, rank))
    return _requantized(call, sums, build.div(scale, _scale(call, 6, rank, rows=True)), 7, rank - 1)


@onnx("QLinearConv")
def qlinear_conv(call: Call) -> str:
    build, rank = call.build, call.type(0).rank
    sums = _convolution(call, (0, 2), (3, 5), call.get(8))
    scale = build.mul(_scale(call, 1, 0), _scale(call, 4, rank - 1, filters=True))
    return _requantized(call, sums, build.div(scale, _scale(call, 6, 0)), 7, 1)


def _product(call: Call, left: tuple[int, int], right: tuple[int, int], wide: DType) -> str:
    """Multiply two operands minus their zero points; each pair holds the indices of an operand and of its zero
    point.
    """
    (a, a_zero), (b, b_zero) = left, right
    types = call.type(a), call.type(b)
    zero_points = call.type(a_zero) if call.has(a_zero) else None, call.type(b_zero) if call.has(b_zero) else None
    one_each = (types[1].shape[-1:], (1,), ())
    fits = all(type.dtype in BYTES and type.rank > 1 for type in types)
    fits = (
        fits
        and (zero_points[0] is None or zero_points[0].shape in ((), (1,)))
        and (zero_points[1] is None or zero_points[1].shape in one_each)
    )
    if fits:
        return call.build.matmul_integer(call[a], call[b], None, call.get(a_zero), call.get(b_zero))
    return multiply(call, centred(call, a, a_zero, wide, rows=True), centred(call, b, b_zero, wide))


def _convolution(call: Call, image: tuple[int, int], filters: tuple[int, int], bias: str | None) -> str:
    """Convolve two operands minus their zero points."""
    (x, x_zero), (w, w_zero) = image, filters
    one_each = (call.type(w).shape[:1], (1,), ())
    fits = call.type(x).dtype in BYTES and call.type(w).dtype in BYTES
    fits = fits and (not call.has(x_zero) or call.type(x_zero).shape in one_each[1:])
    if fits and (not call.has(w_zero) or call.type(w_zero).shape in one_each):
        return convolve(call, call[x], call[w], bias, call.get(x_zero), call.get(w_zero), op="conv_integer")
    return convolve(call, centred(call, x, x_zero, i32), centred(call, w, w_zero, i32, filters=True), bias)


def centred(call: Call, index: int, zero: int, dtype: DType, *, rows: bool = False, filters: bool = False) -> str:
    """Subtract the zero point from an operand, in a dtype that fits both. rows, filters: the granularity of a vector of
    zero points.
    """
    x = call.cast(call[index], dtype)
    if not call.has(zero):
        return x
    rank = call.type(index).rank
    return call.build.sub(x, _along(call, call.cast(call[zero], dtype), rank, rows=rows, filters=filters))


def expect_scale(call: Call, index: int) -> None:
    """Raise LoadError for a known scale that is not finite.

    A negative scale is valid: low-bit formats assign a block's largest element the one quantized value without a
    counterpart. A scale of 0 is valid, too: it occurs where all numbers are 0.
    """
    data = call.build.graph.data(call[index])
    if data is None or data.dtype.kind != "f":
        return
    if not np.isfinite(data).all():
        raise call.malformed(f"input {index} is {data.ravel()[:8].tolist()}, expected finite scales")


def _scale(call: Call, index: int, rank: int, *, rows: bool = False, filters: bool = False) -> str:
    expect_scale(call, index)
    return _along(call, call.cast(call[index], f32), rank, rows=rows, filters=filters)


def _along(call: Call, x: str, rank: int, *, rows: bool, filters: bool) -> str:
    """Reshape a vector with a value per row, column or filter so that it broadcasts; one element becomes a scalar."""
    shape = call.build.type(x).shape
    if shape == (1,):
        return call.reshape(x, ())
    if len(shape) == 1 and filters:
        return call.reshape(x, (*shape, *[1] * (rank - 1)))
    if len(shape) == 1 and rows and rank > 1:
        return call.reshape(x, (*shape, 1))
    return x


def _requantized(call: Call, sums: str, scale: str, zero: int, axis: int) -> str:
    """Requantize sums to integers. scale: one number, or one per index of the axis; or anything that broadcasts."""
    build = call.build
    rank, count = build.type(scale).rank, build.type(sums).shape[axis]
    column = build.type(sums).rank - axis
    if build.type(sums).dtype is i32 and (rank == 0 or (build.type(scale).shape[0] == count and rank == column)):
        scale = scale if rank < 2 else call.reshape(scale, (count,))
        scaled = build.dequantize(sums, scale, axis=axis if rank else 0, block=0, dtype=f32)
    else:
        scaled = build.mul(call.cast(sums, f32), scale)
    if not is_single(call.type(zero), call.type(zero).dtype):
        raise call.unsupported(f"zero points of the result of type {call.type(zero)}")
    zero_point = call.scalar(zero)
    one = build.scalar(1.0, f32)
    return build.quantize(scaled, one, zero_point, axis=0, block=0, dtype=call.type(zero).dtype, precision=f32)


# -- ops of com.microsoft on quantized values: computed in floats and rounded once ---------------------------------


def _floats(call: Call, index: int, scale: int, zero: int) -> str:
    """Dequantize operand `index` by one scale and an optional zero point."""
    expect_scale(call, scale)
    return call.build.dequantize(call[index], call[scale], call.get(zero), axis=0, block=0, dtype=f32)


def _rounded(call: Call, x: str, scale: int, zero: int, dtype: DType) -> str:
    """Quantize floats by the scale in operand `scale`."""
    expect_scale(call, scale)
    zero_point = call.get(zero)
    dtype = dtype if zero_point is None else call.type(zero).dtype
    return call.build.quantize(x, call[scale], zero_point, axis=0, block=0, dtype=dtype, precision=f32)


@onnx("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(call: Call) -> str:
    op = "add" if call.op == "QLinearAdd" else "mul"
    result = getattr(call.build, op)(_floats(call, 0, 1, 2), _floats(call, 3, 4, 5))
    return _rounded(call, result, 6, 7, call.type(0).dtype)


@onnx("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(call: Call) -> str:
    x = _floats(call, 0, 1, 2)
    if call.op == "QLinearSigmoid":
        return _rounded(call, call.build.sigmoid(x), 3, 4, call.type(0).dtype)
    return _rounded(call, call.build.leaky_relu(x, alpha=call.attr_float("alpha", 0.01)), 3, 4, call.type(0).dtype)


@onnx("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(call: Call) -> str:
    """The attribute `opset` selects the Softmax: before 13, the dims from the axis on are merged into one."""
    shape, is_rest = call.shape(0), call.attr_int("opset") < 13
    axis = call.attr_axis("axis", 1 if is_rest else -1, len(shape))
    rows: tuple[Size, ...] = (*shape[:axis], count(shape[axis:])) if is_rest else shape
    result = call.build.softmax(call.reshape(_floats(call, 0, 1, 2), rows), axis=axis)
    return _rounded(call, call.reshape(result, shape), 3, 4, call.type(0).dtype)


@onnx("QLinearWhere", domain=MICROSOFT)
def qlinear_where(call: Call) -> str:
    chosen = call.build.where(call[0], _floats(call, 1, 2, 3), _floats(call, 4, 5, 6))
    return _rounded(call, chosen, 7, 8, call.type(1).dtype)


@onnx("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(call: Call) -> str:
    """Operands come in triples, after the scale and zero point of the result."""
    if len(call) < 5 or (len(call) - 2) % 3:
        raise call.malformed(f"{len(call)} inputs, expected 2 and 3 for each operand")
    parts = [_floats(call, i, i + 1, i + 2) for i in range(2, len(call), 3)]
    axis = normalize_axis("attribute 'axis'", call.attr_int("axis"), call.type(2).rank)
    return _rounded(call, call.build.concat(*parts, axis=axis), 0, 1, call.type(2).dtype)


@onnx("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_average_pool(call: Call) -> str:
    x, rank = _floats(call, 0, 1, 2), call.type(0).rank
    if rank < 3:
        raise call.malformed(f"an image of rank {rank}, expected 3 or more")
    is_last = call.attr_int("channels_last", 0)
    x = call.permute(x, (0, rank - 1, *range(1, rank - 1))) if is_last else x
    if call.op == "QLinearAveragePool":
        mean = average_pool(call.replaced(x))
    else:
        mean = call.build.reduce_mean(x, axes=tuple(range(2, rank)), keepdims=True)
    mean = call.permute(mean, (0, *range(2, rank), 1)) if is_last else mean
    return _rounded(call, mean, 3, 4, call.type(0).dtype)


@onnx("QGemm", domain=MICROSOFT)
def qgemm(call: Call) -> str:
    """Compute alpha * a' b' + c, where c has the scale of the sums; without a zero point of the result, it stays
    float.
    """
    build = call.build
    if call.attr_int("transA", 0) or call.type(0).rank != 2 or call.type(3).rank != 2:
        raise call.unsupported(f"a transposed left operand, or {call.type(0)} and {call.type(3)}")
    transposed = bool(call.attr_int("transB", 0))
    columns = call.shape(3)[0 if transposed else 1]
    is_row = call.has(6) and call.type(6).shape == (columns,)
    bias = call[6] if is_row else None
    sums = build.matmul_integer(call[0], call[3], bias, call.get(2), call.get(5), transpose_b=transposed)
    if call.has(6) and not is_row:
        sums = build.add(sums, call[6])
    scale = build.mul(_scale(call, 1, 0), _scale(call, 4, 1))
    alpha = call.attr_float("alpha", 1.0)
    scale = scale if alpha == 1.0 else build.mul(scale, alpha)
    if call.has(8):
        return _requantized(call, sums, build.div(scale, _scale(call, 7, 0)), 8, 1)
    return build.dequantize(sums, scale, axis=build.type(scale).rank, block=0, dtype=f32)

"""Quantization: values of few bits that represent (value - zero point) * scale.

scale, and zero_point of the same shape, have one element for the whole tensor, one per index of an axis, or one per
block of elements along the axis: then they have the operand's rank. In files, several quantized values are packed in
one integer.
"""

import math

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import DType, bf16, f4e2m1, f8e4m3fn, f8e8m0, f16, f32, f64, i2, i4, i8, i16, i32, u4, u8
from ingot.ir.graph import Graph, Node, TensorType
from ingot.ops.cast import cast
from ingot.ops.define import op, sample, unify

FLOATS = (f64, f32, f16, bf16)


def _expect_scales(name: str, x: TensorType, scale: TensorType, zero_point: TensorType | None, axis, block) -> None:
    fits = scale.rank == 0 or scale.shape == (1,)
    if not fits and 0 <= axis < x.rank and block >= 0:
        if block:
            fits = scale.rank == x.rank
            for i, (dim, count) in enumerate(zip(x.shape, scale.shape, strict=False)):
                is_known = isinstance(dim, int) and isinstance(count, int)
                fits = fits and (not is_known or count == (math.ceil(dim / block) if i == axis else dim))
        else:
            fits = scale.rank == 1
            unify(f"{name}: scales of {x} along axis {axis}", scale.shape[0], x.shape[axis])
    if not fits:
        raise ShapeError(f"{name}: scales do not fit, got {scale} for {x}, axis {axis} and blocks of {block}")
    if (
        zero_point is not None
        and zero_point.shape != scale.shape
        and (zero_point.rank, scale.rank) != (0, 1)
        and (zero_point.shape, scale.rank) != ((1,), 0)
    ):
        raise ShapeError(f"{name}: zero point does not fit, got {zero_point}, expected the shape of {scale}")


def _spread(values, shape, axis: int, block: int):
    """Reshape or repeat scales or zero points so that they broadcast over a tensor."""
    if values.size == 1 and values.ndim < 2:
        return values.reshape(())
    if block:
        return np.repeat(values, block, axis)[tuple(slice(n) for n in shape)]
    return values.reshape(-1, *[1] * (len(shape) - axis - 1))


def _wide(dtype: DType) -> DType:
    """Return the dtype of the computation, before a result is rounded to a float dtype."""
    return f64 if dtype is f64 else f32


def _as(g, x, *dtypes):
    """Cast x to one dtype after the other."""
    for dtype in dtypes:
        x = x if g.type(x).dtype is dtype else g.cast(x, dtype=dtype)
    return x


def _spread_in(g, values, shape, axis: int, block: int):
    """As `_spread`, in plain ops."""
    dims = g.type(values).shape
    if dims in ((), (1,)):
        return g.reshape(values, shape=())
    if not block:
        return g.reshape(values, shape=(*dims, *[1] * (len(shape) - axis - 1)))
    head, count, behind = dims[:axis], dims[axis], dims[axis + 1 :]
    values = g.expand(g.reshape(values, shape=(*head, count, 1, *behind)), shape=(*head, count, block, *behind))
    values = g.reshape(values, shape=(*head, count * block, *behind))
    return g.slice(values, starts=(0,) * len(shape), stops=shape, steps=(1,) * len(shape))


def _expand_quantize(g, x, scale, zero_point=None, *, axis, block, dtype, precision, saturate):
    wide, shape = _wide(precision), g.type(x).shape
    scale = _as(g, _spread_in(g, scale, shape, axis, block), precision, wide)
    quotient = _as(g, g.div(_as(g, x, precision, wide), scale), precision, wide)
    zero = g.constant(0, wide)
    point = zero if zero_point is None else _as(g, _spread_in(g, zero_point, shape, axis, block), wide)
    if dtype.limits is None:
        return g.cast(g.add(quotient, point), dtype=dtype, saturate=saturate)
    quotients = g.round(quotient)
    if zero_point is not None:  # else the cast converts NaN to 0
        quotients = g.add(g.where(g.isnan(quotients), zero, quotients), point)
    low, high = dtype.limits
    return g.cast(g.clip(quotients, minimum=float(low), maximum=float(high)), dtype=dtype)


def _expand_dequantize(g, x, scale, zero_point=None, *, axis, block, dtype):
    wide, shape = _wide(dtype), g.type(x).shape
    quotients = _as(g, x, wide)
    if zero_point is not None:
        quotients = g.sub(quotients, _as(g, _spread_in(g, zero_point, shape, axis, block), wide))
    return _as(g, g.mul(quotients, _as(g, _spread_in(g, scale, shape, axis, block), wide)), dtype)


def _infer_quantize(x, scale, zero_point=None, *, axis, block, dtype, precision, saturate):
    if x.dtype not in (*FLOATS, i32) or scale.dtype not in (*FLOATS, i32, f8e8m0) or precision not in FLOATS:
        raise ShapeError(f"quantize: bad dtypes, got {x} by {scale} in {precision}, expected f32, f16, bf16 or i32")
    is_integer = dtype.limits is not None and dtype.bits <= 16 and dtype.kind != "b"
    if not is_integer and (dtype.kind != "n" or dtype is f8e8m0):
        raise ShapeError(f"quantize: bad dtype, got {dtype}, expected integers of 16 bits at most or narrow floats")
    if zero_point is not None and zero_point.dtype is not dtype:
        raise ShapeError(f"quantize: dtypes differ, got zero point {zero_point}, expected {dtype}")
    _expect_scales("quantize", x, scale, zero_point, axis, block)
    return TensorType(dtype, x.shape)


_TENSOR = {"axis": 0, "block": 0, "precision": f32}


@op(
    computes=False,
    infer=_infer_quantize,
    expand=_expand_quantize,
    domain=(-3.0, 3.0),
    samples=[
        sample("x[2,5,7] s>0.01<0.1[] z:u8<9[]", **_TENSOR, dtype=u8),
        sample("x[2,5,7] s>0.01<0.1[5] z:i16<9[5]", axis=1, block=0, precision=f32, dtype=i16),
        sample("x[2,5,7] s>0.01<0.1[2,3,7]", axis=1, block=2, precision=f32, dtype=i8),
        sample("x:i32<99[7] s>0.5<1[]", **_TENSOR, dtype=i8),
        sample("x[0,3] s>0.5<1[]", **_TENSOR, dtype=i8),
        sample("x[4,5] s>0.5<1[4]", **_TENSOR, dtype=i4),
        sample("x[4,5] s>0.5<1[]", **_TENSOR, dtype=f8e4m3fn),
        sample("x[4,5] s>0.5<1[]", **_TENSOR, dtype=f4e2m1),
    ],
)
def quantize(
    x, scale, zero_point=None, *, axis: int, block: int, dtype: DType, precision: DType, saturate: bool = True
):
    """round(x / scale) + zero_point, saturated; halves to even. Low-precision floats are rounded to their own
    grid.

    precision: the dtype of the division. block: 0, or elements of a block along the axis. saturate: see `cast`. NaN
    becomes the zero point, unless the dtype has NaN.
    """
    wide = _wide(precision).numpy
    x, scale = (a.astype(precision.numpy).astype(wide) for a in (x, _spread(scale, x.shape, axis, block)))
    quotient = (x / scale).astype(precision.numpy).astype(wide)
    zero = 0 if zero_point is None else _spread(zero_point, x.shape, axis, block).astype(wide)
    if dtype.limits is None:
        return cast(quotient + zero, dtype=dtype, saturate=saturate)
    quotients = np.rint(quotient)
    quotients = np.clip(
        np.where(np.isnan(quotients), wide.type(0), quotients) + zero, *dtype.limits
    )  # exact unless clipped: 24 bits hold 16-bit integers
    return quotients.astype(dtype.numpy) if dtype.bits >= 8 else cast(quotients.astype(np.int8), dtype=dtype)


def _infer_dequantize(x, scale, zero_point=None, *, axis, block, dtype):
    if x.dtype.kind not in "iun" or x.dtype is f8e8m0 or scale.dtype not in (*FLOATS, f8e8m0) or dtype not in FLOATS:
        raise ShapeError(f"dequantize: bad dtypes, got {x} by {scale} to {dtype}, expected f32, f16 or bf16")
    if zero_point is not None and zero_point.dtype is not x.dtype:
        raise ShapeError(f"dequantize: dtypes differ, got zero point {zero_point}, expected {x.dtype}")
    _expect_scales("dequantize", x, scale, zero_point, axis, block)
    return TensorType(dtype, x.shape)


@op(
    computes=False,
    infer=_infer_dequantize,
    expand=_expand_dequantize,
    samples=[
        sample("x:u8<200[2,5,7] s>0.01<0.1[] z:u8<9[]", axis=0, block=0, dtype=f32),
        sample("x:i16<200[2,5,7] s>0.01<0.1[5] z:i16<9[5]", axis=1, block=0, dtype=f32),
        sample("x:i8<99[2,5,7] s>0.01<0.1[2,3,7]", axis=1, block=2, dtype=f32),
        sample("x:i32<99[7] s>0.5<1[]", axis=0, block=0, dtype=f32),
        sample("x:i8[0,3] s>0.5<1[]", axis=0, block=0, dtype=f32),
        sample("x:u4[4,5] s>0.5<1[4] z:u4[4]", axis=0, block=0, dtype=f32),
        sample("x:f8e5m2[4,5] s>0.5<1[]", axis=0, block=0, dtype=f32),
    ],
)
def dequantize(x, scale, zero_point=None, *, axis: int, block: int, dtype: DType):
    """(x - zero_point) * scale, computed in f32 and rounded once; block: 0, or elements of a block along the axis."""
    wide = _wide(dtype).numpy
    quotients = x.astype(wide)
    if zero_point is not None:
        quotients = quotients - _spread(zero_point, x.shape, axis, block).astype(wide)
    return (quotients * _spread(scale, x.shape, axis, block).astype(wide)).astype(dtype.numpy)


def fixed_steps(graph: Graph, node: Node) -> tuple[float, float] | None:
    """Return the scale and zero point of a quantize or dequantize between f32 and bytes, if each is a known number."""
    given = graph.type(str(node.operands[0])).dtype
    if node.op.name == "dequantize":
        is_plain = given in (i8, u8) and node.dtype is f32
    else:
        is_plain = node.dtype in (i8, u8) and given is f32 and node.precision is f32
    arrays = [graph.data(str(operand)) for operand in node.operands[1:] if operand is not None]
    if not is_plain or node.block or any(array is None or array.size != 1 for array in arrays):
        return None
    scale, zero = (*arrays, np.zeros(1, np.int8))[:2]
    assert scale is not None and zero is not None
    return (float(scale.item()), float(zero.item())) if scale.dtype == np.float32 else None


_CANDIDATES = (-8.0, -8.7, -7.4)  # candidates for 4 bits: the quantized value of a group's largest element
_LANES = 16


def _fitted_scale(x, extreme):
    """Return the 4-bit scale of each row, fitted by least squares; sums equal those of the kernel bit for bit."""
    plain = extreme * np.float32(-1 / 8)
    fitted, most = np.zeros_like(extreme), np.zeros_like(extreme)
    for candidate in _CANDIDATES:
        quotients = np.clip(np.rint(x * (np.float32(candidate) / extreme)[:, None]), -8, 7)
        product_sum, square = _lane_sum(x * quotients), _lane_sum(quotients * quotients)
        gain = product_sum * product_sum / square
        is_better = gain > most
        fitted, most = np.where(is_better, product_sum / square, fitted), np.where(is_better, gain, most)
    return np.where(_is_usable(plain) & _is_usable(fitted), fitted, plain)


def _is_usable(scale):
    f16_scales = scale.astype(np.float16)
    return np.isfinite(f16_scales) & (f16_scales != 0)


def _lane_sum(x):
    """Sum each row as the kernel does: sixteen lanes first, then halves of the lanes."""
    lanes = np.zeros((len(x), _LANES), np.float32)
    for begin in range(0, x.shape[1], _LANES):
        part = x[:, begin : begin + _LANES]
        lanes[:, : part.shape[1]] += part
    while lanes.shape[1] > 1:
        lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
    return lanes[:, 0]


def _infer_quantize_groups(x, *, group, dtype):
    if x.dtype not in (f32, f64) or x.rank != 2 or dtype not in (i8, i4) or group < 1:
        raise ShapeError(f"quantize_groups: got {x} to {dtype} by {group}, expected f32 rows to i8 or i4 by 1 or more")
    n, k = x.shape
    return TensorType(dtype, x.shape), TensorType(f16, (n, None if k is None else -(-k // group)))


@op(
    computes=False,
    outputs=2,
    infer=_infer_quantize_groups,
    samples=[
        sample("x[5,96]", group=32, dtype=i8),
        sample("x[3,70]", group=64, dtype=i4),
        sample("x[0,32]", group=32, dtype=i8),
    ],
)
def quantize_groups(x, *, group: int, dtype: DType):
    """Quantized rows, and an f16 scale for each group of a row's elements; the last group may be smaller.

    With 8 bits, the element of largest magnitude is 127 or -127. With 4 bits it is about -8, so that all sixteen values
    are used: of three candidate scales, the one with the smallest error is selected, and fitted by least squares.
    Values are rounded to nearest, halves to even. A group with an element that is not finite has a scale of NaN; if a
    scale is not finite, or 0, the quantized values are 0.
    """
    x = x.astype(np.float32, copy=False)
    quantized, scales = np.zeros(x.shape, np.int8), []
    for begin in range(0, x.shape[1], group):
        part = x[:, begin : begin + group]
        high, low = part.max(1), part.min(1)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            extreme = np.where(-low > high, low, high)
            scale = abs(extreme) * np.float32(1 / 127) if dtype is i8 else _fitted_scale(part, extreme)
            scales.append(np.where(np.isfinite(part).all(1), scale, np.float32(np.nan)).astype(np.float16))
            wide = scales[-1].astype(np.float32)[:, None]
            quotients = np.where(np.isfinite(wide) & (wide != 0), np.rint(part / wide), np.float32(0))
        quantized[:, begin : begin + group] = np.clip(quotients, -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)
    f16_scales = np.stack(scales, 1) if scales else np.zeros((len(x), 0), np.float16)
    return (quantized if dtype is i8 else cast(quantized, dtype=dtype)), f16_scales


def _infer_unpack(x, *, axis, dtype):
    is_narrower = dtype.limits is not None and dtype.kind != "b" and dtype.bits < x.dtype.bits
    if x.dtype.kind not in "iu" or not is_narrower:
        raise ShapeError(f"unpack: bad dtypes, got {x} to {dtype}, expected integers, and narrower ones in them")
    if not 0 <= axis < x.rank:
        raise ShapeError(f"unpack: axis out of range, got {axis}, expected 0..{x.rank - 1}")
    count, dim = x.dtype.bits // dtype.bits, x.shape[axis]
    return TensorType(dtype, (*x.shape[:axis], None if dim is None else dim * count, *x.shape[axis + 1 :]))


@op(
    computes=False,
    infer=_infer_unpack,
    samples=[
        sample("x:u8<256[3,5]", axis=1, dtype=u4),
        sample("x:u8<256[3,5]", axis=0, dtype=i4),
        sample("x:i32>-2147483648<2147483647[2,5,3]", axis=1, dtype=u4),
        sample("x:i32>-2147483648<2147483647[4,2]", axis=1, dtype=i8),
        sample("x:u8<256[0,3]", axis=1, dtype=i2),
    ],
)
def unpack(x, *, axis: int, dtype: DType):
    """The numbers of fewer bits packed in integers, the first in the low bits, in order along an axis."""
    stored = np.ascontiguousarray(x).view(f"u{x.itemsize}").reshape(x.shape)
    narrow = np.dtype(f"u{dtype.held.itemsize}")
    count = 8 * x.itemsize // dtype.bits
    fields = np.empty((*x.shape[: axis + 1], count, *x.shape[axis + 1 :]), narrow)
    for position in range(count):
        field = (stored >> stored.dtype.type(position * dtype.bits)) & stored.dtype.type(2**dtype.bits - 1)
        fields[(slice(None),) * (axis + 1) + (position,)] = field
    return fields.reshape(*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]).view(dtype.numpy)


def _infer_unpack_bits(x, *, bits):
    last = x.shape[-1] if x.rank else 0
    if x.dtype is not u8 or not x.rank or not 1 <= bits <= 8:
        raise ShapeError(f"unpack_bits: got {x} of {bits} bits, expected u8 rows of integers of 1..8 bits")
    if isinstance(last, int) and last * 8 % bits:
        raise ShapeError(f"unpack_bits: rows do not fit, got {last} bytes, expected whole integers of {bits} bits")
    return TensorType(u8, (*x.shape[:-1], None if last is None else last * 8 // bits))


@op(
    computes=False,
    infer=_infer_unpack_bits,
    samples=[
        sample("x:u8<256[3,6]", bits=3),
        sample("x:u8<256[2,5]", bits=5),
        sample("x:u8<256[2,2,3]", bits=6),
        sample("x:u8<256[5]", bits=4),
        sample("x:u8<256[3,4]", bits=8),
        sample("x:u8<256[0,3]", bits=2),
    ],
)
def unpack_bits(x, *, bits: int):
    """The unsigned integers of so many bits that rows of bytes store without gaps, the first in the low bits, as u8."""
    if bits == 8:
        return x
    count = x.shape[-1] * 8 // bits
    fields = np.unpackbits(np.ascontiguousarray(x), axis=-1, bitorder="little").reshape(*x.shape[:-1], count, bits)
    return np.packbits(fields, axis=-1, bitorder="little").reshape(*x.shape[:-1], count)

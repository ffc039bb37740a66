"""Products of 8-bit integers minus their zero points, with exact sums, and dynamic quantization."""

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import f32, f64, i8, i32, u8
from ingot.ir.graph import TensorType
from ingot.ops.conv import conv, spatial_dims
from ingot.ops.define import Ints, broadcast_shapes, op, sample, unify

BYTES = (u8, i8)


def _expect_integers(name: str, x, weight, bias, x_zero, weight_zero, columns) -> None:
    if x.dtype not in BYTES or weight.dtype not in BYTES:
        raise ShapeError(f"{name}: bad dtypes, got {x} and {weight}, expected u8 or i8")
    if bias is not None and (bias.dtype is not i32 or bias.rank != 1):
        raise ShapeError(f"{name}: bad bias, got {bias}, expected i32[{columns}]")
    for zero, of, shapes in ((x_zero, x, ((), (1,))), (weight_zero, weight, ((), (1,), (columns,)))):
        if zero is not None and (zero.dtype is not of.dtype or zero.shape not in shapes):
            raise ShapeError(f"{name}: zero point does not fit, got {zero} for {of}")
    if bias is not None:
        unify(f"{name}: bias", bias.shape[0], columns)


def _infer_matmul(x, weight, bias=None, x_zero=None, weight_zero=None, *, transpose_b):
    if x.rank < 2 or weight.rank < 2:
        raise ShapeError(f"matmul_integer: bad operands, got {x} and {weight}, expected rank 2 or more")
    k, n = weight.shape[-2:][::-1] if transpose_b else weight.shape[-2:]
    _expect_integers("matmul_integer", x, weight, bias, x_zero, weight_zero, n)
    unify("matmul_integer of {} and {}", x.shape[-1], k, x, weight)
    batch = broadcast_shapes("matmul_integer", x.shape[:-2], weight.shape[:-2])
    return TensorType(i32, (*batch, x.shape[-2], n))


def _centred_in(g, x, zero, behind=0):
    """Subtract the zero point from an operand, in plain ops. behind: the number of axes after the axis of several zero
    points.
    """
    x = g.cast(x, dtype=i32)
    if zero is None:
        return x
    wide = g.cast(zero, dtype=i32)
    if g.type(wide).shape == (1,):
        wide = g.reshape(wide, shape=())
    elif behind and g.type(wide).rank:
        wide = g.reshape(wide, shape=(*g.type(wide).shape, *[1] * behind))
    return g.sub(x, wide)


def _expand_matmul(g, x, weight, bias=None, x_zero=None, weight_zero=None, *, transpose_b):
    factors = _centred_in(g, x, x_zero), _centred_in(g, weight, weight_zero, int(transpose_b))
    sums = g.matmul(*factors, transpose_b=transpose_b)
    return sums if bias is None else g.add(sums, bias)


def _centred(x, zero, shape=()):
    wide = x.astype(np.float64)
    return wide if zero is None else wide - zero.astype(np.float64).reshape(() if zero.size == 1 else shape)


def _wrapped(sums):
    """Convert floats that are exact integers to i32, which wraps."""
    return sums.astype(np.int64).astype(np.int32)


@op(
    computes=False,
    infer=_infer_matmul,
    addresses={"bias": "numbers"},
    expand=_expand_matmul,
    samples=[
        sample("x:u8<255[5,7] w:i8>-127<127[7,3]"),
        sample("x:u8<255[5,300] w:i8>-127<127[33,300] b:i32[33] z:u8<200[]", transpose_b=True),
        sample("x:i8>-127<127[2,3,9] w:i8>-127<127[9,40] b:i32[40] z:i8[1]"),
        sample("x:u8<255[13,36] w:u8<255[36,70] none z:u8<200[] y:u8<200[70]"),
        sample("x:i8>-127<127[13,36] w:u8<255[70,36] none z:i8[] y:u8<200[]", transpose_b=True),
        sample("x:u8<255[2,3,5,8] w:u8<255[2,3,8,7] none z:u8<200[] y:u8<200[]"),
        sample("x:i8>-127<127[2,3,5,6] w:i8>-127<127[2,1,7,6] none none y:i8[]", transpose_b=True),
        sample("x:u8<255[3,0] w:i8[0,4]"),
        sample("x:u8<255[0,3] w:i8>-127<127[3,4]"),
    ],
)
def matmul_integer(x, weight, bias=None, x_zero=None, weight_zero=None, *, transpose_b: bool = False):
    """(x - x_zero) @ (weight - weight_zero) + bias[n] as i32, which wraps.

    x_zero: one for all. weight_zero: one for all, or one for each of n columns.
    """
    weight = _centred(weight, weight_zero, (-1, 1) if transpose_b else (-1,))
    weight = np.swapaxes(weight, -1, -2) if transpose_b else weight
    sums = _wrapped(np.matmul(_centred(x, x_zero), weight))
    return sums if bias is None else sums + bias


def _infer_conv(x, weight, bias=None, x_zero=None, weight_zero=None, *, strides, pads, dilations, groups):
    if weight.rank != x.rank or not all(isinstance(dim, int) for dim in weight.shape):
        raise ShapeError(f"conv_integer: bad filter, got {weight}, expected rank {x.rank} and known dims")
    _expect_integers("conv_integer", x, weight, bias, x_zero, weight_zero, weight.shape[0])
    spatial = spatial_dims("conv_integer", x, weight.shape[2:], strides, pads, dilations)
    if groups < 1 or weight.shape[0] % groups:
        raise ShapeError(f"conv_integer: bad groups, got {groups}, expected a divisor of {weight.shape[0]}")
    where = "conv_integer: channels of x {} and filter {} in {} groups"
    unify(where, x.shape[1], weight.shape[1] * groups, x, weight, groups)
    return TensorType(i32, (x.shape[0], weight.shape[0], *spatial))


def _expand_conv(g, x, weight, bias=None, x_zero=None, weight_zero=None, **attributes):
    filters = _centred_in(g, weight, weight_zero, g.type(weight).rank - 1)
    return g.conv(_centred_in(g, x, x_zero), filters, bias, **attributes)


def _plain(rank, **attributes):
    return {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank} | attributes


@op(
    computes=False,
    infer=_infer_conv,
    addresses={"bias": "numbers"},
    expand=_expand_conv,
    samples=[
        sample("x:u8<255[2,3,7,8] w:i8>-127<127[4,3,3,3] b:i32[4] z:u8<200[]", **_plain(2, groups=1, pads=(1,) * 4)),
        sample("x:i8>-127<127[1,8,9,7] w:i8>-127<127[34,8,1,1] none z:i8[]", **_plain(2, groups=1)),
        sample("x:u8<255[1,8,9,7] w:i8>-127<127[34,8,1,1] none z:u8<200[]", **_plain(2, groups=1, strides=(2, 2))),
        sample("x:u8<255[1,4,9,7] w:u8<255[6,2,3,2] none z:u8<200[] y:u8<200[6]",
               **_plain(2, groups=2, strides=(2, 3), pads=(1, 0, 2, 1))),
        sample("x:u8<255[2,19,9,9] w:i8>-127<127[19,1,3,3] b:i32[19] z:u8<200[]",
               **_plain(2, groups=19, pads=(1, 1, 1, 1), strides=(2, 2))),
        sample("x:i8>-127<127[1,33,9,9] w:u8<255[33,1,5,5] none z:i8[] y:u8<200[33]",
               **_plain(2, groups=33, pads=(2, 2, 2, 2))),
        sample("x:u8<255[1,3,9,9] w:i8>-127<127[3,1,3,3] none z:u8<200[]",
               **_plain(2, groups=3, pads=(2, 2, 2, 2), dilations=(2, 2))),
        sample("x:i8>-127<127[2,4,11] w:i8>-127<127[5,4,4]", **_plain(1, groups=1, strides=(2,), pads=(1, 2))),
        sample("x:u8<255[1,2,4,3,5] w:i8>-127<127[3,2,2,2,2]", **_plain(3, groups=1)),
        sample("x:u8<255[0,3,5,5] w:i8>-127<127[2,3,3,3]", **_plain(2, groups=1)),
    ],
)  # fmt: skip
def conv_integer(
    x, weight, bias=None, x_zero=None, weight_zero=None, *, strides: Ints, pads: Ints, dilations: Ints, groups: int
):
    """`conv` of x - x_zero, padded with 0, and weight - weight_zero, plus bias[O], as i32, which wraps.

    x_zero: one for all. weight_zero: one for all, or one for each of O filters.
    """
    filters = _centred(weight, weight_zero, (-1, *[1] * (weight.ndim - 1)))
    attributes = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    sums = _wrapped(conv(_centred(x, x_zero), filters, **attributes))
    return sums if bias is None else sums + bias.reshape(-1, *[1] * (x.ndim - 2))


def _infer_dynamic_quantize(x):
    if x.dtype not in (f32, f64):
        raise ShapeError(f"dynamic_quantize: bad dtype, got {x}, expected f32")
    return TensorType(u8, x.shape), TensorType(x.dtype, ()), TensorType(u8, ())


@op(
    computes=False,
    outputs=3,
    infer=_infer_dynamic_quantize,
    domain=(-3.0, 2.0),
    samples=[
        sample("x[3,37]"),
        sample("x>1<3[2,5]"),
        sample("x>-9<-2[70]"),
        sample("x[0,3]"),
        sample("x[]"),
        sample("x:f64[2,9]"),
    ],
)
def dynamic_quantize(x):
    """x quantized to u8, and its scale and zero point: the smallest of x and 0 becomes 0, the largest 255.

    Computed in f32. NaN is ignored, and becomes the zero point; the scale is 1 if all elements are 0.
    """
    f, given = np.float32, x.dtype
    x = x.astype(f)
    least, most = np.fmin.reduce(x, axis=None, initial=f(0)), np.fmax.reduce(x, axis=None, initial=f(0))
    raw_scale = f(most - least) / f(255)
    scale = f(1) if raw_scale == 0 else raw_scale
    start = np.rint(f(-least) / scale)
    zero = np.clip(f(0) if np.isnan(start) else start, f(0), f(255))
    rounded = np.rint(x / scale)
    quantized = np.clip(np.where(np.isnan(rounded), f(0), rounded) + zero, f(0), f(255))
    return quantized.astype(np.uint8), np.asarray(scale, given), np.asarray(zero.astype(np.uint8))

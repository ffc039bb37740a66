"""Ops of layers: products, convolutions, pooling, norms, attention, quantized numbers, images."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.emit.onnx.builder import NUMBERS, Pen
from ingot.emit.onnx.registry import rule
from ingot.ir.dim import Dim
from ingot.ir.dtype import DTYPES, DType, f32, f64, i32, i64, u8, u64
from ingot.ir.graph import Node, TensorType
from ingot.ops.define import product


@rule("matmul")
def matmul(pen: Pen, node: Node, a: str, b: str) -> str:
    """Of two matrices a Gemm says all of it; ONNX Runtime has none over nothing."""
    types = pen.type(node, 0), pen.type(node, 1)
    plain = not node.transpose_a and not node.transpose_b and node.scale == 1.0
    if not plain and all(t.rank == 2 and 0 not in t.shape for t in types):
        return pen.Gemm(a, b, transA=node.transpose_a, transB=node.transpose_b, alpha=float(node.scale))
    a = _transposed(pen, a, types[0].rank) if node.transpose_a else a
    b = _transposed(pen, b, types[1].rank) if node.transpose_b else b
    made = pen.MatMul(a, b)
    return made if node.scale == 1.0 else pen.Mul(made, pen.number(node.scale, types[0].dtype))


def _transposed(pen: Pen, x: str, rank: int) -> str:
    return pen.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


@rule("expert_matmul")
def expert_matmul(pen: Pen, node: Node, x: str, chosen: str, experts: str) -> str:
    last = np.array([-1], np.int64)
    return pen.Squeeze(pen.MatMul(pen.Gather(experts, chosen, axis=0), pen.Unsqueeze(x, last)), last)


@rule("det")
def det(pen: Pen, node: Node, x: str) -> str:
    return pen.Det(x)


def _window(node: Node) -> dict[str, Any]:
    return {name: getattr(node, name) for name in ("strides", "pads", "dilations")}


@rule("conv")
def conv(pen: Pen, node: Node, *operands: str | None) -> str:
    """ONNX has it of floats alone; those of 64 bits hold sums of products of small integers exactly."""
    dtype = pen.type(node, 0).dtype
    if dtype.kind != "f":
        operands = tuple(each and pen.Cast(each, to=NUMBERS[f64]) for each in operands)
    made = pen.Conv(*operands, **_window(node), group=node.groups, kernel_shape=pen.type(node, 1).shape[2:])
    return made if dtype.kind == "f" else pen.Cast(made, to=NUMBERS[dtype])


@rule("matmul_integer")
def matmul_integer(
    pen: Pen, node: Node, x: str, weight: str, bias: str | None = None, x_zero: str | None = None,
    weight_zero: str | None = None,
) -> str:  # fmt: skip
    rank, zeros = pen.type(node, 1).rank, (_plain(pen, node, 3, x_zero), weight_zero)
    made = pen.MatMulInteger(x, _transposed(pen, weight, rank) if node.transpose_b else weight, *zeros)
    return pen.Add(made, bias) if bias else made


@rule("conv_integer")
def conv_integer(
    pen: Pen, node: Node, x: str, weight: str, bias: str | None = None, x_zero: str | None = None,
    weight_zero: str | None = None,
) -> str:  # fmt: skip
    """ONNX Runtime's takes images of u8 alone, and one zero point of the filter; floats of 64 bits say the rest."""
    kernel = pen.type(node, 1).shape[2:]
    if pen.type(node, 0).dtype is u8 and (not weight_zero or pen.type(node, 4).size == 1):
        zeros = _plain(pen, node, 3, x_zero), _plain(pen, node, 4, weight_zero)
        made = pen.ConvInteger(x, weight, *zeros, **_window(node), group=node.groups, kernel_shape=kernel)
        return pen.Add(made, pen.Reshape(bias, np.array([-1] + [1] * len(kernel), np.int64))) if bias else made
    wide = [_centred(pen, node, 0, x, 3, x_zero, 0, f64)]
    wide.append(_centred(pen, node, 1, weight, 4, weight_zero, pen.type(node, 1).rank - 1, f64))
    added = pen.Cast(bias, to=NUMBERS[f64]) if bias else None
    made = pen.Conv(*wide, added, **_window(node), group=node.groups, kernel_shape=kernel)
    return pen.Cast(made, to=NUMBERS[i32])


def _centred(
    pen: Pen, node: Node, index: int, x: str, zero_index: int, zero: str | None, behind: int, dtype: DType
) -> str:
    """An operand less its zero point. behind: the axes behind that of several zero points."""
    wide = pen.Cast(x, to=NUMBERS[dtype])
    if not zero:
        return wide
    point = pen.Cast(zero, to=NUMBERS[dtype])
    if pen.type(node, zero_index).size != 1 and behind:
        point = pen.Reshape(point, np.array([-1] + [1] * behind, np.int64))
    elif pen.type(node, zero_index).rank and pen.type(node, zero_index).size == 1:
        point = pen.Reshape(point, np.array([], np.int64))
    return pen.Sub(wide, point)


@rule("dynamic_quantize")
def dynamic_quantize(pen: Pen, node: Node, x: str) -> tuple[str, ...]:
    """Doubles are rounded in f32, as the op is defined."""
    if pen.type(node, 0).dtype is f32:
        return pen.add_all("DynamicQuantizeLinear", 3, x)
    codes, scale, zero = pen.add_all("DynamicQuantizeLinear", 3, pen.Cast(x, to=NUMBERS[f32]))
    return codes, pen.Cast(scale, to=NUMBERS[f64]), zero


@rule("conv_transpose")
def conv_transpose(pen: Pen, node: Node, x: str, w: str, b: str | None = None) -> str | tuple[str, ...]:
    """ONNX adds fewer places than a stride has."""
    kernel = pen.type(node, 1).shape[2:]
    if any(added >= stride for added, stride in zip(node.output_padding, node.strides, strict=True)):
        return pen.call(node)
    output_padding = node.output_padding if any(node.output_padding) else None
    return pen.ConvTranspose(
        x, w, b, **_window(node), group=node.groups, kernel_shape=kernel, output_padding=output_padding
    )


@rule("deform_conv")
def deform_conv(
    pen: Pen, node: Node, x: str, w: str, offset: str, b: str | None = None, mask: str | None = None
) -> str:
    kernel = pen.type(node, 1).shape[2:]
    return pen.DeformConv(
        x, w, offset, b, mask, **_window(node), group=node.groups, offset_group=node.offset_groups, kernel_shape=kernel
    )


@rule("max_pool")
def max_pool(pen: Pen, node: Node, x: str) -> str:
    return pen.MaxPool(x, **_window(node), kernel_shape=node.kernel)


@rule("max_pool_indices")
def max_pool_indices(pen: Pen, node: Node, x: str) -> str:
    """ONNX counts through all images and channels."""
    _, places = pen.add_all("MaxPool", 2, x, **_window(node), kernel_shape=node.kernel)
    return pen.Mod(places, pen.sizes([product(pen.type(node, 0).shape[2:])]))


@rule("avg_pool")
def avg_pool(pen: Pen, node: Node, x: str) -> str:
    return pen.AveragePool(x, **_window(node), kernel_shape=node.kernel, count_include_pad=node.count_include_pad)


# -- norms and attention ------------------------------------------------------------------------------------------


def _filled(pen: Pen, dim: Dim, value: float, dtype: DType) -> str:
    """A vector of one number."""
    if isinstance(dim, int):
        return pen.constant(np.full(dim, value, dtype.numpy))
    return pen.Expand(pen.number(value, dtype), pen.size(dim))


@rule("layer_norm")
def layer_norm(pen: Pen, node: Node, x: str, weight: str | None = None, bias: str | None = None) -> str:
    type = pen.type(node, 0)
    weight = weight or _filled(pen, type.shape[-1], 1, type.dtype)
    return pen.LayerNormalization(x, weight, bias, epsilon=float(node.eps), axis=-1)


@rule("rms_norm")
def rms_norm(pen: Pen, node: Node, x: str, weight: str | None = None) -> str:
    type = pen.type(node, 0)
    weight = weight or _filled(pen, type.shape[-1], 1, type.dtype)
    return pen.RMSNormalization(x, weight, epsilon=float(node.eps), axis=-1)


@rule("batch_norm")
def batch_norm(pen: Pen, node: Node, *operands: str) -> str:
    return pen.BatchNormalization(*operands, epsilon=float(node.eps))


@rule("group_norm")
def group_norm(
    pen: Pen, node: Node, x: str, weight: str | None = None, bias: str | None = None
) -> str | tuple[str, ...]:
    """ONNX's body of it reshapes nothing to an unknown size."""
    type = pen.type(node, 0)
    if 0 in type.shape:
        return pen.call(node)
    weight = weight or _filled(pen, type.shape[1], 1, type.dtype)
    bias = bias or _filled(pen, type.shape[1], 0, type.dtype)
    return pen.GroupNormalization(x, weight, bias, num_groups=node.groups, epsilon=float(node.eps))


@rule("softmax", "log_softmax")
def softmax(pen: Pen, node: Node, x: str) -> str:
    return (pen.Softmax if node.op.name == "softmax" else pen.LogSoftmax)(x, axis=node.axis)


@rule("attention")
def attention(pen: Pen, node: Node, q: str, k: str, v: str, mask: str | None = None) -> str | tuple[str, ...]:
    """ONNX's own begins causal rows at the first column, and gives zeros in a row that sees nothing."""
    types = [pen.type(node, i) for i in range(3)]
    is_blind = mask is not None and not node.safe  # some row may be
    shifted = node.causal and node.causal_offset != 0
    if is_blind or node.zero_nan or shifted or any(0 in type.shape for type in types):
        return pen.call(node)
    if mask is not None:
        mask = _over_scores(pen, mask, pen.type(node, 3), (types[0].shape[2], types[1].shape[2]))
    return pen.Attention(q, k, v, mask, scale=float(node.scale), is_causal=node.causal)


def _over_scores(pen: Pen, mask: str, type: TensorType, scores: tuple[Dim, Dim]) -> str:
    """A mask with all rows and columns, which ONNX Runtime repeats over heads and batches alone."""
    shape = (*(1,) * (2 - type.rank), *type.shape)
    wanted = [1 if own == dim else dim for own, dim in zip(shape[-2:], scores, strict=True)]
    if type.rank >= 2 and wanted == [1, 1]:
        return mask
    return pen.Expand(mask, pen.sizes([*[1] * (len(shape) - 2), *wanted]))


@rule("rotary")
def rotary(pen: Pen, node: Node, *operands: str | None) -> tuple[str, ...]:
    """ONNX's own has one angle for both halves."""
    return pen.call(node)


# -- numbers of few bits ------------------------------------------------------------------------------------------


def _plain(pen: Pen, node: Node, operand: int, x: str | None) -> str | None:
    """A scale or zero point of one element as a scalar."""
    if x is None or pen.type(node, operand).shape != (1,):
        return x
    return pen.Reshape(x, np.array([], np.int64))


@rule("quantize")
def quantize(pen: Pen, node: Node, x: str, scale: str, zero_point: str | None = None) -> str:
    return pen.QuantizeLinear(
        x,
        _plain(pen, node, 1, scale),
        _plain(pen, node, 2, zero_point) if zero_point else None,
        axis=node.axis,
        block_size=node.block or None,
        output_dtype=NUMBERS[node.dtype],
        precision=None if node.precision is pen.type(node, 1).dtype else NUMBERS[node.precision],
        saturate=None if node.saturate else 0,
    )


@rule("dequantize")
def dequantize(pen: Pen, node: Node, x: str, scale: str, zero_point: str | None = None) -> str:
    point = _plain(pen, node, 2, zero_point) if zero_point else None
    return pen.DequantizeLinear(
        x,
        _plain(pen, node, 1, scale),
        point,
        axis=node.axis,
        block_size=node.block or None,
        output_dtype=None if node.dtype is pen.type(node, 1).dtype else NUMBERS[node.dtype],
    )


@rule("unpack")
def unpack(pen: Pen, node: Node, x: str) -> str:
    """ONNX shifts unsigned numbers, and gives an integer too large for a narrow dtype no meaning there."""
    type, dtype = pen.type(node, 0), node.dtype
    unsigned = DTYPES[f"u{type.dtype.bits}"]
    wide = pen.Cast(pen.BitCast(x, to=NUMBERS[unsigned]) if type.dtype.kind == "i" else x, to=NUMBERS[u64])
    mask = pen.number(2**dtype.bits - 1, u64)
    fields = []
    for place in range(type.dtype.bits // dtype.bits):
        shifted = pen.BitShift(wide, pen.number(place * dtype.bits, u64), direction="RIGHT")
        fields.append(pen.Unsqueeze(pen.BitwiseAnd(shifted, mask), np.array([node.axis + 1], np.int64)))
    numbers = pen.Cast(pen.Concat(*fields, axis=node.axis + 1), to=NUMBERS[i64])
    low, high = dtype.limits
    if low:
        numbers = pen.Where(
            pen.Greater(numbers, pen.number(high, i64)), pen.Sub(numbers, pen.number(2**dtype.bits, i64)), numbers
        )
    return pen.Cast(pen.Reshape(numbers, pen.sizes(pen.graph.type(node.output).shape)), to=NUMBERS[dtype])


# -- images -------------------------------------------------------------------------------------------------------


@rule("resample")
def resample(pen: Pen, node: Node, x: str, indices: str, weights: str) -> str:
    behind = pen.type(node, 0).rank - node.axis - 1
    if behind:
        weights = pen.Unsqueeze(weights, np.arange(2, 2 + behind))
    terms = pen.Mul(pen.Gather(x, indices, axis=node.axis), weights)
    return pen.ReduceSum(terms, np.array([node.axis + 1], np.int64), keepdims=0)


@rule("grid_sample")
def grid_sample(pen: Pen, node: Node, x: str, grid: str) -> str:
    return pen.GridSample(x, grid, mode=node.mode, padding_mode=node.padding, align_corners=node.align_corners)


@rule("roi_align")
def roi_align(pen: Pen, node: Node, x: str, rois: str, batch: str) -> str:
    return pen.RoiAlign(
        x,
        rois,
        batch,
        output_height=node.height,
        output_width=node.width,
        sampling_ratio=node.ratio,
        spatial_scale=float(node.scale),
        mode=node.mode,
        coordinate_transformation_mode="half_pixel" if node.half_pixel else "output_half_pixel",
    )


@rule("decode_image")
def decode_image(pen: Pen, node: Node, x: str) -> str:
    return pen.ImageDecoder(x, pixel_format={"rgb": "RGB", "bgr": "BGR", "gray": "Grayscale"}[node.pixels])

"""ONNX rules of layers: products, convolutions, pooling, norms, attention, quantized tensors, images."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.emit.onnx.builder import NUMBERS, Builder
from ingot.emit.onnx.registry import rule
from ingot.ir.dim import Dim
from ingot.ir.dtype import DTYPES, DType, f32, f64, i32, i64, u8, u64
from ingot.ir.graph import Node, TensorType
from ingot.ops.define import product


@rule("matmul")
def matmul(builder: Builder, node: Node, a: str, b: str) -> str:
    """A product of two matrices is a Gemm, unless k is 0, which ONNX Runtime does not support."""
    types = builder.type(node, 0), builder.type(node, 1)
    plain = not node.transpose_a and not node.transpose_b and node.scale == 1.0
    if not plain and all(t.rank == 2 and 0 not in t.shape for t in types):
        return builder.Gemm(a, b, transA=node.transpose_a, transB=node.transpose_b, alpha=float(node.scale))
    a = _transposed(builder, a, types[0].rank) if node.transpose_a else a
    b = _transposed(builder, b, types[1].rank) if node.transpose_b else b
    result = builder.MatMul(a, b)
    return result if node.scale == 1.0 else builder.Mul(result, builder.number(node.scale, types[0].dtype))


def _transposed(builder: Builder, x: str, rank: int) -> str:
    return builder.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


@rule("expert_matmul")
def expert_matmul(builder: Builder, node: Node, x: str, chosen: str, experts: str) -> str:
    last = np.array([-1], np.int64)
    return builder.Squeeze(builder.MatMul(builder.Gather(experts, chosen, axis=0), builder.Unsqueeze(x, last)), last)


@rule("det")
def det(builder: Builder, node: Node, x: str) -> str:
    return builder.Det(x)


def _window(node: Node) -> dict[str, Any]:
    return {name: getattr(node, name) for name in ("strides", "pads", "dilations")}


@rule("conv")
def conv(builder: Builder, node: Node, *operands: str | None) -> str:
    """ONNX has it for floats only; float64 represents sums of products of small integers exactly."""
    dtype = builder.type(node, 0).dtype
    if dtype.kind != "f":
        operands = tuple(each and builder.Cast(each, to=NUMBERS[f64]) for each in operands)
    result = builder.Conv(*operands, **_window(node), group=node.groups, kernel_shape=builder.type(node, 1).shape[2:])
    return result if dtype.kind == "f" else builder.Cast(result, to=NUMBERS[dtype])


@rule("matmul_integer")
def matmul_integer(
    builder: Builder, node: Node, x: str, weight: str, bias: str | None = None, x_zero: str | None = None,
    weight_zero: str | None = None,
) -> str:  # fmt: skip
    rank, zeros = builder.type(node, 1).rank, (_plain(builder, node, 3, x_zero), weight_zero)
    result = builder.MatMulInteger(x, _transposed(builder, weight, rank) if node.transpose_b else weight, *zeros)
    return builder.Add(result, bias) if bias else result


@rule("conv_integer")
def conv_integer(
    builder: Builder, node: Node, x: str, weight: str, bias: str | None = None, x_zero: str | None = None,
    weight_zero: str | None = None,
) -> str:  # fmt: skip
    """ONNX Runtime's op supports only u8 images and one zero point of the filter; other cases use float64."""
    kernel = builder.type(node, 1).shape[2:]
    if builder.type(node, 0).dtype is u8 and (not weight_zero or builder.type(node, 4).size == 1):
        zeros = _plain(builder, node, 3, x_zero), _plain(builder, node, 4, weight_zero)
        result = builder.ConvInteger(x, weight, *zeros, **_window(node), group=node.groups, kernel_shape=kernel)
        return (
            builder.Add(result, builder.Reshape(bias, np.array([-1] + [1] * len(kernel), np.int64))) if bias else result
        )
    wide = [_centred(builder, node, 0, x, 3, x_zero, 0, f64)]
    wide.append(_centred(builder, node, 1, weight, 4, weight_zero, builder.type(node, 1).rank - 1, f64))
    added = builder.Cast(bias, to=NUMBERS[f64]) if bias else None
    result = builder.Conv(*wide, added, **_window(node), group=node.groups, kernel_shape=kernel)
    return builder.Cast(result, to=NUMBERS[i32])


def _centred(
    builder: Builder, node: Node, index: int, x: str, zero_index: int, zero: str | None, behind: int, dtype: DType
) -> str:
    """Return an operand minus its zero point. behind: the number of axes after the zero points' axis."""
    wide = builder.Cast(x, to=NUMBERS[dtype])
    if not zero:
        return wide
    point = builder.Cast(zero, to=NUMBERS[dtype])
    if builder.type(node, zero_index).size != 1 and behind:
        point = builder.Reshape(point, np.array([-1] + [1] * behind, np.int64))
    elif builder.type(node, zero_index).rank and builder.type(node, zero_index).size == 1:
        point = builder.Reshape(point, np.array([], np.int64))
    return builder.Sub(wide, point)


@rule("dynamic_quantize")
def dynamic_quantize(builder: Builder, node: Node, x: str) -> tuple[str, ...]:
    """float64 is rounded in f32, as the op is defined."""
    if builder.type(node, 0).dtype is f32:
        return builder.add_all("DynamicQuantizeLinear", 3, x)
    quantized, scale, zero = builder.add_all("DynamicQuantizeLinear", 3, builder.Cast(x, to=NUMBERS[f32]))
    return quantized, builder.Cast(scale, to=NUMBERS[f64]), zero


@rule("conv_transpose")
def conv_transpose(builder: Builder, node: Node, x: str, w: str, b: str | None = None) -> str | tuple[str, ...]:
    """ONNX limits output padding to less than the stride."""
    kernel = builder.type(node, 1).shape[2:]
    if any(added >= stride for added, stride in zip(node.output_padding, node.strides, strict=True)):
        return builder.call(node)
    output_padding = node.output_padding if any(node.output_padding) else None
    return builder.ConvTranspose(
        x, w, b, **_window(node), group=node.groups, kernel_shape=kernel, output_padding=output_padding
    )


@rule("deform_conv")
def deform_conv(
    builder: Builder, node: Node, x: str, w: str, offset: str, b: str | None = None, mask: str | None = None
) -> str:
    kernel = builder.type(node, 1).shape[2:]
    return builder.DeformConv(
        x, w, offset, b, mask, **_window(node), group=node.groups, offset_group=node.offset_groups, kernel_shape=kernel
    )


@rule("max_pool")
def max_pool(builder: Builder, node: Node, x: str) -> str:
    return builder.MaxPool(x, **_window(node), kernel_shape=node.kernel)


@rule("max_pool_indices")
def max_pool_indices(builder: Builder, node: Node, x: str) -> str:
    """ONNX numbers positions over all images and channels."""
    _, indices = builder.add_all("MaxPool", 2, x, **_window(node), kernel_shape=node.kernel)
    return builder.Mod(indices, builder.sizes([product(builder.type(node, 0).shape[2:])]))


@rule("avg_pool")
def avg_pool(builder: Builder, node: Node, x: str) -> str:
    return builder.AveragePool(x, **_window(node), kernel_shape=node.kernel, count_include_pad=node.count_include_pad)


# -- norms and attention ------------------------------------------------------------------------------------------


def _filled(builder: Builder, dim: Dim, value: float, dtype: DType) -> str:
    """Return a vector of one number."""
    if isinstance(dim, int):
        return builder.constant(np.full(dim, value, dtype.numpy))
    return builder.Expand(builder.number(value, dtype), builder.size(dim))


@rule("layer_norm")
def layer_norm(builder: Builder, node: Node, x: str, weight: str | None = None, bias: str | None = None) -> str:
    type = builder.type(node, 0)
    weight = weight or _filled(builder, type.shape[-1], 1, type.dtype)
    return builder.LayerNormalization(x, weight, bias, epsilon=float(node.eps), axis=-1)


@rule("rms_norm")
def rms_norm(builder: Builder, node: Node, x: str, weight: str | None = None) -> str:
    type = builder.type(node, 0)
    weight = weight or _filled(builder, type.shape[-1], 1, type.dtype)
    return builder.RMSNormalization(x, weight, epsilon=float(node.eps), axis=-1)


@rule("batch_norm")
def batch_norm(builder: Builder, node: Node, *operands: str) -> str:
    return builder.BatchNormalization(*operands, epsilon=float(node.eps))


@rule("group_norm")
def group_norm(
    builder: Builder, node: Node, x: str, weight: str | None = None, bias: str | None = None
) -> str | tuple[str, ...]:
    """ONNX's function body reshapes an empty tensor to an unknown size."""
    type = builder.type(node, 0)
    if 0 in type.shape:
        return builder.call(node)
    weight = weight or _filled(builder, type.shape[1], 1, type.dtype)
    bias = bias or _filled(builder, type.shape[1], 0, type.dtype)
    return builder.GroupNormalization(x, weight, bias, num_groups=node.groups, epsilon=float(node.eps))


@rule("softmax", "log_softmax")
def softmax(builder: Builder, node: Node, x: str) -> str:
    return (builder.Softmax if node.op.name == "softmax" else builder.LogSoftmax)(x, axis=node.axis)


@rule("attention")
def attention(builder: Builder, node: Node, q: str, k: str, v: str, mask: str | None = None) -> str | tuple[str, ...]:
    """ONNX's op aligns causal rows at the first column, and gives zeros in a row without visible columns."""
    types = [builder.type(node, i) for i in range(3)]
    is_blind = mask is not None and not node.safe  # some row may be
    shifted = node.causal and node.causal_offset != 0
    if is_blind or node.zero_nan or shifted or any(0 in type.shape for type in types):
        return builder.call(node)
    if mask is not None:
        mask = _over_scores(builder, mask, builder.type(node, 3), (types[0].shape[2], types[1].shape[2]))
    return builder.Attention(q, k, v, mask, scale=float(node.scale), is_causal=node.causal)


def _over_scores(builder: Builder, mask: str, type: TensorType, scores: tuple[Dim, Dim]) -> str:
    """Return a mask with all rows and columns, because ONNX Runtime broadcasts only over heads and batches."""
    shape = (*(1,) * (2 - type.rank), *type.shape)
    wanted = [1 if own == dim else dim for own, dim in zip(shape[-2:], scores, strict=True)]
    if type.rank >= 2 and wanted == [1, 1]:
        return mask
    return builder.Expand(mask, builder.sizes([*[1] * (len(shape) - 2), *wanted]))


@rule("rotary")
def rotary(builder: Builder, node: Node, *operands: str | None) -> tuple[str, ...]:
    """ONNX's op has one angle for both halves."""
    return builder.call(node)


# -- numbers of few bits ------------------------------------------------------------------------------------------


def _plain(builder: Builder, node: Node, operand: int, x: str | None) -> str | None:
    """Return a scale or zero point of one element as a scalar."""
    if x is None or builder.type(node, operand).shape != (1,):
        return x
    return builder.Reshape(x, np.array([], np.int64))


@rule("quantize")
def quantize(builder: Builder, node: Node, x: str, scale: str, zero_point: str | None = None) -> str:
    return builder.QuantizeLinear(
        x,
        _plain(builder, node, 1, scale),
        _plain(builder, node, 2, zero_point) if zero_point else None,
        axis=node.axis,
        block_size=node.block or None,
        output_dtype=NUMBERS[node.dtype],
        precision=None if node.precision is builder.type(node, 1).dtype else NUMBERS[node.precision],
        saturate=None if node.saturate else 0,
    )


@rule("dequantize")
def dequantize(builder: Builder, node: Node, x: str, scale: str, zero_point: str | None = None) -> str:
    point = _plain(builder, node, 2, zero_point) if zero_point else None
    return builder.DequantizeLinear(
        x,
        _plain(builder, node, 1, scale),
        point,
        axis=node.axis,
        block_size=node.block or None,
        output_dtype=None if node.dtype is builder.type(node, 1).dtype else NUMBERS[node.dtype],
    )


@rule("unpack")
def unpack(builder: Builder, node: Node, x: str) -> str:
    """ONNX shifts unsigned integers only, and leaves overflow of a low-precision dtype undefined."""
    type, dtype = builder.type(node, 0), node.dtype
    unsigned = DTYPES[f"u{type.dtype.bits}"]
    wide = builder.Cast(builder.BitCast(x, to=NUMBERS[unsigned]) if type.dtype.kind == "i" else x, to=NUMBERS[u64])
    mask = builder.number(2**dtype.bits - 1, u64)
    fields = []
    for digit in range(type.dtype.bits // dtype.bits):
        shifted = builder.BitShift(wide, builder.number(digit * dtype.bits, u64), direction="RIGHT")
        fields.append(builder.Unsqueeze(builder.BitwiseAnd(shifted, mask), np.array([node.axis + 1], np.int64)))
    numbers = builder.Cast(builder.Concat(*fields, axis=node.axis + 1), to=NUMBERS[i64])
    low, high = dtype.limits
    if low:
        numbers = builder.Where(
            builder.Greater(numbers, builder.number(high, i64)),
            builder.Sub(numbers, builder.number(2**dtype.bits, i64)),
            numbers,
        )
    return builder.Cast(
        builder.Reshape(numbers, builder.sizes(builder.graph.type(node.output).shape)), to=NUMBERS[dtype]
    )


# -- images -------------------------------------------------------------------------------------------------------


@rule("resample")
def resample(builder: Builder, node: Node, x: str, indices: str, weights: str) -> str:
    behind = builder.type(node, 0).rank - node.axis - 1
    if behind:
        weights = builder.Unsqueeze(weights, np.arange(2, 2 + behind))
    terms = builder.Mul(builder.Gather(x, indices, axis=node.axis), weights)
    return builder.ReduceSum(terms, np.array([node.axis + 1], np.int64), keepdims=0)


@rule("grid_sample")
def grid_sample(builder: Builder, node: Node, x: str, grid: str) -> str:
    return builder.GridSample(x, grid, mode=node.mode, padding_mode=node.padding, align_corners=node.align_corners)


@rule("roi_align")
def roi_align(builder: Builder, node: Node, x: str, rois: str, batch: str) -> str:
    return builder.RoiAlign(
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
def decode_image(builder: Builder, node: Node, x: str) -> str:
    return builder.ImageDecoder(x, pixel_format={"rgb": "RGB", "bgr": "BGR", "gray": "Grayscale"}[node.pixels])

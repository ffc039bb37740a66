"""Rules for the ops of PT2E exports that quantize and dequantize tensors, from `quantized_decomposed`.

Numbers are multiplied by 1 / scale in f32, as in torch, instead of divided. torch decomposes ops without a rule by the
functions that define them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.ao.quantization.fx import _decomposed

from ingot.ir.dtype import DType, f32, f64, i64
from ingot.load.aten.builder import AtenBuilder, Number, Tensor, from_torch
from ingot.load.aten.registry import aten

NAMESPACE = "quantized_decomposed"
_PER_TENSOR = [f"{NAMESPACE}.{{}}quantize_per_tensor.{overload}" for overload in ("default", "tensor", "tensor2")]


def definition(target: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """Return torch's function that defines an op of this namespace; None for any other op."""
    return getattr(_decomposed, target._opname, None) if target.namespace == NAMESPACE else None


@aten(*(name.format("") for name in _PER_TENSOR))
def quantize_per_tensor(
    b: AtenBuilder, x: Tensor, scale: Number | Tensor, zero_point: Number | Tensor, quant_min: Number | Tensor,
    quant_max: Number | Tensor, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    if isinstance(scale, str):
        one = b.scalar(1, f64)
        inverse = b.cast(b.add("div", one, b.reshape(b.cast(scale, f64), ())), f32)
    else:
        inverse = b.scalar(1.0 / scale, f32)  # type: ignore[operator]  # a float of the program
    return _qweight(b, x, inverse, _single(b, zero_point), quant_min, quant_max, from_torch(dtype))


@aten(f"{NAMESPACE}.quantize_per_channel.default")
def quantize_per_channel(
    b: AtenBuilder, x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, quant_min: int, quant_max: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    inverse = b.add("reciprocal", b.cast(_along(b, x, scales, axis), f32))
    zero = b.cast(_along(b, x, zero_points, axis), f32)
    return _qweight(b, x, inverse, zero, quant_min, quant_max, from_torch(dtype))


@aten(*(name.format("de") for name in _PER_TENSOR))
def dequantize_per_tensor(
    b: AtenBuilder, x: Tensor, scale: Number | Tensor, zero_point: Number | Tensor, quant_min: Number | Tensor,
    quant_max: Number | Tensor, dtype: torch.dtype, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Dequantize by the plain op, which kernels support, if the zero point is an integer of the quantized dtype."""
    storage, computed = b.dtype(x), f32 if out_dtype is None else from_torch(out_dtype)
    if isinstance(scale, float) and isinstance(zero_point, int) and storage.holds(zero_point) and storage.bits <= 16:
        point = b.scalar(zero_point, storage)
        return b.cast(b.add("dequantize", x, b.scalar(scale, f32), point, axis=0, block=0, dtype=f32), computed)
    numbers = b.add("sub", b.cast(x, f32), _single(b, zero_point))
    return b.cast(b.add("mul", numbers, _single(b, scale)), computed)


@aten(f"{NAMESPACE}.dequantize_per_channel.default")
def dequantize_per_channel(
    b: AtenBuilder, x: Tensor, scales: Tensor, zero_points: Tensor | None, axis: int, quant_min: int, quant_max: int,
    dtype: torch.dtype, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    numbers = b.cast(x, f32)
    if zero_points is not None:
        numbers = b.add("sub", numbers, b.cast(_along(b, x, zero_points, axis), f32))
    computed = b.add("mul", numbers, b.cast(_along(b, x, scales, axis), f32))
    return b.cast(computed, f32 if out_dtype is None else from_torch(out_dtype))


@aten(f"{NAMESPACE}.choose_qparams.tensor", f"{NAMESPACE}.choose_qparams_symmetric.tensor")
def choose_parameters(
    b: AtenBuilder, x: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute one scale and one zero point for a tensor; symmetric ones map the middle of the quantized range to 0."""
    axes, zero = tuple(range(b.rank(x))), b.scalar(0, b.dtype(x))
    low = b.add("minimum", b.add("reduce_min", x, axes=axes, keepdims=False), zero)
    high = b.add("maximum", b.add("reduce_max", x, axes=axes, keepdims=False), zero)
    steps = float(quant_max - quant_min)
    if "symmetric" in b.target:
        high, low, steps = b.add("maximum", b.add("neg", low), high), zero, steps / 2
    scale = b.add("div", b.add("sub", high, low), b.scalar(steps, b.dtype(x)))
    scale = b.add("maximum", scale, b.scalar(eps, b.dtype(x)))
    if "symmetric" in b.target:
        point = b.scalar(128 if dtype is torch.uint8 else 0, i64)
    else:
        point = b.add("sub", b.scalar(quant_min, b.dtype(x)), b.add("round", b.add("div", low, scale)))
        point = b.add("minimum", b.add("maximum", point, _single(b, quant_min)), _single(b, quant_max))
    return tuple(b.reshape(b.cast(y, t.dtype), t.shape) for y, t in zip((scale, point), b.result, strict=True))  # type: ignore[return-value]


@aten(f"{NAMESPACE}.convert_element_type.no_fuse")
def convert_element_type(b: AtenBuilder, x: Tensor, dtype: torch.dtype) -> Tensor:
    return b.cast(x, from_torch(dtype))


def _qweight(
    b: AtenBuilder, x: Tensor, inverse: Tensor, zero: Tensor, low: Number | Tensor, high: Number | Tensor, dtype: DType
) -> Tensor:
    steps = b.add("add", b.add("round", b.add("mul", b.cast(x, f32), inverse)), zero)
    stored = b.add("minimum", b.add("maximum", steps, _single(b, low)), _single(b, high))
    return b.cast(b.cast(stored, i64), dtype)


def _single(b: AtenBuilder, x: Number | Tensor) -> Tensor:
    """Return a number, or the only element of a tensor, as f32."""
    return b.reshape(b.cast(x, f32), ()) if isinstance(x, str) else b.scalar(x, f32)


def _along(b: AtenBuilder, x: Tensor, values: Tensor, axis: int) -> Tensor:
    """Reshape one value per index of an axis so that it broadcasts."""
    return b.reshape(values, tuple(size if i == axis else 1 for i, size in enumerate(b.shape(x))))

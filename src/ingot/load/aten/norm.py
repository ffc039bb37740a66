"""Rules for normalization and softmax."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ingot.errors import UnsupportedError
from ingot.ir.dim import Known
from ingot.ir.dtype import DType, boolean
from ingot.load.aten.builder import AtenBuilder, Tensor, element_count, from_torch
from ingot.load.aten.reduce import var
from ingot.load.aten.registry import aten


@aten("layer_norm.default")
def layer_norm(
    b: AtenBuilder, x: Tensor, normalized_shape: Sequence[Known], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> Tensor:  # fmt: skip
    return _over_trailing_axes(b, "layer_norm", x, len(normalized_shape), (weight, bias), eps)


@aten("rms_norm.default")
def rms_norm(
    b: AtenBuilder, x: Tensor, normalized_shape: Sequence[Known], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    return _over_trailing_axes(b, "rms_norm", x, len(normalized_shape), (weight,), _epsilon(b, x, eps))


@aten("_fused_rms_norm.default")
def fused_rms_norm(
    b: AtenBuilder, x: Tensor, normalized_shape: Sequence[Known], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, None]:
    return rms_norm(b, x, normalized_shape, weight, eps), None


def _epsilon(b: AtenBuilder, x: Tensor, eps: float | None) -> float:
    return float(np.finfo(b.dtype(x).numpy).eps) if eps is None else float(eps)


def _over_trailing_axes(
    b: AtenBuilder, op: str, x: Tensor, count: int, parameters: Sequence[Tensor | None], eps: float
) -> Tensor:
    """Apply the op over the last `count` axes, merged into one if there are several."""
    shape = b.shape(x)
    if count == 1:
        return b.add(op, x, *parameters, eps=float(eps))
    size = element_count(shape[-count:])
    flat = [None if p is None else b.reshape(p, (size,)) for p in parameters]
    result = b.add(op, b.reshape(x, (*shape[:-count], size)), *flat, eps=float(eps))
    return b.reshape(result, shape)


@aten("native_layer_norm.default")
def native_layer_norm(
    b: AtenBuilder, x: Tensor, normalized_shape: Sequence[Known], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """Return the result with the mean and 1 / deviation of each row."""
    rows = tuple(range(b.rank(x) - len(normalized_shape), b.rank(x)))
    mean, scale = _statistics(b, x, rows, eps)
    return layer_norm(b, x, normalized_shape, weight, bias, eps), mean, scale


def _statistics(
    b: AtenBuilder, x: Tensor, axes: tuple[int, ...], eps: float, shape: Sequence[Known] | None = None
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return the mean and 1 / deviation over axes, each computed where it is used; shape: the result shape, by default
    with axes of 1.
    """

    def reduced(op: str, of: Tensor) -> Tensor:
        return b.add(op, of, axes=axes, keepdims=True)

    def scale() -> Tensor:
        centred = b.add("sub", x, reduced("reduce_mean", x))
        variance = reduced("reduce_mean", b.add("mul", centred, centred))
        found = b.add("rsqrt", b.add("add", variance, b.scalar(eps, b.dtype(x))))
        return found if shape is None else b.reshape(found, shape)

    def mean() -> Tensor:
        found = reduced("reduce_mean", x)
        return found if shape is None else b.reshape(found, shape)

    return mean, scale


@aten("group_norm.default")
def group_norm(
    b: AtenBuilder, x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    return b.add("group_norm", x, weight, bias, groups=num_groups, eps=float(eps))


@aten("native_group_norm.default")
def native_group_norm(
    b: AtenBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None, N: Known, C: Known, HxW: Known, group: int,
    eps: float,
) -> Any:  # fmt: skip
    """Return the result with the mean and 1 / deviation of each group."""
    groups = (N, group, element_count(b.shape(x)[1:]) // group)  # type: ignore[operator]
    mean, scale = _statistics(b, b.reshape(x, groups), (2,), eps, (N, group))
    return group_norm(b, x, group, weight, bias, eps), mean, scale


@aten("instance_norm.default")
def instance_norm(
    b: AtenBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    if not use_input_stats:
        assert running_mean is not None and running_var is not None
        return batch_norm(b, x, weight, bias, running_mean, running_var, False, momentum, eps)
    return group_norm(b, x, b.static(b.shape(x)[1], "the channel count"), weight, bias, eps)


@aten("batch_norm.default")
def batch_norm(
    b: AtenBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, variance: Tensor | None,
    training: bool, momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    if mean is None or variance is None:
        return _batch_norm_of_its_own(b, x, weight, bias, eps)
    if training:
        raise UnsupportedError(f"torch node {b.hint!r}: batch norm in training mode, expected module.eval()")
    channels = b.static(b.shape(mean)[0], "the channel count")
    scale = weight or _filled(b, channels, 1, b.dtype(mean))
    moves = {"momentum": b.moving[mean]} if mean in b.moving else {}
    bias = bias or _filled(b, channels, 0, b.dtype(mean))
    return b.add("batch_norm", x, scale, bias, mean, variance, eps=float(eps), **moves)


@aten("_native_batch_norm_legit.no_stats")
def native_batch_norm_of_its_own(
    b: AtenBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    """Return the result with the mean and 1 / deviation of each channel."""
    axes = tuple(axis for axis in range(b.rank(x)) if axis != 1)
    return (
        _batch_norm_of_its_own(b, x, weight, bias, eps), *_statistics(b, x, axes, eps, (b.shape(x)[1],))
    )  # fmt: skip


@aten("_native_batch_norm_legit_functional.default")
def native_batch_norm_and_moved(
    b: AtenBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Normalize by the batch's statistics, or by given ones; the last results are the updated running mean and
    variance.
    """
    if not training:
        y = batch_norm(b, x, weight, bias, mean, variance, False, momentum, eps)
        return y, *_no_statistics(b), mean, variance
    y, own_mean, scale = native_batch_norm_of_its_own(b, x, weight, bias, True, momentum, eps)
    axes = tuple(axis for axis in range(b.rank(x)) if axis != 1)

    def moved(running: Tensor, found: Tensor) -> Tensor:
        dtype = b.dtype(running)
        decayed = b.add("mul", running, b.scalar(1 - momentum, dtype))
        return b.add("add", decayed, b.add("mul", b.cast(found, dtype), b.scalar(momentum, dtype)))

    return (
        y, own_mean, scale, lambda: moved(mean, own_mean()), lambda: moved(variance, var(b, x, list(axes), 1))
    )  # fmt: skip


def _batch_norm_of_its_own(b: AtenBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Normalize each channel by its mean and variance in x: a layer norm over all elements of the channel."""
    batch, channels, *spatial = b.shape(x)
    order = (1, 0, *range(2, b.rank(x)))
    rows = b.reshape(b.permute(x, order), (channels, element_count([batch, *spatial])))
    y = b.reshape(b.add("layer_norm", rows, eps=float(eps)), (channels, batch, *spatial))
    y = b.permute(y, order)
    for op, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            y = b.add(op, y, b.reshape(parameter, (channels, *[1] * len(spatial))))
    return y


def _filled(b: AtenBuilder, size: int, value: int, dtype: DType) -> Tensor:
    return b.constant(np.full(size, value, dtype.numpy))


@aten("_native_batch_norm_legit_no_training.default")
def native_batch_norm(
    b: AtenBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    return batch_norm(b, x, weight, bias, mean, variance, False, momentum, eps), *_no_statistics(b)


def _no_statistics(b: AtenBuilder) -> Iterator[Callable[[], Tensor] | None]:
    """The mean and 1 / deviation that a batch norm by given ones has on the CPU: without elements."""
    for each in b.result[1:3]:
        is_empty = each is not None and each.shape == (0,)
        yield functools.partial(_filled, b, 0, 0, each.dtype) if is_empty else None


# -- softmax


@aten("softmax.int")
def softmax(b: AtenBuilder, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return _softmax(b, "softmax", x, dim, dtype)


@aten("log_softmax.int")
def log_softmax(b: AtenBuilder, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return _softmax(b, "log_softmax", x, dim, dtype)


def _softmax(b: AtenBuilder, op: str, x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    x = x if dtype is None else b.cast(x, from_torch(dtype))
    if b.rank(x) == 0:
        return b.reshape(b.add(op, b.reshape(x, (1,)), axis=0), ())
    return b.add(op, x, axis=b.axis(x, dim))


@aten("_softmax.default")
def softmax_core(b: AtenBuilder, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(b, "softmax", b.cast(x, b.result.dtype), dim, None)


@aten("_log_softmax.default")
def log_softmax_core(b: AtenBuilder, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax(b, "log_softmax", b.cast(x, b.result.dtype), dim, None)


@aten("_safe_softmax.default")
def safe_softmax(b: AtenBuilder, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Compute a softmax that is zero where a whole row is -inf."""
    x = x if dtype is None else b.cast(x, from_torch(dtype))
    peak = b.add("reduce_max", x, axes=(b.axis(x, dim),), keepdims=True)
    hidden = b.add("equal", peak, b.scalar(float("-inf"), b.dtype(x)))
    assert b.dtype(hidden) is boolean
    return b.add("where", hidden, b.scalar(0.0, b.dtype(x)), _softmax(b, "softmax", x, dim, None))

"""Rules for reductions, argmax and argmin, cumulative sums and top-k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot.ir.dtype import f64
from ingot.load.onnx import computed
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import count, normalize_axes

PLAIN = {"ReduceMax": "reduce_max", "ReduceMin": "reduce_min", "ReduceProd": "reduce_prod", "ReduceSum": "reduce_sum"}


def _reduced(call: Call, op: str, x: str, keepdims: bool | None = None) -> str:
    """Reduce x over the node's axes; without axes over all, or over none with noop_with_empty_axes."""
    rank = call.type(0).rank
    keepdims = bool(call.attr_int("keepdims", 1)) if keepdims is None else keepdims
    if "axes" not in call.attributes and call.has(1) and call.known(1) is None and call.type(1).shape != (0,):
        axes = computed.vector(call, 1)
        return call.build.reduce_over(x, axes, kind=op.removeprefix("reduce_"), keepdims=keepdims)
    return getattr(call.build, op)(x, axes=_axes(call, rank), keepdims=keepdims)


def _axes(call: Call, rank: int) -> tuple[int, ...]:
    is_empty = "axes" not in call.attributes and call.has(1) and call.type(1).shape == (0,)
    axes = None if is_empty else call.axes(1)
    if not axes:
        axes = () if call.attr_int("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(normalize_axes(axes, rank)))


@onnx(*PLAIN)
def plain(call: Call) -> str:
    return _reduced(call, PLAIN[call.op], call[0])


@onnx("ReduceMean")
def mean(call: Call) -> str:
    if call.type(0).dtype.kind == "f":
        return _reduced(call, "reduce_mean", call[0])
    shape = call.shape(0)
    elements = count([shape[axis] for axis in _axes(call, len(shape))])
    if elements == 0:
        raise call.unsupported(f"an integer mean over {call.type(0)}")
    return call.build.div(_reduced(call, "reduce_sum", call[0]), elements)


@onnx("ReduceL1")
def l1(call: Call) -> str:
    return _reduced(call, "reduce_sum", call.build.abs(call[0]))


@onnx("ReduceSumSquare")
def sum_square(call: Call) -> str:
    return _reduced(call, "reduce_sum", call.build.mul(call[0], call[0]))


def _as_float(call: Call, reduced: Callable[[str], str]) -> str:
    """Apply `reduced` to operand 0; integers are computed in float64 and truncated."""
    dtype = call.type(0).dtype
    return call.cast(reduced(call[0] if dtype.kind == "f" else call.cast(call[0], f64)), dtype)


@onnx("ReduceL2")
def l2(call: Call) -> str:
    build = call.build
    return _as_float(call, lambda x: build.sqrt(_reduced(call, "reduce_sum", build.mul(x, x))))


@onnx("ReduceLogSum")
def log_sum(call: Call) -> str:
    return _as_float(call, lambda x: call.build.log(_reduced(call, "reduce_sum", x)))


@onnx("ReduceLogSumExp")
def log_sum_exp(call: Call) -> str:
    return _as_float(call, lambda x: _log_sum_exp(call, x))


def _log_sum_exp(call: Call, x: str) -> str:
    """Shift by the largest element; the shift is clamped to finite values, as inf - inf would be NaN."""
    build = call.build
    limit = float(np.finfo(np.float16 if build.type(x).dtype.bits == 16 else np.float32).max)
    largest = build.clip(_reduced(call, "reduce_max", x, keepdims=True), minimum=-limit, maximum=limit)
    total = _reduced(call, "reduce_sum", build.exp(build.sub(x, largest)))
    return build.add(build.log(total), call.reshape(largest, build.type(total).shape))


@onnx("ArgMax", "ArgMin")
def position(call: Call) -> str:
    build, x = call.build, call[0]
    axis = call.attr_axis("axis", 0, call.type(0).rank)
    last = call.attr_int("select_last_index", 0)
    size = call.shape(0)[axis]
    if last:
        x = call.slice(x, axis, size - 1, -1, -1)
    op = build.argmax if call.op == "ArgMax" else build.argmin
    found = op(x, axis=axis, keepdims=bool(call.attr_int("keepdims", 1)))
    if not last:
        return found
    return build.add(build.neg(found), size - 1)


@onnx("CumProd", since=26)
@onnx("CumSum")
def running(call: Call) -> str:
    """Accumulate along an axis; `exclusive` shifts by one element, `reverse` accumulates from the end."""
    rank = call.type(0).rank
    if not computed.is_known(call, 1):
        return computed.along(call, call[1], [_cumsum(call, axis) for axis in range(rank)])
    (axis,) = call.integers(1)
    return _cumsum(call, *normalize_axes((axis,), rank))


def _cumsum(call: Call, axis: int) -> str:
    build, x, rank = call.build, call[0], call.type(0).rank
    size = call.shape(0)[axis]
    reverse = call.attr_int("reverse", 0)
    if reverse:
        x = call.slice(x, axis, size - 1, -1, -1)
    if call.attr_int("exclusive", 0):
        low = tuple(int(i == axis) for i in range(rank))
        x = call.slice(build.pad(x, low=low, high=(0,) * rank, value=int(call.op == "CumProd")), axis, 0, size)
    total = build.cumprod(x, axis=axis) if call.op == "CumProd" else build.cumsum(x, axis=axis)
    return call.slice(total, axis, size - 1, -1, -1) if reverse else total


@onnx("TopK", since=10)
def topk(call: Call) -> tuple[str | None, ...]:
    axis = call.attr_axis("axis", -1, call.type(0).rank)
    (k,) = call.dims(1)
    return call.build.add_all("topk", call[0], k=k, axis=axis, largest=bool(call.attr_int("largest", 1)))

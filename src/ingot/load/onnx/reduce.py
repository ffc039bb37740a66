"""Reductions, positions of extremes, running sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ingot.dtype import f64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import normalize_axes

PLAIN = {"ReduceMax": "reduce_max", "ReduceMin": "reduce_min", "ReduceProd": "reduce_prod", "ReduceSum": "reduce_sum"}


def _over(call: Call) -> dict[str, object]:
    """The attributes axes and keepdims; no axes means all, or none with noop_with_empty_axes."""
    rank = call.type(0).rank
    axes = call.axes(1)
    if not axes:
        axes = () if call.attr_int("noop_with_empty_axes", 0) else tuple(range(rank))
    return {"axes": tuple(sorted(normalize_axes(axes, rank))), "keepdims": bool(call.attr_int("keepdims", 1))}


@onnx(*PLAIN)
def plain(call: Call) -> str:
    return getattr(call.build, PLAIN[call.op])(call[0], **_over(call))


@onnx("ReduceMean")
def mean(call: Call) -> str:
    over, build = _over(call), call.build
    if call.type(0).dtype.kind == "f":
        return build.reduce_mean(call[0], **over)
    shape = call.type(0).shape
    count = math.prod(shape[axis] if isinstance(shape[axis], int) else 0 for axis in over["axes"])  # type: ignore
    if count == 0:
        raise call.unsupported(f"an integer mean over {call.type(0)}")
    return build.div(build.reduce_sum(call[0], **over), count)


@onnx("ReduceL1")
def l1(call: Call) -> str:
    return call.build.reduce_sum(call.build.abs(call[0]), **_over(call))


@onnx("ReduceSumSquare")
def sum_square(call: Call) -> str:
    return call.build.reduce_sum(call.build.mul(call[0], call[0]), **_over(call))


def _as_float(call: Call, reduced: Callable[[str], str]) -> str:
    """`reduced` of operand 0; of integers in float64, and truncated."""
    dtype = call.type(0).dtype
    return call.cast(reduced(call[0] if dtype.kind == "f" else call.cast(call[0], f64)), dtype)


@onnx("ReduceL2")
def l2(call: Call) -> str:
    build = call.build
    return _as_float(call, lambda x: build.sqrt(build.reduce_sum(build.mul(x, x), **_over(call))))


@onnx("ReduceLogSum")
def log_sum(call: Call) -> str:
    return _as_float(call, lambda x: call.build.log(call.build.reduce_sum(x, **_over(call))))


@onnx("ReduceLogSumExp")
def log_sum_exp(call: Call) -> str:
    return _as_float(call, lambda x: _log_sum_exp(call, x))


def _log_sum_exp(call: Call, x: str) -> str:
    """Shifted by the largest element; an infinite one would make inf - inf, so the shift is kept finite."""
    over, build = _over(call), call.build
    limit = float(np.finfo(np.float16 if build.type(x).dtype.bits == 16 else np.float32).max)
    largest = build.clip(build.reduce_max(x, axes=over["axes"], keepdims=True), minimum=-limit, maximum=limit)
    total = build.reduce_sum(build.exp(build.sub(x, largest)), **over)
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
    if not isinstance(size, int):
        raise call.unsupported("select_last_index over a symbolic dim")
    return build.add(build.neg(found), size - 1)


@onnx("CumProd", since=26)
@onnx("CumSum")
def running(call: Call) -> str:
    """`exclusive` shifts by one element, `reverse` runs from the end."""
    build, x, rank = call.build, call[0], call.type(0).rank
    (axis,) = call.integers(1)
    (axis,) = normalize_axes((axis,), rank)
    size = call.shape(0)[axis]
    reverse = call.attr_int("reverse", 0)
    if reverse:
        x = call.slice(x, axis, size - 1, -1, -1)
    if call.attr_int("exclusive", 0):
        low = tuple(int(i == axis) for i in range(rank))
        x = call.slice(build.pad(x, low=low, high=(0,) * rank, value=int(call.op == "CumProd")), axis, 0, size)
    total = build.cumprod(x, axis=axis) if call.op == "CumProd" else build.cumsum(x, axis=axis)
    return call.slice(total, axis, size - 1, -1, -1) if reverse else total


@onnx("TopK")
def topk(call: Call) -> tuple[str | None, ...]:
    axis = call.attr_axis("axis", -1, call.type(0).rank)
    (k,) = call.sizes(1)
    return call.build.add_all("topk", call[0], k=k, axis=axis, largest=bool(call.attr_int("largest", 1)))

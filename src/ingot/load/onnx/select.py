"""Rules for ops whose result size depends on data."""

from __future__ import annotations

from ingot.ir.dtype import f32, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import count, normalize_axes


@onnx("NonZero")
def nonzero(call: Call) -> str:
    return call.build.nonzero(call[0])


def _along(call: Call) -> tuple[str, int]:
    """Return the operand, flattened if no axis is given, and the axis."""
    if "axis" not in call.attributes:
        return call.reshape(call[0], (count(call.shape(0)),)), 0
    (axis,) = normalize_axes((call.attr_int("axis"),), call.type(0).rank)
    return call[0], axis


@onnx("Compress")
def compress(call: Call) -> str:
    x, axis = _along(call)
    return call.build.compress(x, call[1], axis=axis)


@onnx("Unique")
def unique(call: Call) -> tuple[str | None, ...]:
    x, axis = _along(call)
    return call.build.add_all("unique", x, axis=axis, in_order=not call.attr_int("sorted", 1))


@onnx("NonMaxSuppression")
def non_max_suppression(call: Call) -> str:
    """Without a limit no box is selected; the default thresholds allow no overlap and accept any score."""
    build, limits = call.build, [(2, i64, 0), (3, f32, 0.0), (4, f32, float("-inf"))]
    given = [call.scalar(i) if call.has(i) else build.scalar(default, d) for i, d, default in limits]
    center = call.attr_int("center_point_box", 0)
    if center not in (0, 1):
        raise call.malformed(f"attribute 'center_point_box' is {center}, expected 0 or 1")
    return build.non_max_suppression(call[0], call[1], *given, centered=bool(center))

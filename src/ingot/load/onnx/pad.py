"""Rule for Pad, in all its modes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.ir import dim
from ingot.ir.dtype import boolean, i64
from ingot.load.onnx import computed
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, is_negative, normalize_axes
from ingot.load.onnx.tensors import count_elements

MODES = ("constant", "edge", "reflect", "wrap")


@onnx("Pad", since=11)
def pad(call: Call) -> str:
    """Negative amounts crop the operand before it is padded; symbolic amounts get their values at run time."""
    mode = call.attr_text("mode", "constant")
    if mode not in MODES:
        raise call.malformed(f"attribute 'mode' is {mode[:100]!r}, expected one of {', '.join(MODES)}")
    x, low, high = _cut(call) if computed.is_known(call, 1, 3) else _cut_at_run(call)
    if not any((*low, *high)):
        return x
    if mode == "constant":
        return _constant(call, x, low, high)
    for axis in range(call.type(0).rank):
        x = _gathered(call, x, axis, low[axis], high[axis], mode) if low[axis] or high[axis] else x
    return x


Cut = tuple[str, Sequence[Size], Sequence[Size]]


def _cut(call: Call) -> Cut:
    """Crop x by the negative amounts, and return it with the padding before and after each axis."""
    rank, amounts = call.type(0).rank, call.sizes(1)
    axes = normalize_axes(call.integers(3), rank) if call.has(3) else tuple(range(rank))
    if len(amounts) != 2 * len(axes):
        raise call.malformed(f"pads do not fit, got {list(amounts)} for {len(axes)} axes")
    before: list[Size] = [0] * rank
    after = list(before)
    for i, axis in enumerate(axes):
        before[axis], after[axis] = amounts[i], amounts[len(axes) + i]
    count_elements([max((abs(n) for n in amounts if isinstance(n, int)), default=0)], "pads")
    x = call[0]
    for axis, size in enumerate(call.shape(0)):
        start, stop = dim.maximum(before[axis] * -1, 0), size + dim.minimum(after[axis], 0)
        if (start, stop) != (0, size):
            if is_negative(stop - start):
                raise call.malformed(f"pads cut more than there is, got {list(amounts)} for {call.type(0)}")
            x = call.slice(x, axis, start, stop)
    return x, [dim.maximum(n, 0) for n in before], [dim.maximum(n, 0) for n in after]


def _cut_at_run(call: Call) -> Cut:
    """Crop as `_cut` does, with amounts or axes that are only known at run time."""
    build, rank, amounts = call.build, call.type(0).rank, computed.vector(call, 1)
    n = computed.length(call, 1) // 2
    sides = [call.slice(amounts, 0, side * n, side * n + n) for side in range(2)]
    if call.has(3):
        hit = computed.hits(call, computed.vector(call, 3), rank)
        sides = [computed.spread(call, hit, side, 0) for side in sides]
    if any(build.type(side).shape != (rank,) for side in sides) or computed.length(call, 1) % 2:
        raise call.malformed(f"pads do not fit, got {call.type(1)} for {call.type(0)}")
    x = computed.cut(call, *(build.neg(build.minimum(side, 0)) for side in sides))
    low, high = (call.measured(build.maximum(side, 0)) for side in sides)
    return x, low, high


def _constant(call: Call, x: str, low: Sequence[Size], high: Sequence[Size]) -> str:
    """Pad with a constant; a fill value that is unknown at load time is written with a mask."""
    build, amounts = call.build, {"low": tuple(low), "high": tuple(high)}
    value = call.single(2) if call.has(2) else np.zeros((), call.type(0).dtype.numpy)
    if isinstance(value, np.ndarray):
        return build.pad(x, **amounts, value=value.item())
    inside = build.expand(build.scalar(True, boolean), shape=call.known_shape(build.type(x)))
    zero = False if build.type(x).dtype is boolean else 0
    padded = build.pad(x, **amounts, value=zero)
    return build.where(build.pad(inside, **amounts, value=False), padded, value)


def _gathered(call: Call, x: str, axis: int, low: Size, high: Size, mode: str) -> str:
    """Gather x along an axis at the positions of a mode: clamped to the ends (edge), reflected, or wrapped around."""
    build, size = call.build, call.known_shape(call.build.type(x))[axis]
    if size == 0:
        raise call.malformed(f"mode {mode!r} has nothing to repeat, got {build.type(x)} on axis {axis}")
    positions = build.iota(length=size + low + high, start=low * -1, step=1, dtype=i64)
    last = build.dims(values=(size - 1,))
    if mode == "edge":
        positions = build.minimum(build.maximum(positions, 0), last)
    elif mode == "wrap":
        positions = build.mod(positions, build.dims(values=(size,)))
    else:  # last - |p mod (2 last) - last|; 0 if there is one element
        reflected = build.sub(build.mod(positions, build.add(last, last)), last)
        positions = build.sub(last, build.abs(reflected))
    return build.gather(x, positions, axis=axis)

"""Rules for ops that move, repeat or generate elements; most are lowered to reshapes, slices and expansions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np

from ingot.errors import UnboundError, UnsupportedError
from ingot.ir.dim import floordiv, maximum, minimum
from ingot.ir.dtype import f64, i64
from ingot.ir.graph import MAX_RANK
from ingot.load.onnx import computed
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import (
    Size,
    added,
    count,
    is_negative,
    normalize_axes,
    reshaped,
    sliced,
    squeezed,
    unsqueezed,
)
from ingot.ops.define import broadcast_shapes


@onnx("Reshape", since=5)
def reshape(call: Call) -> str:
    keeps_zero = bool(call.attr_int("allowzero", 0))
    if not computed.is_known(call, 1):
        return computed.reshape(call, keeps_zero)
    return call.reshape(call[0], reshaped(call.shape(0), list(call.sizes(1)), keeps_zero))


@onnx("Transpose")
def transpose(call: Call) -> str:
    rank = call.type(0).rank
    return call.permute(call[0], normalize_axes(call.attr_ints("perm", tuple(reversed(range(rank)))), rank))


@onnx("Squeeze")
def squeeze(call: Call) -> str:
    """Without axes, the rank may depend on dims measured at run time. As in ONNX Runtime, an empty list means no axes
    given.
    """
    if not computed.is_known(call, 1) and call.type(1).shape != (0,):
        return computed.squeeze(call)
    is_empty = call.has(1) and call.type(1).shape == (0,)
    shape, axes = call.shape(0), None if is_empty else call.axes(1) or None
    try:
        return call.reshape(call[0], squeezed(shape, axes))
    except UnboundError:
        if call.build.facts.totals.symbols.are_open:
            raise
        return call.build.squeeze(call[0])


@onnx("Unsqueeze")
def unsqueeze(call: Call) -> str:
    if not computed.is_known(call, 1):
        return computed.unsqueeze(call)
    axes = call.axes(1)
    if axes is None:
        raise call.malformed("input 1 is missing")
    return call.reshape(call[0], unsqueezed(call.shape(0), axes))


@onnx("Flatten")
def flatten(call: Call) -> str:
    shape = call.shape(0)
    axis = call.attr_int("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise call.malformed(f"attribute 'axis' is out of range, got {axis} for {call.type(0)}")
    axis += len(shape) if axis < 0 else 0
    return call.reshape(call[0], (count(shape[:axis]), count(shape[axis:])))


@onnx("Concat", since=4)
def concat(call: Call) -> str:
    axis = normalize_axes((call.attr_int("axis"),), call.type(0).rank)[0]
    return call[0] if len(call) == 1 else call.build.concat(*call.values(), axis=axis)


@onnx("Split", since=13)
def split(call: Call) -> tuple[str | None, ...]:
    """Sizes are operand 1; without them all outputs have equal size, the last one smaller if the dim is not
    divisible.
    """
    axis = call.attr_axis("axis", 0, call.type(0).rank)
    dim = call.shape(0)[axis]
    sizes = call.dims(1) if call.has(1) else _equal_parts(call, dim)
    if len(sizes) != len(call.outputs) or any(is_negative(s) for s in sizes):
        raise call.malformed(f"sizes do not fit {len(call.outputs)} outputs, got {list(sizes)}")
    total = added(sizes)
    if total != dim and isinstance(total - dim, int):
        raise call.malformed(f"sizes sum to {total}, expected the dim {dim}")
    stops = [added(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(call.slice(call[0], axis, start, stop) for start, stop in zip([0, *stops], stops, strict=False))


def _equal_parts(call: Call, dim: Size) -> tuple[Size, ...]:
    parts = call.attr_int("num_outputs", len(call.outputs))
    if parts != len(call.outputs) or parts < 1:
        raise call.malformed(f"attribute 'num_outputs' is {parts}, expected {len(call.outputs)}")
    full = floordiv(dim + (parts - 1), parts)
    if full * parts == dim:
        return (full,) * parts
    return tuple(minimum(full, maximum(dim - full * i, 0)) for i in range(parts))


@onnx("Slice", since=10)
def slice_(call: Call) -> str:
    if not computed.is_known(call, 1, 2, 3, 4):
        return computed.slice_(call)
    axes, bounds, steps = call.slice_ranges()
    try:
        return _sliced(call, axes, bounds, steps)
    except UnboundError:
        dims = [*call.shape(0), *chain.from_iterable(bounds)]
        if not call.build.facts.totals.symbols.needs_run(dims):
            raise
        return computed.slice_(call)


def _sliced(call: Call, axes: Sequence[int], bounds: Sequence[tuple[Size, Size]], steps: Sequence[int]) -> str:
    """Slice with bounds that are dims. Raises UnboundError if the resolved bounds depend on the values of dims."""
    shape = call.shape(0)
    starts: list[Size] = [0] * len(shape)
    stops, strides = list(shape), [1] * len(shape)
    for axis, (start, stop), step in zip(axes, bounds, steps, strict=True):
        starts[axis], stops[axis] = sliced(shape[axis], start, stop, step)
        # A step beyond the dim always has the same effect, and kernels accept 32 bits; an empty range gets step 1.
        is_empty = starts[axis] == stops[axis] == 0
        strides[axis] = 1 if is_empty else max(-(2**31), min(step, 2**31 - 1))
    if starts == [0] * len(shape) and tuple(stops) == shape and all(s == 1 for s in strides):
        return call[0]
    return call.build.slice(call[0], starts=tuple(starts), stops=tuple(stops), steps=tuple(strides))


@onnx("Expand")
def expand(call: Call) -> str:
    """A dim of 1 in the target keeps the operand's dim, so the result is the broadcast of both."""
    if not computed.is_known(call, 1):
        return computed.expand(call)
    target = call.sizes(1)
    if any(is_negative(d) for d in target):
        raise call.malformed(f"negative dim, got {list(target)}")
    shape = broadcast_shapes("expand", call.shape(0), target)
    return call[0] if shape == call.type(0).shape else call.build.expand(call[0], shape=shape)


@onnx("Tile", since=6)
def tile(call: Call) -> str:
    """Insert an axis before each repeated one, expand it and merge both."""
    x, repeats = call[0], call.dims(1)
    if len(repeats) != call.type(0).rank or any(is_negative(r) for r in repeats):
        raise call.malformed(f"repeats do not fit, got {list(repeats)} for {call.type(0)}")
    for axis, times in enumerate(repeats):
        if times != 1:
            shape = call.known_shape(call.build.type(x))
            head, rest = shape[:axis], shape[axis:]
            if len(shape) == MAX_RANK:
                head, rest = (count(head),), (count(rest),)
            x = call.build.expand(call.reshape(x, (*head, 1, *rest)), shape=(*head, times, *rest))
            x = call.reshape(x, (*shape[:axis], times * shape[axis], *shape[axis + 1 :]))
    return x


@onnx("Trilu")
def trilu(call: Call) -> str:
    upper = bool(call.attr_int("upper", 1))
    if not computed.is_known(call, 1):
        return computed.trilu(call, upper)
    diagonals = call.integers(1) if call.has(1) else (0,)
    if len(diagonals) != 1:
        raise call.malformed(f"input 1 has {len(diagonals)} elements, expected 1")
    return call.build.trilu(call[0], k=diagonals[0], upper=upper)


@onnx("DepthToSpace")
def depth_to_space(call: Call) -> str:
    block, mode = call.attr_int("blocksize"), call.attr_text("mode", "DCR")
    batch, channels, height, width = _image(call, block)
    call.expect_sizes(0, 1)
    depth = floordiv(channels, block * block)
    if depth * (block * block) != channels or mode not in ("DCR", "CRD"):
        raise call.malformed(f"blocksize {block}, mode {mode!r} do not fit {call.type(0)}")
    if mode == "DCR":
        x = call.permute(call.reshape(call[0], (batch, block, block, depth, height, width)), (0, 3, 4, 1, 5, 2))
    else:
        x = call.permute(call.reshape(call[0], (batch, depth, block, block, height, width)), (0, 1, 4, 2, 5, 3))
    return call.reshape(x, (batch, depth, height * block, width * block))


@onnx("SpaceToDepth")
def space_to_depth(call: Call) -> str:
    block = call.attr_int("blocksize")
    batch, channels, height, width = _image(call, block)
    rows, columns = floordiv(height, block), floordiv(width, block)
    call.expect_sizes(0, 2, 3)
    if rows * block != height or columns * block != width:
        raise call.malformed(f"blocksize {block} does not divide {call.type(0)}")
    axes = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}.get(call.attr_text("mode", "DCR"))
    if axes is None:
        raise call.malformed(f"attribute 'mode' is {call.attr_text('mode')!r}, expected 'DCR' or 'CRD'")
    x = call.reshape(call[0], (batch, channels, rows, block, columns, block))
    return call.reshape(call.permute(x, axes), (batch, channels * block * block, rows, columns))


def _image(call: Call, block: int) -> tuple[Size, ...]:
    if call.type(0).rank != 4 or not 1 <= block < 2**16:
        raise call.malformed(f"blocksize is {block}, operand {call.type(0)}, expected rank 4 and a positive size")
    return call.shape(0)


@onnx("Constant")
def constant(call: Call) -> str:
    given = list(call.attributes)
    if len(given) != 1:
        raise call.unsupported(f"a constant of attributes {sorted(call.attributes)}")
    match given[0]:
        case "value":
            data = call.attr_tensor("value")
        case "value_int":
            data = np.array(call.attr_int("value_int"), np.int64)
        case "value_ints":
            data = np.array(call.attr_ints("value_ints"), np.int64)
        case "value_float":
            data = np.array(call.attr_float("value_float"), np.float32)
        case "value_floats":
            data = np.array(call.attr_floats("value_floats"), np.float32)
        case "value_string":
            data = np.array(call.attr_text("value_string"), object)
        case "value_strings":
            data = np.array(call.attr_texts("value_strings"), object)
        case name:
            raise UnsupportedError(f"attribute {name!r} is not supported")
    return call.build.literal(data, call.outputs[0] or "constant")


@onnx("ConstantOfShape")
def constant_of_shape(call: Call) -> str:
    value = call.attr_tensor("value", np.zeros(1, np.float32))
    if value.size != 1:
        raise call.malformed(f"attribute 'value' has {value.size} elements, expected 1")
    shape = call.dims(0)
    if any(is_negative(d) for d in shape):
        raise call.malformed(f"negative dim, got {list(shape)}")
    scalar = call.build.constant(value.reshape(()))
    return call.build.expand(scalar, shape=shape) if shape else scalar


@onnx("EyeLike")
def eye_like(call: Call) -> str:
    """Return 1 where the column is the row plus k."""
    if call.type(0).rank != 2:
        raise call.malformed(f"operand {call.type(0)}, expected rank 2")
    build, (rows, columns) = call.build, call.shape(0)
    dtype = call.attr_dtype("dtype") if "dtype" in call.attributes else call.type(0).dtype
    row = build.iota(length=rows, start=call.attr_int("k", 0), step=1, dtype=i64)
    column = build.iota(length=columns, start=0, step=1, dtype=i64)
    return call.cast(build.equal(build.reshape(row, shape=(rows, 1)), column), dtype)


@onnx("Range")
def range_(call: Call) -> str:
    """The start and stop of integers may be symbolic. The length is rounded up."""
    dtype = call.type(0).dtype
    if dtype.kind == "f":
        return _float_range(call)
    if any(call.known(i) is None for i in range(3)):
        return call.build.arange(*(call.scalar(i) for i in range(3)))
    start, stop, (step,) = _one(call, 0), _one(call, 1), call.integers(2)
    if step == 0:
        raise call.malformed("a step of 0")
    span = stop - start if step > 0 else start - stop
    length = floordiv(span + (abs(step) - 1), abs(step))
    length = length if is_negative(length) is False else maximum(length, 0)
    first = start if isinstance(start, int) else 0
    counted = call.cast(call.build.iota(length=length, start=first, step=step, dtype=i64), dtype)
    return counted if isinstance(start, int) else call.build.add(counted, call[0])


def _one(call: Call, index: int) -> Size:
    (size,) = call.sizes(index)
    return size


def _float_range(call: Call) -> str:
    """Compute a range of floats; if the bounds are unknown at load time, the length depends on the run."""
    build, dtype = call.build, call.type(0).dtype
    known = [build.graph.data(call[i]) for i in range(3)]
    if any(data is None for data in known):
        return build.arange(*(call.scalar(i) for i in range(3)))
    start, stop, step = (float(data.item()) for data in known if data is not None)
    length = math.ceil((stop - start) / step)
    return build.iota(length=max(length, 0), start=start, step=step, dtype=dtype)


WINDOWS = {"HannWindow": (0.5, 0.5, 0.0), "HammingWindow": (25 / 46, 21 / 46, 0.0), "BlackmanWindow": (0.42, 0.5, 0.08)}


@onnx(*WINDOWS, since=17)
def window(call: Call) -> str:
    """Compute a - b cos(2 pi i / n) + c cos(4 pi i / n); n is the size, or size - 1 if the window is not periodic."""
    size = call.size(0)
    period, builder = size if call.attr_int("periodic", 1) else size - 1, call.builder_for(size)
    a, b, c = WINDOWS[call.op]
    step = builder.div(2 * math.pi, builder.scalar(period, f64))  # a non-periodic window of one element is NaN
    angles = builder.mul(builder.iota(length=size, start=0, step=1, dtype=f64), step)
    y = builder.add(builder.mul(builder.cos(angles), -b), a)
    y = builder.add(y, builder.mul(builder.cos(builder.mul(angles, 2.0)), c)) if c else y
    return call.build.table(builder.cast(y, dtype=call.attr_dtype("output_datatype", 1)))


@onnx("Shape")
def shape_(call: Call) -> str:
    dims = call.shape(0)
    stop = call.attr_int("end") if "end" in call.attributes else len(dims)
    dims = dims[call.attr_int("start", 0) : stop]
    return call.build.dims(values=dims)


@onnx("Size")
def size(call: Call) -> str:
    return call.reshape(call.build.dims(values=(count(call.shape(0)),)), ())

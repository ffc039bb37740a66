"""Rules for ops that pick elements by position."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ingot.ir.dim import floordiv
from ingot.ir.dtype import i32, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size, count, is_negative


def checked(call: Call, name: str, limit: Size, what: str) -> str:
    """Return indices that must be below `limit`: a run with another index fails.

    what: the name of the operand in the schema.
    """
    indices = name if call.build.type(name).dtype in (i32, i64) else call.cast(name, i64)
    return call.build.checked_index(indices, limit=limit, what=f"{what} {name!r}")


@onnx("Gather")
def gather(call: Call) -> str:
    return call.build.gather(call[0], call[1], axis=call.attr_axis("axis", 0, call.type(0).rank))


@onnx("GatherElements")
def gather_elements(call: Call) -> str:
    return call.build.gather_elements(call[0], call[1], axis=call.attr_axis("axis", 0, call.type(0).rank))


@onnx("GatherND")
def gather_nd(call: Call) -> str:
    """Convert index tuples to positions in x with its indexed dims merged.

    Each index is first gathered from an iota of its range, which resolves negative indices and rejects indices out of
    range.
    """
    build, shape, indices = call.build, call.shape(0), call.shape(1)
    batch = call.attr_int("batch_dims", 0)
    depth = indices[-1] if indices else 0
    if not isinstance(depth, int):
        raise call.unbound(f"index tuples of symbolic length, {call.type(1)}")
    if not 0 <= batch < len(indices) or depth < 1 or batch + depth > len(shape):
        raise call.malformed(f"batch_dims {batch} and tuples of {depth} do not fit {call.type(0)} and {call.type(1)}")
    picked, rest = shape[batch : batch + depth], shape[batch + depth :]
    tuples, rows, inner = indices[batch:-1], count(shape[:batch]), count(picked)
    grid = (rows, *tuples) if batch else tuples
    coordinates = call.reshape(call[1], (*grid, depth))
    if depth == 1 and batch == 0:
        return build.gather(call[0], call.reshape(coordinates, tuples), axis=0)

    flat = flat_positions(call, coordinates, picked)
    if batch:
        first = build.mul(_positions(call, rows), vector(call, [inner]))
        flat = build.add(call.reshape(first, (rows, *[1] * len(tuples))), flat)
    result = build.gather(call.reshape(call[0], (rows * inner, *rest)), flat, axis=0)
    return call.reshape(result, (*shape[:batch], *tuples, *rest))


def flat_positions(call: Call, coordinates: str, shape: Sequence[Size]) -> str:
    """Convert index tuples [..., n] into n dims to positions [...] in those dims merged."""
    build, grid = call.build, call.known_shape(call.build.type(coordinates))[:-1]
    terms = []
    for i, size in enumerate(shape):
        coordinate = call.reshape(call.slice(coordinates, len(grid), i, i + 1), grid)
        coordinate = build.gather(_positions(call, size), coordinate, axis=0)
        terms.append(build.mul(coordinate, vector(call, [count(shape[i + 1 :])])) if i + 1 < len(shape) else coordinate)
    return functools.reduce(build.add, terms)


def _positions(call: Call, size: Size) -> str:
    return call.build.iota(length=size, start=0, step=1, dtype=i64)


def vector(call: Call, sizes: Sequence[Size]) -> str:
    """Return sizes as data: i64 [n]."""
    return call.build.dims(values=tuple(sizes))


@onnx("UnfoldTensor", domain=MICROSOFT)
def unfold(call: Call) -> str:
    """Extract overlapping windows of one axis to a new last axis."""
    build, rank, step, width = call.build, call.type(0).rank, call.attr_int("step", 1), call.attr_int("size")
    axis = call.attr_axis("dim", -1, rank)
    size = call.shape(0)[axis]
    if step < 1 or width < 1 or is_negative(size - width):
        raise call.malformed(f"windows of {width} with step {step} do not fit {call.type(0)} along axis {axis}")
    windows = floordiv(size - width, step) + 1
    first = call.reshape(build.iota(length=windows, start=0, step=step, dtype=i64), (windows, 1))
    gathered = build.gather(call[0], build.add(first, build.iota(length=width, start=0, step=1, dtype=i64)), axis=axis)
    return call.permute(gathered, (*(i for i in range(rank + 1) if i != axis + 1), axis + 1))


@onnx("OneHot")
def one_hot(call: Call) -> str:
    """Compare the indices with 0..depth-1; negative indices count from the end, others match nothing."""
    build, shape = call.build, call.shape(0)
    rank = len(shape) + 1
    axis = call.attr_axis("axis", -1, rank)
    indices = call.cast(call[0], i64)
    number = call.cast(call.scalar(1), i64)
    depth = None if (known := build.known(number)) is None else known.item()
    if depth is None:
        coordinates = build.arange(build.scalar(0, i64), number, build.scalar(1, i64))
    else:
        coordinates = _positions(call, depth)
    (depth,) = build.type(coordinates).shape
    indices = build.where(build.less(indices, 0), build.add(indices, number), indices)
    indices = call.reshape(indices, (*shape[:axis], 1, *shape[axis:]))
    hot = build.equal(indices, call.reshape(coordinates, (depth, *[1] * (rank - 1 - axis))))
    call.expect_sizes(2)
    if call.type(2).shape != (2,):
        raise call.malformed(f"values are {call.type(2)}, expected two")
    off, on = (call.reshape(call.slice(call[2], 0, i, i + 1), ()) for i in range(2))
    return build.where(hot, on, off)


@onnx("ReverseSequence")
def reverse_sequence(call: Call) -> str:
    """For each sample, step t < n is step n - 1 - t of x; time and batch are merged into one axis."""
    build, shape = call.build, call.shape(0)
    rank = len(shape)
    batch, time = call.attr_axis("batch_axis", 1, max(rank, 2)), call.attr_axis("time_axis", 0, max(rank, 2))
    if {batch, time} != {0, 1} or len(shape) < 2:
        raise call.malformed(f"batch_axis {batch}, time_axis {time} do not fit {call.type(0)}, expected 0 and 1")
    samples, steps = shape[batch], shape[time]
    if call.type(1).rank != 1:
        raise call.malformed(f"lengths are {call.type(1)}, expected i64[{samples}]")
    lengths = call.reshape(call.cast(checked(call, call[1], steps + 1, "sequence_lens"), i64), (samples, 1))
    step = _positions(call, steps)
    reversed_step = build.where(build.less(step, lengths), build.sub(build.add(lengths, -1), step), step)
    base = call.reshape(build.mul(_positions(call, samples), vector(call, [steps])), (samples, 1))
    axes = (batch, time, *range(2, len(shape)))
    flat = call.reshape(call.permute(call[0], axes), (samples * steps, *shape[2:]))
    return call.permute(build.gather(flat, build.add(base, reversed_step), axis=0), axes)

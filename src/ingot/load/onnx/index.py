"""Ops that pick elements by position."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ingot.dtype import i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, count


@onnx("Gather")
def gather(call: Call) -> str:
    return call.build.gather(call[0], call[1], axis=call.attr_axis("axis", 0, call.type(0).rank))


@onnx("GatherElements")
def gather_elements(call: Call) -> str:
    return call.build.gather_elements(call[0], call[1], axis=call.attr_axis("axis", 0, call.type(0).rank))


@onnx("GatherND")
def gather_nd(call: Call) -> str:
    """Index tuples become positions in x with its leading dims seen as one.

    Each place is looked up in its range first, which counts negative ones from the end and refuses what is outside.
    """
    build, shape, indices = call.build, call.shape(0), call.shape(1)
    batch = call.attr_int("batch_dims", 0)
    depth = indices[-1] if indices else 0
    if not isinstance(depth, int):
        raise call.unsupported(f"index tuples of symbolic length, {call.type(1)}")
    if not 0 <= batch < len(indices) or depth < 1 or batch + depth > len(shape):
        raise call.malformed(f"batch_dims {batch} and tuples of {depth} do not fit {call.type(0)} and {call.type(1)}")
    picked, rest = shape[batch : batch + depth], shape[batch + depth :]
    tuples, rows, inner = indices[batch:-1], count(shape[:batch]), count(picked)
    grid = (rows, *tuples) if batch else tuples
    places = call.reshape(call[1], (*grid, depth))
    if depth == 1 and batch == 0:
        return build.gather(call[0], call.reshape(places, tuples), axis=0)

    def range_of(size: Size) -> str:
        return build.iota(length=size, start=0, step=1, dtype=i64)

    terms = []
    if batch:
        terms.append(build.mul(call.reshape(range_of(rows), (rows, *[1] * len(tuples))), vector(call, [inner])))
    for i, size in enumerate(picked):
        place = call.reshape(call.slice(places, len(grid), i, i + 1), grid)
        place = build.gather(range_of(size), place, axis=0)
        terms.append(build.mul(place, vector(call, [count(picked[i + 1 :])])) if i + 1 < depth else place)
    flat = functools.reduce(build.add, terms)
    result = build.gather(call.reshape(call[0], (rows * inner, *rest)), flat, axis=0)
    return call.reshape(result, (*shape[:batch], *tuples, *rest))


def vector(call: Call, sizes: Sequence[Size]) -> str:
    """Sizes as data: i64 [n]."""
    return call.build.dims(values=tuple(sizes))


@onnx("OneHot")
def one_hot(call: Call) -> str:
    """A comparison of the indices with a count; negative ones count from the end, others match nothing."""
    build, (depth,) = call.build, call.sizes(1)
    shape = call.shape(0)
    rank = len(shape) + 1
    axis = call.attr_axis("axis", -1, rank)
    indices = call.cast(call[0], i64)
    indices = build.where(build.less(indices, 0), build.add(indices, vector(call, [depth])), indices)
    indices = call.reshape(indices, (*shape[:axis], 1, *shape[axis:]))
    places = build.iota(length=depth, start=0, step=1, dtype=i64)
    hot = build.equal(indices, call.reshape(places, (depth, *[1] * (rank - 1 - axis))))
    if call.type(2).shape != (2,):
        raise call.malformed(f"values are {call.type(2)}, expected two")
    off, on = (call.reshape(call.slice(call[2], 0, i, i + 1), ()) for i in range(2))
    return build.where(hot, on, off)

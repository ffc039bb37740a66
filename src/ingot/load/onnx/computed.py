"""Rules for sizes, bounds and axes that are only known at run time: integer arithmetic in the graph; `measure` converts
the results to dims.

Each function matches the rule for known operands in arguments and results; a bound out of range is an error of the run.
An invalid size is replaced by -1, which every run rejects.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir.dtype import i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.shapes import Size, count, normalize_axes

_FAR = 2**31  # a step of this many passes every dim; its negative is a valid i64, too


def vector(call: Call, index: int) -> str:
    """Return an operand of rank 0 or 1 as i64 [n]. Raises UnrankedError if n is only known at run time."""
    return call.vector(call[index])


def length(call: Call, index: int) -> int:
    """Return the number of elements of an operand of rank 0 or 1."""
    (size,) = call.build.type(vector(call, index)).shape
    assert isinstance(size, int)
    return size


def element(call: Call, x: str, position: int) -> str:
    """Return one element of a vector: i64 []."""
    return call.reshape(call.slice(x, 0, position, position + 1), ())


def axis_positions(call: Call, axes: str, rank: int) -> str:
    """Return axes counted from the front; an axis out of range is an error of the run."""
    return call.build.gather(call.build.iota(length=rank, start=0, step=1, dtype=i64), axes, axis=0)


def hits(call: Call, axes: str, rank: int) -> str:
    """Compare `axes` with each axis: bool [n, rank]."""
    build = call.build
    (n,) = build.type(axes).shape
    columns = build.iota(length=rank, start=0, step=1, dtype=i64)
    return build.equal(build.reshape(axis_positions(call, axes, rank), shape=(n, 1)), columns)


def spread(call: Call, hit: str, values: str, default: int) -> str:
    """Scatter values to their axes: i64 [rank], `default` for an axis without a value."""
    build = call.build
    (n, _) = build.type(hit).shape
    column = build.reshape(values, shape=(n, 1))
    total = build.reduce_sum(build.where(hit, column, build.scalar(0, i64)), axes=(0,), keepdims=False)
    return build.where(_is_hit(call, hit), total, build.scalar(default, i64))


def _is_hit(call: Call, hit: str) -> str:
    return call.build.greater(_times(call, hit), 0)


def _times(call: Call, hit: str) -> str:
    """Count how often each axis occurs: i64 [rank]."""
    return call.build.reduce_sum(call.cast(hit, i64), axes=(0,), keepdims=False)


def _each_once(call: Call, hit: str, sizes: str) -> str:
    """Return the sizes, or -1 for all if an axis occurs twice."""
    build = call.build
    often = build.reduce_max(_times(call, hit), axes=(0,), keepdims=False)
    return build.where(build.less_equal(often, 1), sizes, build.scalar(-1, i64))


def reshape(call: Call, keeps_zero: bool) -> str:
    """Reshape: a 0 copies a dim unless `keeps_zero`, and one -1 is inferred."""
    build, shape, target = call.build, call.shape(0), vector(call, 1)
    n = length(call, 1)
    if not keeps_zero:
        copied = build.dims(values=(*shape[:n], *(-1,) * (n - len(shape))))
        target = build.where(build.equal(target, 0), copied, target)
    hole = build.equal(target, -1)
    one = build.scalar(1, i64)
    rest = build.reduce_prod(build.where(hole, one, target), axes=(0,), keepdims=False)
    left = build.div(build.dims(values=(count(shape),)), build.maximum(rest, one))
    return call.reshape(call[0], call.measured(build.where(hole, left, target)))


def expand(call: Call) -> str:
    """Expand to the broadcast of both shapes, which the run checks."""
    build, shape, target = call.build, call.shape(0), vector(call, 1)
    n = length(call, 1)
    if n < len(shape):
        target = build.concat(build.dims(values=(1,) * (len(shape) - n)), target, axis=0)
    own = build.dims(values=(*(1,) * (n - len(shape)), *shape))
    return build.expand(call[0], shape=call.measured(build.where(build.equal(target, 1), own, target)))


def squeeze(call: Call) -> str:
    """Squeeze along axes. The run checks that each has size 1, as the number of elements must stay the same."""
    build, shape, axes = call.build, call.shape(0), vector(call, 1)
    hit = hits(call, axes, len(shape))
    mask = call.cast(build.equal(_times(call, hit), 0), i64)
    _, order = build.add_all("topk", mask, k=len(shape) - length(call, 1), axis=0, largest=True)
    sizes = build.gather(build.dims(values=shape), order, axis=0)
    return call.reshape(call[0], call.measured(_each_once(call, hit, sizes)))


def unsqueeze(call: Call) -> str:
    """Unsqueeze: the dims of x fill the axes that are not inserted."""
    build, shape, axes = call.build, call.shape(0), vector(call, 1)
    rank = len(shape) + length(call, 1)
    hit = hits(call, axes, rank)
    source = build.sub(build.cumsum(call.cast(build.equal(_times(call, hit), 0), i64), axis=0), 1)
    source = build.minimum(build.maximum(source, 0), len(shape))
    dims = build.gather(build.dims(values=(*shape, 1)), source, axis=0)
    sizes = build.where(_is_hit(call, hit), build.scalar(1, i64), dims)
    return call.reshape(call[0], call.measured(_each_once(call, hit, sizes)))


def slice_(call: Call) -> str:
    """Slice along known axes one by one, or along all axes if the axes are only known at run time. A known step of 1
    needs no gather.
    """
    build, shape = call.build, call.shape(0)
    n = length(call, 1)
    values = [vector(call, 1), vector(call, 2)]
    values.append(vector(call, 4) if call.has(4) else build.dims(values=(1,) * n))
    if len({build.type(value).shape for value in values}) > 1:
        raise call.malformed("starts, ends and steps differ in length")
    known = call.known(3) if call.has(3) else range(n)
    if known is None:
        hit = hits(call, vector(call, 3), len(shape))
        values = [spread(call, hit, v, default) for v, default in zip(values, (0, 2**63 - 1, 1), strict=True)]
        axes = tuple(range(len(shape)))
    else:
        axes = normalize_axes(tuple(known), len(shape))
    if build.type(values[0]).shape != (len(axes),):
        raise call.malformed(f"starts are {build.type(values[0])} for axes {list(axes)}")
    x = call[0]
    is_plain = call.known(4) is None if call.has(4) else False
    for i, axis in enumerate(axes):
        bounds = (element(call, value, i) for value in values)
        x = _sliced(call, x, axis, shape[axis], *bounds, has_step=is_plain or _step(call, i) != 1)
    return x


def _step(call: Call, i: int) -> int | None:
    """Return the step of the i-th range, if both it and its axis are known."""
    is_known_axis = not call.has(3) or call.known(3) is not None
    return 1 if not call.has(4) else call.integers(4)[i] if is_known_axis and call.known(4) is not None else None


def _sliced(call: Call, x: str, axis: int, size: Size, start: str, stop: str, step: str, *, has_step: bool) -> str:
    """Slice one axis with scalar bounds and step; see `shapes.sliced` for bounds out of range."""
    build = call.build
    dim, zero, one = build.reshape(build.dims(values=(size,)), shape=()), build.scalar(0, i64), build.scalar(1, i64)
    step = build.minimum(build.maximum(step, -_FAR), _FAR)
    forward = build.greater(step, 0)
    low = build.where(forward, zero, build.scalar(-1, i64))
    high = build.where(forward, dim, build.sub(dim, 1))
    start, stop = (build.where(build.less(v, 0), build.add(v, dim), v) for v in (start, stop))
    start = build.maximum(build.minimum(start, high), zero)
    stop = build.maximum(build.minimum(stop, high), low)
    counted = _counted(call, start, stop, step)
    if not has_step:
        first, number = call.measured(build.concat(*(call.reshape(v, (1,)) for v in (start, counted)), axis=0))
        return call.slice(x, axis, first, first + number)
    (number,) = call.measured(build.minimum(counted, build.maximum(dim, one)))
    indices = build.add(build.mul(build.iota(length=number, start=0, step=1, dtype=i64), step), start)
    return build.gather(x, indices, axis=axis)


def _counted(call: Call, start: str, stop: str, step: str) -> str:
    """Count the steps from start to before stop; -1 for a step of 0."""
    build = call.build
    forward = build.greater(step, 0)
    span = build.where(forward, build.sub(stop, start), build.sub(start, stop))
    size = build.abs(step)
    number = build.floor_div(build.add(span, build.sub(size, 1)), build.maximum(size, 1))
    number = build.maximum(number, 0)
    return build.where(build.equal(step, 0), build.scalar(-1, i64), number)


def cut(call: Call, low: str, high: str) -> str:
    """Crop x by `low` elements before and `high` elements after on each axis, both i64 [rank] of 0 or more."""
    build, shape = call.build, call.shape(0)
    starts = call.measured(low)
    sizes = call.measured(build.sub(build.sub(build.dims(values=shape), low), high))
    stops = tuple(start + size for start, size in zip(starts, sizes, strict=True))
    return build.slice(call[0], starts=starts, stops=stops, steps=(1,) * len(shape))


def trilu(call: Call, upper: bool) -> str:
    """Keep elements whose column is at or beyond (`upper`: at or after, else at or before) the row plus k, else 0."""
    build, shape = call.build, call.shape(0)
    rows, columns = (build.iota(length=size, start=0, step=1, dtype=i64) for size in shape[-2:])
    distance = build.sub(columns, build.reshape(rows, shape=(shape[-2], 1)))
    compare = build.greater_equal if upper else build.less_equal
    mask = compare(distance, call.cast(call.scalar(1), i64))
    return build.where(mask, call[0], build.scalar(0, call.type(0).dtype))


def along(call: Call, axis: str, results: Sequence[str]) -> str:
    """Select the result of a given axis: `results` has one for each axis, all of one shape."""
    build = call.build
    position = axis_positions(call, call.reshape(call.cast(axis, i64), ()), len(results))
    chosen = results[0]
    for i, result in enumerate(results[1:], 1):
        chosen = build.where(build.equal(position, i), result, chosen)
    return chosen


def is_known(call: Call, *indices: int) -> bool:
    """Return whether each of these operands is known at load time, or omitted."""
    return all(not call.has(i) or call.known(i) is not None for i in indices)

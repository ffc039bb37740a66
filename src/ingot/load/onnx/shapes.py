"""Shape arithmetic of ONNX ops over dims: results of Reshape, Squeeze, Unsqueeze, Slice. All raise ShapeError."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.errors import ShapeError, UnboundError
from ingot.ir import dim
from ingot.ir.dim import Expr, never_negative
from ingot.ops.define import normalize_axis

Size = int | Expr


def normalize_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the axes counted from the front; each may occur once."""
    result = tuple(normalize_axis("axes", axis, rank) for axis in axes)
    if len(set(result)) != len(result):
        raise ShapeError(f"axes: one is given twice, got {list(axes)}")
    return result


def reshaped(shape: Sequence[Size], target: Sequence[Size], allow_zero: bool = False) -> tuple[Size, ...]:
    """Return the result shape of Reshape: 0 copies a dim unless `allow_zero`, one -1 is inferred."""
    result = list(target)
    for i, size in enumerate(target):
        if size == 0 and not allow_zero:
            if i >= len(shape):
                raise ShapeError(f"reshape: 0 copies a dim that does not exist, got {list(shape)} to {list(target)}")
            result[i] = shape[i]
    holes = [i for i, size in enumerate(target) if size == -1]
    if len(holes) > 1 or any(isinstance(size, int) and size < -1 for size in target):
        raise ShapeError(f"reshape: at most one dim may be -1 and none below, got {list(target)}")
    total = count(shape)
    if holes:
        rest = count([size for i, size in enumerate(result) if i != holes[0]])
        if rest == 0:
            raise ShapeError(f"reshape: -1 next to a dim of 0, got {list(shape)} to {list(target)}")
        if isinstance(total, int) and isinstance(rest, int) and total % rest:
            raise ShapeError(f"reshape: element counts differ, got {list(shape)} to {list(target)}")
        result[holes[0]] = dim.floordiv(total, rest)
    elif isinstance(total, int) and isinstance(count(result), int) and total != count(result):
        raise ShapeError(f"reshape: element counts differ, got {list(shape)} to {list(target)}")
    return tuple(result)


def count(shape: Sequence[Size]) -> Size:
    """Return the number of elements."""
    total: Size = 1
    for size in shape:
        total = total * size
    return total


def added(sizes: Sequence[Size]) -> Size:
    """Return the sum of sizes."""
    total: Size = 0
    for size in sizes:
        total = total + size
    return total


def squeezed(shape: Sequence[Size], axes: Sequence[int] | None) -> tuple[Size, ...]:
    """Return the shape without the given axes, which must be 1; if no axes are given, without all dims of 1.

    Raises UnboundError if no axes are given and a symbolic dim may be 1, so that the rank is unknown.
    """
    if axes is None:
        unsure = [d for d in shape if isinstance(d, Expr) and is_negative(d - 2) is not False]
        if unsure:
            raise UnboundError(f"squeeze without axes: a dim that may be 1, got {unsure[0]} of {list(shape)}")
        return tuple(d for d in shape if d != 1)
    dropped = normalize_axes(axes, len(shape))
    for axis in dropped:
        if isinstance(shape[axis], int) and shape[axis] != 1:
            raise ShapeError(f"squeeze: dim is not 1, got {list(shape)} at axis {axis}")
    return tuple(d for i, d in enumerate(shape) if i not in dropped)


def unsqueezed(shape: Sequence[Size], axes: Sequence[int]) -> tuple[Size, ...]:
    """Return the shape with dims of 1 at the given axes of the result."""
    rank = len(shape) + len(axes)
    added = normalize_axes(axes, rank)
    rest = iter(shape)
    return tuple(1 if i in added else next(rest) for i in range(rank))


def sliced(size: Size, start: Size, stop: Size, step: int) -> tuple[Size, Size]:
    """Return canonical bounds of a slice: 0 <= start <= size, and the same for stop, or down to -1 for a
    negative step.

    Backwards, a start before the first element is moved to the first one. Over a symbolic dim, start <= stop at every
    size.
    """
    if step == 0:
        raise ShapeError("slice: a step is 0")
    if isinstance(size, int) and isinstance(start, int) and isinstance(stop, int):
        # Unlike in Python, a backward slice that starts before the first element starts at the first one.
        low, high = (0, size) if step > 0 else (-1, size - 1)
        start, stop = (bound + size if bound < 0 else bound for bound in (start, stop))
        bounds = range(max(0, min(start, high)), max(low, min(stop, high)), step)
        return (bounds.start, bounds.stop) if size and bounds else (0, 0)
    if step < 0:
        from_the_end = isinstance(start, int) and (start == -1 or start >= _FAR)
        if from_the_end and isinstance(stop, int) and stop <= -_FAR:
            return size - 1, -1
        raise UnboundError(f"slice: backwards over a symbolic dim, got {start}:{stop}:{step} of {size}")
    start, stop = _bound(start, size), _bound(stop, size)
    is_ordered = start == 0 or stop == size or is_negative(stop - start) is False
    return start, stop if is_ordered else dim.maximum(start, stop)


_FAR = 2**31 - 1  # exporters write this or a larger number for "to the end"


def _bound(bound: Size, size: Size) -> Size:
    if isinstance(bound, int) and bound >= _FAR:
        return size
    negative = is_negative(bound)
    if negative is None:
        raise UnboundError(f"slice: a bound of unknown sign, got {bound} of {size}")
    if negative:
        moved = bound + size
        return moved if is_negative(moved) is False else dim.maximum(moved, 0)
    return dim.minimum(bound, size)


def sign(value: Size) -> int | None:
    """Return -1, 0 or 1 if it is the sign for all non-negative values of the symbols, else None."""
    if value == 0:
        return 0
    return 1 if never_negative(value - 1) else -1 if never_negative(-1 - value) else None


def is_negative(value: Size) -> bool | None:
    """Return whether a value is below zero for all non-negative values of the symbols; None when that depends on
    them.
    """
    return False if never_negative(value) else True if never_negative(-1 - value) else None

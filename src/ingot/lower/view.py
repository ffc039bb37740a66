"""A view: (tensor, offset, shape, strides), all in elements. Every operand of a step is a view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ingot.ir.dim import divides
from ingot.ir.dtype import DType
from ingot.support.record import record


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides, in elements. Elements of a dim that a run does not use take no memory."""
    strides: list[int] = []
    stride = 1
    for dim in reversed(shape):
        strides.append(stride)
        if dim != 0:
            stride = stride * dim
    return tuple(reversed(strides))


def ordered_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return strides of dense elements whose axes are stored in `order`, outermost first.

    Row-major strides if they are equivalent, because dims of size 1 may have any stride.
    """
    dense = contiguous_strides([shape[axis] for axis in order])
    strides = tuple(dense[order.index(axis)] for axis in range(len(shape)))
    wide = [stride for dim, stride in zip(shape, strides, strict=True) if dim != 1]
    return strides if any(a < b for a, b in pairwise(wide)) else contiguous_strides(shape)


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the axis order of a channels-last image [N, C, ...]."""
    return (0, *range(2, rank), 1)


@record()
class View:
    """Elements of a root tensor, by its id: element (i, j, ...) is at offset + i*strides[0] + j*strides[1] + ..."""

    tensor: str
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements; a symbolic dim counts with its planned size."""
        size = 1
        for dim in self.shape:
            size *= int(dim)
        return size

    @property
    def byte_offset(self) -> int:
        """The offset of the first element in the tensor, in bytes; the element must start at a byte boundary."""
        bits = self.offset * self.dtype.bits
        assert bits % 8 == 0, f"{self} begins inside a byte"
        return bits // 8

    @property
    def is_contiguous(self) -> bool:
        """Whether elements are consecutive in row-major order; dims of size 1 may have any stride."""
        expected = 1
        for dim, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if dim != 1 and stride != expected:
                return self.size == 0
            expected *= dim
        return True

    @property
    def order(self) -> tuple[int, ...]:
        """The axes in memory order, outermost first; axes of size 1 come first."""
        return tuple(sorted(range(len(self.shape)), key=lambda a: (self.shape[a] != 1, -abs(self.strides[a]))))

    @property
    def has_adjacent_channels(self) -> bool:
        """Whether the channels of an image [N, C, H, W] or a sequence [N, C, W] are adjacent."""
        return self.shape[1] == 1 or self.strides[1] == 1

    @property
    def has_adjacent_columns(self) -> bool:
        """Whether the elements of the last dim are adjacent."""
        return self.shape[-1] == 1 or self.strides[-1] == 1

    @property
    def extent(self) -> tuple[int, int]:
        """The half-open range of element offsets covered; empty for a view of no elements."""
        low = high = int(self.offset)
        for dim, stride in zip(self.shape, self.strides, strict=True):
            if dim == 0:
                return low, low
            if stride > 0:
                high += (int(dim) - 1) * int(stride)
            else:
                low += (int(dim) - 1) * int(stride)
        return low, high + 1

    def permute(self, axes: Sequence[int]) -> View:
        """Return a view whose axis i is axis axes[i] of this view."""
        shape, strides = tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes)
        return View(self.tensor, self.dtype, self.offset, shape, strides)

    def as_image(self) -> View:
        """Return an image [N, C, H, W] unchanged, and a sequence [N, C, W] as an image of one row."""
        if len(self.shape) == 4:
            return self
        shape, strides = (*self.shape[:2], 1, *self.shape[2:]), (*self.strides[:2], self.strides[2], *self.strides[2:])
        return View(self.tensor, self.dtype, self.offset, shape, strides)

    def slice(self, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> View:
        """Return the slice defined by the op `slice`."""
        offset, shape, strides = self.offset, [], []
        for start, stop, step, stride in zip(starts, stops, steps, self.strides, strict=True):
            if start == 0 and step == 1:
                length = stop
            else:
                length = max(0, -((start - stop) // step) if step > 0 else -((stop - start) // -step))
            offset += start * stride if length else 0
            shape.append(length)
            strides.append(stride * step)
        return View(self.tensor, self.dtype, offset, tuple(shape), tuple(strides))

    def expand(self, shape: Sequence[int]) -> View:
        """Broadcast to `shape`: missing and size-1 dims get stride 0."""
        missing = len(shape) - len(self.shape)
        strides = [0] * missing
        for dim, stride, wanted in zip(self.shape, self.strides, shape[missing:], strict=True):
            strides.append(stride if dim == wanted else 0)
        return View(self.tensor, self.dtype, self.offset, tuple(shape), tuple(strides))

    def reshape(self, shape: Sequence[int]) -> View | None:
        """Return the same elements in another shape; None if that needs a copy."""
        if tuple(shape) == self.shape:
            return self
        is_whole = math.prod(shape) == math.prod(self.shape)  # for every size of a run
        if self.size == 0 or (is_whole and self.is_contiguous):  # avoids a division
            return View(self.tensor, self.dtype, self.offset, tuple(shape), contiguous_strides(shape))
        runs = self._runs()
        strides: list[int] = []
        position = len(shape) - 1
        for length, stride in reversed(runs):
            remaining, step = length, stride
            while position >= 0 and (remaining != 1 or shape[position] == 1):
                strides.append(step)
                if shape[position] != 1:
                    if not divides(shape[position], remaining):
                        return None
                    step *= shape[position]
                    remaining //= shape[position]
                position -= 1
            if remaining != 1:
                return None
        strides += [1] * (position + 1)
        return View(self.tensor, self.dtype, self.offset, tuple(shape), tuple(reversed(strides)))

    def _runs(self) -> list[tuple[int, int]]:
        """Merge dims that are equally spaced in memory, as `collapse` does: (length, innermost stride)."""
        runs: list[tuple[int, int]] = []
        for dim, stride in zip(self.shape, self.strides, strict=True):
            if dim == 1:
                continue
            if runs and runs[-1][1] == stride * dim:
                runs[-1] = (runs[-1][0] * dim, stride)
            else:
                runs.append((dim, stride))
        return runs

    def rows(self) -> View | None:
        """Return the view as [rows, columns] with adjacent columns; None if the rows are not equally spaced."""
        if not self.shape:
            return self.reshape((1, 1))
        count, columns = 1, self.shape[-1]
        for dim in self.shape[:-1]:
            count *= dim
        if count and columns and self.is_contiguous:  # avoids a division of sizes
            return View(self.tensor, self.dtype, self.offset, (count, columns), (columns, 1))
        flat = self.reshape((count, columns))
        if flat is None or (columns > 1 and flat.strides[1] != 1):
            return None
        return View(flat.tensor, flat.dtype, flat.offset, flat.shape, (flat.strides[0], 1))


def reshaped_order(view: View, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the axis order of a reshaped view.

    If the reshape needs a copy: channels last for an image or a sequence whose source has adjacent channels, otherwise
    None (row-major).
    """
    reshaped = view.reshape(shape)
    if reshaped is not None:
        return reshaped.order
    is_image = len(shape) in (3, 4) and len(shape) < len(view.shape) and _has_channels(view, shape[1])
    return channels_last(len(shape)) if is_image else None


def _has_channels(view: View, count: int) -> bool:
    """Return whether channels are adjacent, also in a shuffled image [N, C, h, r, w, s], r * s pixels per position."""
    axes = zip(view.shape[1:], view.strides[1:], strict=True)
    size, stride = next((axis for axis in axes if axis[0] != 1), (1, 0))
    is_shuffled = len(view.shape) == 6 and min(view.strides[2], view.strides[4]) >= stride * size
    return size == count and (stride == 1 or is_shuffled)


def image_order(views: Sequence[View], rank: int) -> tuple[int, ...] | None:
    """Return channels last if an operand is a channels-last image or sequence; otherwise None (row-major)."""
    images = [view for view in views if len(view.shape) == rank and rank in (3, 4)]
    found = any(view.has_adjacent_channels and not view.is_contiguous for view in images)
    return channels_last(rank) if found else None


def collapse(views: Sequence[View]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the loop nest of views of one shape, with as few dims as possible: (shape, strides of each view).

    Dims of size 1 are dropped; neighbouring dims merge if every view allows it. The innermost dim stays last.
    """
    shape: list[int] = []
    strides: list[list[int]] = [[] for _ in views]
    for axis, dim in enumerate(views[0].shape):
        if dim == 1:
            continue
        here = [v.strides[axis] for v in views]
        if shape and all(s[-1] == h * dim for s, h in zip(strides, here, strict=True)):
            shape[-1] *= dim
            for s, h in zip(strides, here, strict=True):
                s[-1] = h
        else:
            shape.append(dim)
            for s, h in zip(strides, here, strict=True):
                s.append(h)
    if not shape:
        return (math.prod(views[0].shape),), [(1,) for _ in views]
    return tuple(shape), [tuple(s) for s in strides]


def with_long_rows(
    shape: tuple[int, ...], strides: Sequence[tuple[int, ...]], least: int
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """If the last dim of a collapsed loop nest is shorter than `least`, swap it with a longer dim.

    The longer dim is the last with at least 2 * `least` elements, if any.
    """
    if not shape or shape[-1] >= least:
        return shape, list(strides)
    last = max((d for d, size in enumerate(shape) if size >= 2 * least), default=len(shape) - 1)
    order = [*(d for d in range(len(shape)) if d != last), last]
    return tuple(shape[d] for d in order), [tuple(stride[d] for d in order) for stride in strides]


def broadcast_view(view: View, shape: tuple[int, ...]) -> View:
    """Return the view broadcast to `shape` as in numpy."""
    return view if view.shape == shape else view.expand(shape)

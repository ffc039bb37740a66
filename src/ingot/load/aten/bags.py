"""Rules for sums, means and maxima of bags, which are ranges of an index list, and of segments of an axis."""

from __future__ import annotations

import math

from ingot.errors import UnsupportedError
from ingot.ir.dtype import DType, i64
from ingot.load.aten.builder import AtenBuilder, Number, Tensor
from ingot.load.aten.registry import aten
from ingot.load.aten.search import sorted_positions

_SUM, _MEAN, _MAX = range(3)  # torch's numbers of them
_SEGMENTS = {  # how each is joined, and with what nothing changes
    "sum": ("add", 0.0), "mean": ("add", 0.0), "prod": ("mul", 1.0),
    "max": ("max", -math.inf), "min": ("min", math.inf),
}  # fmt: skip


@aten("embedding_bag.padding_idx", "_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    b: AtenBuilder, weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Tensor, None, None, None]:  # fmt: skip
    """Reduce the rows of each bag. Padding rows are in no bag; an empty bag is 0. Torch's other results only serve its
    gradients.

    A row is in the last bag that begins at or before it. If the last offset only marks the end, rows after it are in no
    bag.
    """
    (count,), (bags,), width = b.shape(indices), b.shape(offsets), b.shape(weight)[1]
    result, dtype = bags - 1 if include_last_offset else bags, b.dtype(weight)
    bag = _bag_of_each(b, b.cast(offsets, i64), count)
    is_padding = None
    if padding_idx is not None and padding_idx >= 0:
        is_padding = b.reshape(b.add("equal", indices, b.scalar(padding_idx, b.dtype(indices))), (count, 1))
    rows = b.add("gather", weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = b.add("mul", rows, b.reshape(b.cast(per_sample_weights, dtype), (count, 1)))
    neutral = b.scalar(-math.inf if mode == _MAX else 0, dtype)
    if is_padding is not None:
        rows = b.add("where", is_padding, neutral, rows)
    position = b.expand(b.reshape(bag, (count, 1)), (count, width))
    found = b.add(
        "scatter_elements", b.expand(neutral, (bags, width)), position, rows, axis=0,
        reduction="max" if mode == _MAX else "add",
    )  # fmt: skip
    if mode != _SUM:
        stored = b.expand(b.scalar(1, dtype), (count, 1))
        if is_padding is not None:
            stored = b.add("where", is_padding, b.scalar(0, dtype), stored)
        found = _of_counted(b, found, _how_many(b, bag, stored, bags, dtype), mode)
    return b.slice(found, 0, 0, result), None, None, None


def _bag_of_each(b: AtenBuilder, offsets: Tensor, count: object) -> Tensor:
    """Return the bag of each index, i64 [count]: the number of bags that begin up to it, minus one."""
    begins = b.expand(b.scalar(0, i64), (count + 1,))  # type: ignore[operator]  # a bag may begin behind the last one
    ones = b.expand(b.scalar(1, i64), b.shape(offsets))
    begins = b.add("scatter_elements", begins, offsets, ones, axis=0, reduction="add")
    begun = b.add("cumsum", b.slice(begins, 0, 0, count), axis=0)  # type: ignore[arg-type]
    return b.add("sub", begun, b.scalar(1, i64))


def _how_many(b: AtenBuilder, bag: Tensor, stored: Tensor, bags: object, dtype: DType) -> Tensor:
    none = b.expand(b.scalar(0, dtype), (bags, 1))  # type: ignore[arg-type]
    position = b.reshape(bag, b.shape(stored))
    return b.add("scatter_elements", none, position, stored, axis=0, reduction="add")


def _of_counted(b: AtenBuilder, found: Tensor, number: Tensor, mode: int) -> Tensor:
    """Divide sums by the number of rows, or clear the maxima of empty bags."""
    dtype = b.dtype(found)
    if mode == _MEAN:
        return b.add("div", found, b.add("maximum", number, b.scalar(1, dtype)))
    return b.add("where", b.add("equal", number, b.scalar(0, dtype)), b.scalar(0, dtype), found)


@aten("segment_reduce.default")
def segment_reduce(
    b: AtenBuilder, x: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: Number | None = None,
) -> Tensor:  # fmt: skip
    """Reduce segments of an axis, which are adjacent and given by lengths or by offsets.

    Elements in no segment are reduced separately and cut off. An empty segment is `initial`, or the neutral element;
    its mean is NaN.
    """
    axis = b.axis(x, axis)
    if offsets is None:
        if lengths is None:
            raise UnsupportedError(f"torch node {b.hint!r}: segments by index, expected lengths or offsets")
        ends = b.add("cumsum", b.cast(lengths, i64), axis=axis)
        none = b.expand(b.scalar(0, i64), (*b.shape(ends)[:-1], 1))
        offsets = b.add("concat", none, ends, axis=axis)
    shape, dtype, bounds = b.shape(x), b.dtype(x), b.shape(offsets)[-1]
    position = b.expand(b.add("iota", length=shape[axis], start=0, step=1, dtype=i64), shape[: axis + 1])
    offsets, count = b.cast(offsets, i64), bounds - 1
    segment = b.add("sub", sorted_positions(b, offsets, position, right=True), b.scalar(1, i64))
    segment = b.add("where", b.add("less", segment, b.scalar(0, i64)), b.scalar(count, i64), segment)
    behind = [1] * (len(shape) - axis - 1)
    segment = b.expand(b.reshape(segment, (*shape[: axis + 1], *behind)), shape)
    how, neutral = _SEGMENTS[reduce]
    begun = b.expand(
        b.scalar(neutral if initial is None else initial, dtype), (*shape[:axis], bounds, *shape[axis + 1 :])
    )
    joined = b.slice(b.add("scatter_elements", begun, segment, x, axis=axis, reduction=how), axis, 0, count)
    if reduce != "mean":
        return joined
    sizes = b.add("sub", b.slice(offsets, axis, 1, bounds), b.slice(offsets, axis, 0, count))
    sizes = b.cast(b.reshape(sizes, (*b.shape(sizes), *behind)), dtype)
    sizes = sizes if initial is None else b.add("maximum", sizes, b.scalar(1, dtype))  # else 0 / 0 is NaN
    return b.add("div", joined, sizes)

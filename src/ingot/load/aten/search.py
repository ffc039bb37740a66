"""Rules for positions in sorted numbers."""

from __future__ import annotations

from ingot.ir.dim import Known
from ingot.ir.dtype import i32, i64
from ingot.load.aten.builder import AtenBuilder, Number, Tensor, element_count
from ingot.load.aten.data import measured
from ingot.load.aten.registry import aten


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    b: AtenBuilder, sorted_sequence: Tensor, x: Tensor | Number, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the insertion positions of numbers in sorted rows, before equal elements, or after them (`right`)."""
    rows, numbers = b.promote(sorted_sequence, x)
    if sorter is not None:
        rows = b.add("gather_elements", rows, sorter, axis=b.rank(rows) - 1)
    shape, right = b.shape(numbers), right or side == "right"
    if b.rank(rows) == 1:
        numbers = b.reshape(numbers, (element_count(shape),))
    found = sorted_positions(b, rows, numbers, right)
    return b.cast(b.reshape(found, shape), i32 if out_int32 else i64)


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    b: AtenBuilder, x: Tensor | Number, boundaries: Tensor, out_int32: bool = False, right: bool = False
) -> Tensor:
    return searchsorted(b, boundaries, x, out_int32, right)


def sorted_positions(b: AtenBuilder, rows: Tensor, numbers: Tensor, right: bool) -> Tensor:
    """Return insertion positions of [..., m] numbers in [..., n] rows, i64: by binary search, or by counting if n is
    symbolic.

    A number that is not smaller than any element goes to the end, and so does NaN.
    """
    axis, size = b.rank(rows) - 1, b.shape(rows)[-1]
    reaches = "greater" if right else "greater_equal"  # what stops a number from going further
    if not isinstance(size, int):
        wide = (*b.shape(numbers), 1)
        each = b.reshape(rows, (*b.shape(rows)[:-1], 1, size))
        passed = b.add("logical_not", b.add(reaches, each, b.reshape(numbers, wide)))
        return b.add("reduce_sum", b.cast(passed, i64), axes=(axis + 1,), keepdims=False)
    found = b.expand(b.scalar(0, i64), b.shape(numbers))
    if not size:
        return found
    one, last = b.scalar(1, i64), b.scalar(size, i64)
    for bit in reversed(range(size.bit_length())):
        ahead = b.add("add", found, b.scalar(1 << bit, i64))
        location = b.add("sub", b.add("minimum", ahead, last), one)
        passed = b.add("logical_not", b.add(reaches, b.add("gather_elements", rows, location, axis=axis), numbers))
        passed = b.add("logical_and", passed, b.add("less_equal", ahead, last))
        found = b.add("where", passed, ahead, found)
    return found


@aten("repeat_interleave.Tensor")
def repeat_interleave(b: AtenBuilder, repeats: Tensor, output_size: Known | None = None) -> Tensor:
    """Repeat each position as often as a tensor specifies: count the ends up to each position."""
    (count,), dtype = b.result.shape, b.result.dtype
    (size,) = b.shape(repeats)
    if size == 0:
        return b.cast(repeats, dtype)
    ends = b.add("cumsum", b.cast(repeats, i64), axis=0)
    if b.is_of_data(count):
        measured(b, b.slice(ends, 0, size - 1, size), count)
    location = b.add("iota", length=count, start=0, step=1, dtype=i64)
    return b.cast(sorted_positions(b, ends, location, right=True), dtype)

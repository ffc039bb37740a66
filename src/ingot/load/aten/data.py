"""Rules for sizes and numbers that depend on data.

A size for which torch creates a symbol becomes a dim measured at run time: the op that computes the value has an
unknown dim there, which is narrowed to the symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ingot.errors import UnsupportedError
from ingot.ir.dim import Expr, Known
from ingot.ir.dtype import boolean, i64
from ingot.ir.graph import TensorType
from ingot.load.aten.builder import AtenBuilder, Tensor, element_count
from ingot.load.aten.elementwise import as_bool
from ingot.load.aten.registry import aten
from ingot.load.aten.symbolic import Symbols

READS_A_NUMBER = {"aten.item.default", "aten._local_scalar_dense.default"}


class NumberOfData(str):
    """The name of a rank-0 tensor instead of a number in torch."""


def read_number(b: AtenBuilder, node: Node, x: Tensor, symbols: Symbols) -> Any:
    """Return the number in a tensor of one element: a dim where it is used as a size, else a tensor of rank 0."""
    b.hint = b.graph.fresh(node.name)
    number = node.meta["val"]
    if not isinstance(number, torch.SymInt) or not any(_takes_sizes(user, node) for user in node.users):
        return NumberOfData(b.reshape(x, ()))
    size = symbols.dim(number)
    if isinstance(size, Expr):
        measured(b, x, size)
    return size


def _takes_sizes(user: Node, node: Node) -> bool:
    """Return whether a call uses a node as a size, not as a number that may be a tensor."""
    if not isinstance(user.target, torch._ops.OpOverload):
        return True
    arguments = user.target._schema.arguments
    given = [*zip(arguments, user.args, strict=False), *((a, user.kwargs.get(a.name)) for a in arguments)]
    return any("int" in str(a.type).lower() for a, value in given if node in tree_leaves(value))


def measured(b: AtenBuilder, size: Tensor, dim: Known) -> None:
    """Record that a dim is measured from a tensor of one integer."""
    computed = b.add("measure", b.reshape(b.cast(size, i64), (1,)))
    b.graph.narrow(computed, TensorType(boolean, (dim,)))


def sized(b: AtenBuilder, value: Tensor, shape: Sequence[Known]) -> Tensor:
    """Narrow the unknown dims of a value to those of a shape."""
    b.graph.narrow(value, TensorType(b.dtype(value), tuple(shape)))
    return value


def positions(b: AtenBuilder, mask: Tensor, count: Known) -> list[Tensor]:
    """Return, for each axis of a mask, the positions of its `count` nonzero elements: i64 [count]."""
    rank = b.rank(mask)
    found = sized(b, b.add("nonzero", mask), (max(rank, 1), count))
    return [b.reshape(b.slice(found, 0, i, i + 1), (count,)) for i in range(max(rank, 1))]


@aten("nonzero.default", "argwhere.default")
def nonzero(b: AtenBuilder, x: Tensor) -> Tensor:
    count, rank = b.result.shape
    found = sized(b, b.add("nonzero", x), (max(rank, 1), count))
    return b.permute(b.slice(found, 0, 0, rank), (1, 0))


@aten("nonzero_static.default")
def nonzero_static(b: AtenBuilder, x: Tensor, *, size: Known, fill_value: int = -1) -> Tensor:
    """Return the positions of the first `size` nonzero elements, one per row, padded with the fill value."""
    dims, count = b.shape(x), element_count(b.shape(x))
    mask = b.reshape(as_bool(b, x), (count,))
    number = b.add("sub", b.add("cumsum", b.cast(mask, i64), axis=0), b.scalar(1, i64))
    last = b.scalar(size, i64)  # the row of what is left out
    row = b.add("where", mask, b.add("minimum", number, last), last)
    position, columns = b.add("iota", length=count, start=0, step=1, dtype=i64), []
    for axis, length in enumerate(dims):
        index = b.add("floor_div", position, b.scalar(element_count(dims[axis + 1 :]), i64))
        index = b.add("mod", index, b.scalar(length, i64))
        rows = b.expand(b.scalar(fill_value, i64), (size + 1,))
        rows = b.add("scatter_elements", rows, row, index, axis=0, reduction="none")
        columns.append(b.reshape(b.slice(rows, 0, 0, size), (size, 1)))
    return b.add("concat", *columns, axis=1) if columns else b.expand(b.scalar(0, i64), b.result.shape)


@aten("masked_select.default")
def masked_select(b: AtenBuilder, x: Tensor, mask: Tensor) -> Tensor:
    shape = b.shape(b.add("logical_and", as_bool(b, x), mask))  # as they broadcast
    flat = [b.reshape(b.expand(t, shape), (element_count(shape),)) for t in (x, mask)]
    return sized(b, b.add("compress", *flat, axis=0), b.result.shape)


@aten("_unique2.default")
def unique2(
    b: AtenBuilder, x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    return _unique(b, b.reshape(x, (element_count(b.shape(x)),)), 0, b.shape(x))


@aten("unique_dim.default")
def unique_dim(
    b: AtenBuilder, x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    axis = b.axis(x, dim)
    return _unique(b, x, axis, (b.shape(x)[axis],))


def _unique(b: AtenBuilder, x: Tensor, axis: int, shape: Sequence[Known]) -> tuple[Tensor, Tensor, Tensor]:
    computed, _, inverse, counts = b.add("unique", x, axis=axis, in_order=False)
    count = b.result[0].shape[axis]
    computed = sized(b, computed, b.result[0].shape)
    return computed, b.reshape(inverse, shape), sized(b, counts, (count,))


@aten("unique_consecutive.default")
def unique_consecutive(
    b: AtenBuilder, x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first slice of each run of equal slices, the run of each slice, and the length of each run."""
    shape = b.shape(x) if dim is None else (b.shape(x)[b.axis(x, dim)],)
    axis = 0 if dim is None else b.axis(x, dim)
    x = b.reshape(x, (element_count(shape),)) if dim is None else x
    size, one = b.shape(x)[axis], b.scalar(1, i64)
    differs = b.cast(b.add("not_equal", b.slice(x, axis, 1, size), b.slice(x, axis, 0, size - 1)), i64)
    others = tuple(i for i in range(b.rank(x)) if i != axis)
    differs = b.add("reduce_max", differs, axes=others, keepdims=False) if others else differs
    begins = b.add("concat", b.slice(b.expand(one, (size,)), 0, 0, 1), differs, axis=0)
    computed = sized(b, b.add("compress", x, b.cast(begins, boolean), axis=axis), b.result[0].shape)
    count = b.result[0].shape[axis]
    first = b.add("compress", b.add("iota", length=size, start=0, step=1, dtype=i64), b.cast(begins, boolean), axis=0)
    first = sized(b, first, (count,))
    behind = b.add("concat", b.slice(first, 0, 1, count), b.reshape(b.scalar(size, i64), (1,)), axis=0)
    inverse = b.add("sub", b.add("cumsum", begins, axis=0), one)
    return computed, b.reshape(inverse, shape), b.add("sub", behind, first)


@aten("bincount.default")
def bincount(b: AtenBuilder, x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count how often each number occurs, or sum its weights."""
    (count,) = b.result.shape
    x, dtype = b.cast(x, i64), b.result.dtype
    if isinstance(count, Expr):
        padded = b.add("concat", x, b.reshape(b.scalar(minlength - 1, i64), (1,)), axis=0)
        most = b.add("reduce_max", padded, axes=(0,), keepdims=True)
        measured(b, b.add("add", most, b.scalar(1, i64)), count)
    added = b.expand(b.scalar(1, dtype), b.shape(x)) if weights is None else b.cast(weights, dtype)
    return b.add("scatter_elements", b.expand(b.scalar(0, dtype), (count,)), x, added, axis=0, reduction="add")


def expect_one_mask(b: AtenBuilder, chosen: dict[int, Tensor]) -> int | None:
    """Return the axis of the only index tensor that is a mask; None without one. Raises UnsupportedError for
    several.
    """
    masks = [axis for axis, tensor in chosen.items() if b.dtype(tensor).kind not in "iu" or b.dtype(tensor) is boolean]
    if masks and len(chosen) > 1:
        raise UnsupportedError(f"torch node {b.hint!r}: a mask with other indices, got {len(chosen)}, expected one")
    return masks[0] if masks else None

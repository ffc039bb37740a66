"""Rules for ops with index tensors."""

from collections.abc import Sequence

from ingot.errors import UnsupportedError
from ingot.ir.dim import Known
from ingot.ir.dtype import i64
from ingot.load.aten.builder import AtenBuilder, Tensor, broadcast, element_count
from ingot.load.aten.data import expect_one_mask, positions
from ingot.load.aten.elementwise import as_bool
from ingot.load.aten.registry import aten


def checked(b: AtenBuilder, index: Tensor, limit: Known, what: str) -> Tensor:
    """Return indices below `limit`, in ops where torch accepts no others: a run with another index, or a negative one,
    fails.
    """
    return b.add("checked_index", index, limit=limit, what=f"{what} {index!r}")


@aten("embedding.default")
def embedding(
    b: AtenBuilder, weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:  # fmt: skip
    """padding_idx only affects gradients: its row gets none."""
    rows = b.add("gather", weight, checked(b, indices, b.shape(weight)[0], "indices"), axis=0)
    if not b.trains:
        return rows
    if scale_grad_by_freq:
        raise UnsupportedError(f"torch node {b.hint!r}: gradients of an embedding that are scaled by frequency")
    if padding_idx < 0:
        return rows
    is_padding = b.add("equal", indices, b.scalar(padding_idx, b.dtype(indices)))
    return b.add("where", b.reshape(is_padding, (*b.shape(indices), 1)), b.add("detach", rows), rows)


@aten("index_select.default")
def index_select(b: AtenBuilder, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if b.rank(x) == 0:
        return x
    if b.rank(index) == 0:
        index = b.reshape(index, (1,))
    axis = b.axis(x, dim)
    return b.add("gather", x, checked(b, index, b.shape(x)[axis], "index"), axis=axis)


@aten("gather.default")
def gather(b: AtenBuilder, x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """Axes of x that are longer than the index are cropped to it, as torch only reads that part."""
    if b.rank(x) == 0:
        return x
    axis = b.axis(x, dim)
    for other, size in enumerate(b.shape(index)):
        if other != axis:
            x = b.slice(x, other, 0, size)
    return b.add("gather_elements", x, checked(b, index, b.shape(x)[axis], "index"), axis=axis)


@aten("take_along_dim.default")
def take_along_dim(b: AtenBuilder, x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        raise UnsupportedError(f"torch node {b.hint!r}: take_along_dim without an axis, expected one")
    axis = b.axis(x, dim)
    common = broadcast(b.hint, *(_without(b.shape(t), axis) for t in (x, indices)))
    x, indices = (b.expand(t, (*common[:axis], b.shape(t)[axis], *common[axis + 1 :])) for t in (x, indices))
    return b.add("gather_elements", x, checked(b, indices, b.shape(x)[axis], "indices"), axis=axis)


def _without(shape: tuple[Known, ...], axis: int) -> tuple[Known, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(b: AtenBuilder, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Index by integer tensors, one or several, or by a mask, which selects the positions where it is true.

    One is a gather. Several are broadcast to one shape; the axes they index are moved together and merged, and
    positions in the merged axis are computed. Each index is first gathered from an iota of its axis, which resolves
    negative indices and rejects indices out of range. As in numpy, the result's index axes replace the indexed axes if
    these are adjacent, else they come first.
    """
    chosen = {axis: tensor for axis, tensor in enumerate(indices) if tensor is not None}
    axis = expect_one_mask(b, chosen)
    if axis is not None:
        mask = chosen[axis]
        found = positions(b, as_bool(b, mask), b.result.shape[axis])
        if not b.rank(mask):  # of one element: an axis of its own remains, or not
            return b.add("gather", b.reshape(x, (*b.shape(x)[:axis], 1, *b.shape(x)[axis:])), found[0], axis=axis)
        chosen = {axis + i: each for i, each in enumerate(found)}
    axes = list(chosen)
    if len(axes) == 1:
        return b.add("gather", x, chosen[axes[0]], axis=axes[0])
    shape = b.shape(x)
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    front = axes[0] if adjacent else 0
    if not adjacent:
        rest = [axis for axis in range(len(shape)) if axis not in chosen]
        x = b.permute(x, [*axes, *rest])
    sizes = [shape[axis] for axis in axes]
    current = b.shape(x)
    flat = b.reshape(x, (*current[:front], element_count(sizes), *current[front + len(axes) :]))
    return b.add("gather", flat, joined_position(b, list(chosen.values()), sizes), axis=front)


def joined_position(b: AtenBuilder, indices: list[Tensor], sizes: list[Known]) -> Tensor:
    """Return the row-major position of an index tuple: ((i0 * n1 + i1) * n2 + i2) ..."""
    position = ""
    for tensor, size in zip(indices, sizes, strict=True):
        counted = b.add("gather", b.add("iota", length=size, start=0, step=1, dtype=i64), tensor, axis=0)
        position = b.add("add", b.add("mul", position, b.scalar(size, i64)), counted) if position else counted
    return position


@aten("unfold.default")
def unfold(b: AtenBuilder, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Extract overlapping windows of one axis to a new last axis: their positions are an outer sum."""
    if b.rank(x) == 0:  # as of one element
        return b.reshape(x, b.result.shape) if size == 1 else b.expand(x, b.result.shape)
    axis, windows = b.axis(x, dimension), b.result.shape[b.axis(x, dimension)]
    first = b.reshape(b.add("iota", length=windows, start=0, step=step, dtype=i64), (windows, 1))
    positions = b.add("add", first, b.add("iota", length=size, start=0, step=1, dtype=i64))
    gathered = b.add("gather", x, positions, axis=axis)
    return b.permute(gathered, [*(i for i in range(b.rank(gathered)) if i != axis + 1), axis + 1])

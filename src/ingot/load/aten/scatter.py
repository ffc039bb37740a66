"""Rules for ops that replace elements at index tensors, or add to them."""

import math
from collections.abc import Sequence

import numpy as np

from ingot.errors import UnsupportedError
from ingot.ir.dim import Known
from ingot.ir.dtype import DType, i64
from ingot.load.aten.builder import AtenBuilder, Number, Tensor, broadcast, element_count
from ingot.load.aten.data import expect_one_mask
from ingot.load.aten.elementwise import as_bool
from ingot.load.aten.index import checked, joined_position
from ingot.load.aten.registry import aten

_REDUCTIONS = {"sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min"}


@aten("scatter.src", "scatter.value", "scatter_add.default")
def scatter(b: AtenBuilder, x: Tensor, dim: int, index: Tensor, source: Tensor | Number) -> Tensor:
    return _scattered(b, x, dim, index, source, "add" if "add" in b.target else "none")


@aten("scatter_reduce.two")
def scatter_reduce(
    b: AtenBuilder, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """Without self, the initial elements are the neutral element of the reduction; a mean counts the added elements."""
    return _reduced(b, x, dim, index, source, reduce, include_self)


@aten("scatter.reduce", "scatter.value_reduce")
def scatter_by_name(b: AtenBuilder, x: Tensor, dim: int, index: Tensor, source: Tensor | Number, reduce: str) -> Tensor:
    return _scattered(b, x, dim, index, source, "add" if reduce == "add" else "mul")


@aten("put.default")
def put(b: AtenBuilder, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Replace elements at row-major positions, or add to them."""
    flat, position, values = (b.reshape(t, (element_count(b.shape(t)),)) for t in (x, index, source))
    computed = b.add("scatter_elements", flat, position, values, axis=0, reduction="add" if accumulate else "none")
    return b.reshape(computed, b.shape(x))


def _reduced(
    b: AtenBuilder, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    reduction, dtype = _REDUCTIONS[reduce], b.dtype(x)
    begun = x if include_self else _scattered(b, x, dim, index, _neutral(reduction, dtype), "none")
    y = _scattered(b, begun, dim, index, source, reduction)
    if reduce != "mean":
        return y
    ones = b.expand(b.scalar(1, dtype), b.shape(x))
    begun = ones if include_self else _scattered(b, ones, dim, index, 0, "none")
    count = b.add("maximum", _scattered(b, begun, dim, index, 1, "add"), b.scalar(1, dtype))
    return b.add("div" if dtype.kind == "f" else "floor_div", y, count)


def _neutral(reduction: str, dtype: DType) -> Number:
    """Return the neutral element of a reduction."""
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if dtype.kind == "f":
        return -math.inf if reduction == "max" else math.inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if reduction == "max" else limits.max)


@aten("index_reduce.default")
def index_reduce(
    b: AtenBuilder, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    shape, axis = b.shape(x), b.axis(x, dim)
    x, source = (b.reshape(t, b.shape(t) or (1,)) for t in (x, source))
    position = _spread(b, index, b.shape(source), axis)
    reduce = "sum" if reduce == "add" else reduce
    return b.reshape(_reduced(b, x, axis, position, source, reduce, include_self), shape)


def _spread(b: AtenBuilder, index: Tensor, shape: Sequence[Known], axis: int) -> Tensor:
    """Convert indices of slices along an axis to indices of their elements."""
    count = element_count(b.shape(index))
    alone = tuple(count if i == axis else 1 for i in range(len(shape)))
    return b.expand(b.reshape(index, alone), shape)


def _scattered(b: AtenBuilder, x: Tensor, dim: int, index: Tensor, source: Tensor | Number, reduction: str) -> Tensor:
    """If the source is larger than the index, torch only reads the part that the index covers."""
    shape, axis = b.shape(x), b.axis(x, dim)
    x, index = (b.reshape(t, b.shape(t) or (1,)) for t in (x, index))
    index = checked(b, index, b.shape(x)[axis], "index")
    if isinstance(source, str):
        updates = b.reshape(source, b.shape(source) or (1,))
        for each, size in enumerate(b.shape(index)):
            updates = b.slice(updates, each, 0, size)
    else:
        updates = b.expand(b.scalar(source, b.dtype(x)), b.shape(index))
    return b.reshape(b.add("scatter_elements", x, index, updates, axis=axis, reduction=reduction), shape)


@aten("index_add.default", "index_copy.default")
def index_add(b: AtenBuilder, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Number = 1) -> Tensor:
    """Add to slices of x along an axis, or replace them."""
    shape, axis = b.shape(x), b.axis(x, dim)
    x, source = (b.reshape(t, b.shape(t) or (1,)) for t in (x, source))
    if alpha != 1:
        source = b.add("mul", source, b.scalar(alpha, b.dtype(source)))
    index = _spread(b, checked(b, index, b.shape(x)[axis], "index"), b.shape(source), axis)
    reduction = "add" if "add" in b.target else "none"
    return b.reshape(b.add("scatter_elements", x, index, source, axis=axis, reduction=reduction), shape)


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(
    b: AtenBuilder, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """A mask selects between x and values. For integers, the indexed axes are merged into one."""
    chosen = {axis: tensor for axis, tensor in enumerate(indices) if tensor is not None}
    axis = expect_one_mask(b, chosen)
    if axis is not None:
        return _put_by_mask(b, x, as_bool(b, chosen[axis]), axis, values, accumulate)
    axes, shape = list(chosen), b.shape(x)
    rest = [axis for axis in range(len(shape)) if axis not in chosen]
    order = [*axes, *rest]
    joined, outer = element_count([shape[a] for a in axes]), tuple(shape[a] for a in rest)
    position = joined_position(b, list(chosen.values()), [shape[a] for a in axes])
    front = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    # Values have the layout of an indexing result: the axes of the index replace the indexed axes.
    indexed = b.shape(position)
    whole = (*outer[:front], *indexed, *outer[front:])
    values = b.expand(b.reshape(values, (*[1] * (len(whole) - b.rank(values)), *b.shape(values))), whole)
    first = range(front, front + len(indexed))
    values = b.permute(values, [*first, *(i for i in range(len(whole)) if i not in first)])
    count = element_count(indexed)
    flat = b.reshape(b.permute(x, order), (joined, *outer))
    position = b.expand(b.reshape(position, (count, *[1] * len(outer))), (count, *outer))
    reduction = "add" if accumulate else "none"
    y = b.add("scatter_elements", flat, position, b.reshape(values, (count, *outer)), axis=0, reduction=reduction)
    y = b.reshape(y, tuple(shape[a] for a in order))
    return b.permute(y, [order.index(a) for a in range(len(shape))])


def _put_by_mask(b: AtenBuilder, x: Tensor, mask: Tensor, axis: int, values: Tensor, accumulate: bool) -> Tensor:
    """There are as many values along an axis as the mask has true elements, or one for all of them."""
    values, shape = b.cast(values, b.dtype(x)), b.shape(x)
    behind = b.rank(x) - axis - b.rank(mask)
    is_counted = b.rank(values) > behind
    if is_counted and b.shape(values)[-1 - behind] == 1:
        lead, rest = b.shape(values)[: -1 - behind], b.shape(values)[b.rank(values) - behind :]
        values = b.reshape(values, (*lead, *[1] * b.rank(mask), *rest))
    elif is_counted:
        before = shape[:axis]
        values = b.expand(values, (*before, b.shape(values)[-1 - behind], *shape[axis + b.rank(mask) :]))
        values = _in_order(b, values, mask, axis)
    mask = b.reshape(mask, (*b.shape(mask), *[1] * behind))
    return b.add("where", mask, b.add("add", x, values) if accumulate else values, x)


def _in_order(b: AtenBuilder, values: Tensor, mask: Tensor, axis: int) -> Tensor:
    """Gather the values along an axis to the true elements of a mask, in order; other elements are arbitrary."""
    count = element_count(b.shape(mask))
    so_far = b.add("cumsum", b.cast(b.reshape(mask, (count,)), i64), axis=0)
    one, zero = b.scalar(1, i64), b.scalar(0, i64)
    position = b.add("where", b.reshape(mask, (count,)), b.add("sub", so_far, one), zero)
    shape = b.shape(values)
    spare = b.expand(b.scalar(0, b.dtype(values)), (*shape[:axis], 1, *shape[axis + 1 :]))  # where there is no value
    return b.add("gather", b.add("concat", values, spare, axis=axis), b.reshape(position, b.shape(mask)), axis=axis)


@aten("masked_scatter.default")
def masked_scatter(b: AtenBuilder, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    shape = broadcast(b.hint, b.shape(x), b.shape(mask))
    mask = b.expand(as_bool(b, mask), shape)
    flat = b.reshape(source, (element_count(b.shape(source)),))
    return b.add("where", mask, _in_order(b, flat, mask, 0), b.expand(x, shape))


@aten("histc.default")
def histc(b: AtenBuilder, x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Count the elements in each bin, the last of which includes its end; other elements are counted separately and cut
    off.
    """
    if min >= max:
        raise UnsupportedError(f"torch node {b.hint!r}: bins between data's ends, got {min} to {max}, expected a range")
    flat, dtype = b.reshape(x, (element_count(b.shape(x)),)), b.dtype(x)
    low, high = b.scalar(float(min), dtype), b.scalar(float(max), dtype)
    scaled = b.add("mul", b.add("sub", flat, low), b.scalar(bins, dtype))
    position = b.cast(b.add("div", scaled, b.scalar(float(max) - float(min), dtype)), i64)
    position = b.add("minimum", position, b.scalar(bins - 1, i64))
    inside = b.add("logical_and", b.add("greater_equal", flat, low), b.add("less_equal", flat, high))
    position = b.add("where", inside, position, b.scalar(bins, i64))
    counts = b.expand(b.scalar(0, dtype), (bins + 1,))
    return b.slice(_scattered(b, counts, 0, position, 1, "add"), 0, 0, bins)


@aten("col2im.default")
def col2im(
    b: AtenBuilder, x: Tensor, output_size: Sequence[int], kernel_size: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Tensor:  # fmt: skip
    """Add columns [N, C * kernel, positions] to their blocks: a transposed convolution with one-hot filters. Adjacent
    blocks are only moved.
    """
    kernel, steps = tuple(kernel_size), tuple(stride)
    taps, batched = math.prod(kernel), b.shape(x)[:-2] or (1,)
    channels = b.static(b.shape(x)[-2], "the channel count") // taps
    sizes = [b.static(size, "an image") for size in output_size]
    counts, extra = [], []
    for n, k, d, p, s in zip(sizes, kernel, dilation, padding, steps, strict=True):
        room = n + 2 * p - d * (k - 1) - 1
        counts.append(room // s + 1)
        extra.append(room % s)
    if steps == kernel and not any((*padding, *extra)) and set(dilation) == {1}:
        blocks = b.reshape(x, (*batched, channels, *kernel, *counts))
        return b.reshape(b.permute(blocks, (0, 1, 4, 2, 5, 3)), b.result.shape)
    one = np.tile(np.eye(taps).reshape(taps, 1, *kernel), (channels, 1, 1, 1)).astype(b.dtype(x).numpy)
    y = b.add(
        "conv_transpose", b.reshape(x, (*batched, channels * taps, *counts)), b.constant(one), None, strides=steps,
        pads=(*padding, *padding), dilations=tuple(dilation), groups=channels, output_padding=tuple(extra),
    )  # fmt: skip
    return b.reshape(y, b.result.shape)

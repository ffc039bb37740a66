"""Rules for moving elements, and for new tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.errors import UnsupportedError
from ingot.ir.dim import Expr, Known, floordiv, maximum, minimum
from ingot.ir.dtype import DType, f32, i64
from ingot.load.aten.builder import AtenBuilder, Number, Tensor, element_count
from ingot.load.aten.registry import aten


@aten(
    "view.default", "_unsafe_view.default", "reshape.default", "view_as.default",
    "reshape_as.default", "flatten.using_ints", "unflatten.int", "ravel.default",
    "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims",

)  # fmt: skip
def reshape(b: AtenBuilder, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Handle every op that only regroups axes: torch has computed the shape."""
    return b.reshape(x, b.result.shape)


@aten("expand.default", "expand_as.default", "broadcast_to.default")
def expand(b: AtenBuilder, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return b.expand(x, b.result.shape)


@aten(
    "to.dtype", "to.dtype_layout", "to.device", "_to_copy.default", "type_as.default",
    "clone.default", "contiguous.default", "alias.default",
    "lift_fresh.default", "lift_fresh_copy.default", "lift.default", "positive.default",
    "prims.convert_element_type.default", "resolve_conj.default", "resolve_neg.default",
)  # fmt: skip
def convert(b: AtenBuilder, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Handle copies, aliases and casts: only the dtype can differ."""
    return b.cast(x, b.result.dtype)


@aten("detach.default")
def detach(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.add("detach", x) if b.trains else x


@aten("dropout.default")
def dropout(b: AtenBuilder, x: Tensor, p: float, train: bool) -> Tensor:
    if b.drops and 0 < p < 1:
        return b.add("dropout", x, None, None, rate=float(p), seed=0, stream=0)
    return other_dropout(b, x, p, train)


@aten("feature_dropout.default", "alpha_dropout.default")
def other_dropout(b: AtenBuilder, x: Tensor, p: float, train: bool) -> Tensor:
    if (train or b.drops) and p:
        raise UnsupportedError(f"torch node {b.hint!r}: dropout in training mode, expected module.eval()")
    return x


@aten("native_dropout.default")
def native_dropout(b: AtenBuilder, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, None]:
    return dropout(b, x, p, train is not False), None


# -- axes


@aten("permute.default")
def permute(b: AtenBuilder, x: Tensor, dims: Sequence[int]) -> Tensor:
    return b.permute(x, [b.axis(x, d) for d in dims])


@aten("transpose.int", "swapaxes.default", "swapdims.default")
def transpose(b: AtenBuilder, x: Tensor, dim0: int, dim1: int) -> Tensor:
    axes = list(range(b.rank(x)))
    if not axes:
        return x
    i, j = b.axis(x, dim0), b.axis(x, dim1)
    axes[i], axes[j] = axes[j], axes[i]
    return b.permute(x, axes)


@aten("t.default", "numpy_T.default")
def t(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.permute(x, range(b.rank(x))[::-1])


@aten("mT.default", "adjoint.default", "matrix_H.default", "mH.default")
def matrix_transpose(b: AtenBuilder, x: Tensor) -> Tensor:
    return transpose(b, x, -2, -1)


@aten("movedim.intlist", "moveaxis.intlist")
def movedim(b: AtenBuilder, x: Tensor, source: Sequence[int], destination: Sequence[int]) -> Tensor:
    moved = dict(zip((b.axis(x, d) for d in destination), (b.axis(x, s) for s in source), strict=True))
    rest = iter(a for a in range(b.rank(x)) if a not in moved.values())
    return b.permute(x, [moved[i] if i in moved else next(rest) for i in range(b.rank(x))])


@aten("movedim.int", "moveaxis.int")
def movedim_int(b: AtenBuilder, x: Tensor, source: int, destination: int) -> Tensor:
    return movedim(b, x, [source], [destination])


# -- parts


@aten("slice.Tensor")
def slice(
    b: AtenBuilder, x: Tensor, dim: int = 0, start: Known | None = None, end: Known | None = None, step: int = 1
) -> Tensor:
    """torch has clamped the bounds: the result's size determines the stop."""
    axis = b.axis(x, dim)
    first = _clamped(start or 0, b.shape(x)[axis])
    length = b.result.shape[axis]
    if b.is_of_data(length):
        size = b.shape(x)[axis]
        first = minimum(first, size)
        return b.slice(
            x, axis, first, maximum(minimum(size if end is None else _clamped(end, size), size), first), step
        )
    return b.slice(x, axis, first, first + (length - 1) * step + 1 if length != 0 else first, step)


def _clamped(position: Known, size: Known) -> Known:
    if isinstance(position, int) and position < 0:
        position = size + position
    if isinstance(position, int) and isinstance(size, int):
        return max(0, min(position, size))
    return position


@aten("select.int")
def select(b: AtenBuilder, x: Tensor, dim: int, index: Known) -> Tensor:
    axis = b.axis(x, dim)
    position = index + b.shape(x)[axis] if isinstance(index, int) and index < 0 else index
    part = b.slice(x, axis, position, position + 1)
    return b.reshape(part, b.result.shape)


@aten("narrow.default", "narrow_copy.default")
def narrow(b: AtenBuilder, x: Tensor, dim: int, start: Known, length: Known) -> Tensor:
    axis = b.axis(x, dim)
    first = _clamped(start, b.shape(x)[axis])
    return b.slice(x, axis, first, first + length)


@aten(
    "split.Tensor", "split.sizes", "split_with_sizes.default",
    "chunk.default", "unsafe_split.Tensor", "unsafe_chunk.default", "unsafe_split_with_sizes.default",
    "tensor_split.sections", "tensor_split.indices",
)  # fmt: skip
def split(b: AtenBuilder, x: Tensor, sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Slice x consecutively, with the sizes that torch computed."""
    axis, parts, start = b.axis(x, dim), [], 0
    for part in b.result:
        stop = start + part.shape[axis]
        parts.append(b.slice(x, axis, start, stop))
        start = stop
    return tuple(parts)


@aten("unbind.int")
def unbind(b: AtenBuilder, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis = b.axis(x, dim)
    return tuple(b.reshape(b.slice(x, axis, i, i + 1), part.shape) for i, part in enumerate(b.result))


@aten("diagonal.default")
def diagonal(b: AtenBuilder, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Take every (columns+1)-th element of the flattened matrix."""
    i, j = b.axis(x, dim1), b.axis(x, dim2)
    rest = [a for a in range(b.rank(x)) if a not in (i, j)]
    matrix = b.permute(x, [*rest, i, j])
    *leading, rows, columns = b.shape(matrix)
    columns = b.static(columns, "the diagonal's matrix")
    flat = b.reshape(matrix, (*leading, rows * columns))
    length = b.static(b.result.shape[-1], "the diagonal")
    start = offset if offset >= 0 else -offset * columns
    if length == 0:
        return b.slice(flat, len(leading), 0, 0)
    return b.slice(flat, len(leading), start, start + (length - 1) * (columns + 1) + 1, columns + 1)


# -- joining


@aten("cat.default", "concat.default", "concatenate.default")
def cat(b: AtenBuilder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """torch allows an empty vector in any concatenation."""
    remaining = [b.cast(x, b.result.dtype) for x in tensors if b.shape(x) != (0,) or len(b.result.shape) == 1]
    return remaining[0] if len(remaining) == 1 else b.add("concat", *remaining, axis=b.axis(remaining[0], dim))


@aten("stack.default")
def stack(b: AtenBuilder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    axis = dim % len(b.result.shape)
    shape = list(b.result.shape)
    shape[axis] = 1
    parts = [b.reshape(b.cast(x, b.result.dtype), shape) for x in tensors]
    return parts[0] if len(parts) == 1 else b.add("concat", *parts, axis=axis)


@aten("repeat.default", "tile.default")
def repeat(b: AtenBuilder, x: Tensor, repeats: Sequence[Known]) -> Tensor:
    """Insert an axis before each repeated one, expand it and merge both."""
    rank = len(b.result.shape)
    shape = (1,) * (rank - b.rank(x)) + b.shape(x)
    counts = (1,) * (rank - len(repeats)) + tuple(repeats)
    split_shape = [d for count, size in zip(counts, shape, strict=True) for d in ((1, size) if count != 1 else (size,))]
    full_shape = [
        d for count, size in zip(counts, shape, strict=True) for d in ((count, size) if count != 1 else (size,))
    ]
    return b.reshape(b.expand(b.reshape(x, split_shape), full_shape), b.result.shape)


@aten("repeat_interleave.self_int")
def repeat_interleave(b: AtenBuilder, x: Tensor, repeats: Known, dim: int | None = None, **_: Any) -> Tensor:
    if dim is None:
        x, dim = b.reshape(x, (element_count(b.shape(x)),)), 0
    axis, shape = b.axis(x, dim), b.shape(x)
    wide = b.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    return b.reshape(b.expand(wide, (*shape[: axis + 1], repeats, *shape[axis + 1 :])), b.result.shape)


@aten("flip.default")
def flip(b: AtenBuilder, x: Tensor, dims: Sequence[int]) -> Tensor:
    shape, flipped = b.shape(x), {b.axis(x, d) for d in dims}
    if not shape or not flipped:
        return x
    return b.add(
        "slice",
        x,
        starts=tuple(size - 1 if a in flipped else 0 for a, size in enumerate(shape)),
        stops=tuple(-1 if a in flipped else size for a, size in enumerate(shape)),
        steps=tuple(-1 if a in flipped else 1 for a in range(len(shape))),
    )


@aten("roll.default")
def roll(b: AtenBuilder, x: Tensor, shifts: Sequence[Known], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        flat = b.reshape(x, (element_count(b.shape(x)),))
        return b.reshape(_rolled(b, flat, shifts[0], 0), b.shape(x))
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(b, x, shift, b.axis(x, dim))
    return x


def _rolled(b: AtenBuilder, x: Tensor, shift: Known, axis: int) -> Tensor:
    size = b.shape(x)[axis]
    if size == 0:
        return x
    first = size - (shift - floordiv(shift, size) * size)
    if first == size:
        return x
    return b.add("concat", b.slice(x, axis, first, size), b.slice(x, axis, 0, first), axis=axis)


@aten("slice_scatter.default")
def slice_scatter(
    b: AtenBuilder,
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: Known | None = None,
    end: Known | None = None,
    step: int = 1,
) -> Tensor:
    axis, part = b.axis(x, dim), b.cast(src, b.dtype(x))
    first = _clamped(start or 0, b.shape(x)[axis])
    return _placed(b, x, part if step == 1 else _interleaved(b, x, part, axis, first, step), axis, first)


def _interleaved(b: AtenBuilder, x: Tensor, part: Tensor, axis: int, first: Known, step: int) -> Tensor:
    """Return x from `first` on, in groups of `step` elements, the first of each group replaced by one of `part`."""
    shape, count = list(b.shape(x)), b.shape(part)[axis]
    high = tuple((step - 1) * (i == axis) for i in range(len(shape)))
    zero = {"f": 0.0, "b": False}.get(b.dtype(x).kind, 0)
    padded = b.add("pad", x, low=(0,) * len(shape), high=high, value=zero)  # the last group may be cut short
    before, behind = shape[:axis], shape[axis + 1 :]
    groups = b.reshape(b.slice(padded, axis, first, first + count * step), (*before, count, step, *behind))
    rest = b.slice(groups, axis + 1, 1, step)
    output = b.add("concat", b.reshape(part, (*before, count, 1, *behind)), rest, axis=axis + 1)
    whole = b.reshape(output, (*before, count * step, *behind))
    return b.slice(whole, axis, 0, minimum(count * step, shape[axis] - first))


@aten("select_scatter.default")
def select_scatter(b: AtenBuilder, x: Tensor, src: Tensor, dim: int, index: Known) -> Tensor:
    axis, shape = b.axis(x, dim), b.shape(x)
    position = index + shape[axis] if isinstance(index, int) and index < 0 else index
    part = b.reshape(b.cast(src, b.dtype(x)), (*shape[:axis], 1, *shape[axis + 1 :]))
    return _placed(b, x, part, axis, position)


def _placed(b: AtenBuilder, x: Tensor, part: Tensor, axis: int, first: Known) -> Tensor:
    """Overwrite x with `part` from `first` on."""
    size, last = b.shape(x)[axis], first + b.shape(part)[axis]
    pieces = [part]
    if first != 0:
        pieces.insert(0, b.slice(x, axis, 0, first))
    if last != size:
        pieces.append(b.slice(x, axis, last, size))
    return part if len(pieces) == 1 else b.add("concat", *pieces, axis=axis)


@aten("copy.default")
def copy(b: AtenBuilder, x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return b.expand(b.cast(src, b.dtype(x)), b.shape(x))


# -- borders and triangles


@aten("constant_pad_nd.default")
def constant_pad(b: AtenBuilder, x: Tensor, pad: Sequence[Known], value: Number = 0) -> Tensor:
    """`pad` counts from the last axis; a negative amount crops."""
    rank = b.rank(x)
    low: list[Known] = [0] * rank
    high = list(low)
    for i in range(len(pad) // 2):
        axis = rank - 1 - i
        first, last, size = pad[2 * i], pad[2 * i + 1], b.shape(x)[axis]
        x = b.slice(x, axis, maximum(-first, 0), size + minimum(last, 0))
        low[axis], high[axis] = maximum(first, 0), maximum(last, 0)
    if not any(low) and not any(high):
        return x
    if isinstance(value, Expr):
        raise UnsupportedError(f"torch node {b.hint!r}: a pad value is symbolic, got {value}, expected a number")
    number = {"f": float, "b": bool}.get(b.dtype(x).kind, int)
    return b.add("pad", x, low=tuple(low), high=tuple(high), value=number(value))


@aten("pad.default")
def pad(b: AtenBuilder, x: Tensor, pad: Sequence[Known], mode: str = "constant", value: Number | None = None) -> Any:
    if mode == "circular":
        return _circular_pad(b, x, pad)
    return constant_pad(b, x, pad, value or 0) if mode == "constant" else NotImplemented


def _circular_pad(b: AtenBuilder, x: Tensor, pad: Sequence[Known]) -> Tensor:
    """Continue each end with the elements of the other one, at most one full period, as torch does; a negative amount
    crops first.
    """
    for i in range(len(pad) // 2):
        axis = b.rank(x) - 1 - i
        first, last = pad[2 * i], pad[2 * i + 1]
        x = b.slice(x, axis, maximum(-first, 0), b.shape(x)[axis] + minimum(last, 0))
        before, after, size = maximum(first, 0), maximum(last, 0), b.shape(x)[axis]
        parts = [b.slice(x, axis, size - before, size)] if before != 0 else []
        parts += [x, *([b.slice(x, axis, 0, after)] if after != 0 else [])]
        x = b.add("concat", *parts, axis=axis) if len(parts) > 1 else x
    return x


@aten("tril.default")
def tril(b: AtenBuilder, x: Tensor, diagonal: int = 0) -> Tensor:
    return b.add("trilu", x, k=diagonal, upper=False)


@aten("triu.default")
def triu(b: AtenBuilder, x: Tensor, diagonal: int = 0) -> Tensor:
    return b.add("trilu", x, k=diagonal, upper=True)


# -- from nothing


@aten("full.default", "new_full.default", "full_like.default")
def full(b: AtenBuilder, x: Any, *rest: Any, **options: Any) -> Tensor:
    """Handle `full(size, value)`, `new_full(x, size, value)`, `full_like(x, value)`: the value comes last."""
    value = rest[-1] if rest else options["fill_value"]
    return b.expand(b.scalar(value, b.result.dtype), b.result.shape)


@aten("fill.Scalar", "fill.Tensor")
def fill(b: AtenBuilder, x: Tensor, value: Tensor | Number) -> Tensor:
    return b.expand(b.tensor(value, b.dtype(x)), b.shape(x))


@aten(
    "zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default",
    "new_empty.default", "new_empty_strided.default", "empty_strided.default", "empty_permuted.default", "zero.default",
)  # fmt: skip
def zeros(b: AtenBuilder, *_: Any, **__: Any) -> Tensor:
    return b.expand(b.scalar(0, b.result.dtype), b.result.shape)


@aten("ones.default", "ones_like.default", "new_ones.default")
def ones(b: AtenBuilder, *_: Any, **__: Any) -> Tensor:
    return b.expand(b.scalar(1, b.result.dtype), b.result.shape)


@aten("scalar_tensor.default")
def scalar_tensor(b: AtenBuilder, value: Number, **_: Any) -> Tensor:
    return b.scalar(value, b.result.dtype)


@aten("arange.default")
def arange(b: AtenBuilder, end: Number, **_: Any) -> Tensor:
    return arange_step(b, 0, end, 1)


@aten("arange.start")
def arange_start(b: AtenBuilder, start: Number, end: Number, **_: Any) -> Tensor:
    return arange_step(b, start, end, 1)


@aten("arange.start_step")
def arange_step(b: AtenBuilder, start: Number, end: Number, step: Number = 1, **_: Any) -> Tensor:
    """The result's size is known, so `end` is not needed; a symbolic start is added as data."""
    dtype = b.result.dtype
    wide = f32 if dtype.kind == "f" else i64
    kind = float if wide is f32 else int
    (length,) = b.result.shape
    if isinstance(start, (int, float)):
        return b.cast(b.add("iota", length=length, start=kind(start), step=kind(step), dtype=wide), dtype)  # type: ignore[arg-type]
    ramp = b.cast(b.add("iota", length=length, start=kind(0), step=kind(step), dtype=wide), dtype)  # type: ignore[arg-type]
    return b.add("add", ramp, b.scalar(start, dtype))


@aten("eye.default", "eye.m")
def eye(b: AtenBuilder, *_: Any, **__: Any) -> Tensor:
    rows, columns = b.result.shape
    return identity(b, rows, columns, b.result.dtype)


def identity(b: AtenBuilder, rows: Known, columns: Known, dtype: DType) -> Tensor:
    """Return a matrix with ones on its diagonal."""
    row = b.reshape(b.add("iota", length=rows, start=0, step=1, dtype=i64), (rows, 1))
    column = b.add("iota", length=columns, start=0, step=1, dtype=i64)
    return b.cast(b.add("equal", row, column), dtype)


@aten("as_strided.default", "as_strided_copy.default")
def as_strided(
    b: AtenBuilder, x: Tensor, size: Sequence[Known], stride: Sequence[Known], storage_offset: Known | None = None
) -> Tensor:
    """Gather strided elements of the memory of x."""
    return b.add("gather", _memory(b, x), b.constant(_offsets(b, size, stride, storage_offset)), axis=0)


@aten("as_strided_scatter.default")
def as_strided_scatter(
    b: AtenBuilder, x: Tensor, source: Tensor, size: Sequence[Known], stride: Sequence[Known],
    storage_offset: Known | None = None,
) -> Tensor:  # fmt: skip
    """Replace strided elements of the memory of x."""
    locations = _offsets(b, size, stride, storage_offset).reshape(-1)
    updates = b.reshape(b.cast(source, b.dtype(x)), locations.shape)
    output = b.add("scatter_elements", _memory(b, x), b.constant(locations), updates, axis=0, reduction="none")
    return b.reshape(output, b.shape(x))


@aten("resize.default")
def resize(b: AtenBuilder, x: Tensor, size: Sequence[Known], **_: Any) -> Tensor:
    """Return the first elements of memory in another shape, padded with zeros."""
    count, wanted = (b.static(element_count(dims), "a size") for dims in (b.shape(x), size))
    flat = b.slice(_memory(b, x), 0, 0, min(count, wanted))
    if wanted > count:
        flat = b.add("concat", flat, b.expand(b.scalar(0, b.dtype(x)), (wanted - count,)), axis=0)
    return b.reshape(flat, size)


def _memory(b: AtenBuilder, x: Tensor) -> Tensor:
    """Flatten the call's first operand to its memory order. Raises UnsupportedError unless it covers all of its
    memory.
    """
    fake = b.fakes()[0][0]
    if not fake.is_contiguous() or fake.storage_offset():
        raise UnsupportedError(
            f"torch node {b.hint!r}: strides of a view, got {fake.stride()}, expected a whole tensor"
        )
    return b.reshape(x, (element_count(b.shape(x)),))


def _offsets(b: AtenBuilder, size: Sequence[Known], stride: Sequence[Known], offset: Known | None) -> np.ndarray:
    """Return the memory positions of strided elements, i64 of a shape."""
    location = np.array(b.static(offset or 0, "an offset"), np.int64)
    for length, step in zip(size, stride, strict=True):
        count, each = b.static(length, "a size"), b.static(step, "a stride")
        location = location[..., None] + np.arange(count) * each
    return location


@aten("diagonal_scatter.default")
def diagonal_scatter(
    b: AtenBuilder, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """Replace the elements of a diagonal of x."""
    sizes = [b.static(size, "a size") for size in b.shape(x)]
    locations = np.arange(int(np.prod(sizes))).reshape(sizes).diagonal(offset, dim1, dim2)
    flat = b.reshape(x, (int(np.prod(sizes)),))
    updates = b.reshape(b.expand(b.cast(source, b.dtype(x)), locations.shape), (locations.size,))
    output = b.add(
        "scatter_elements", flat, b.constant(locations.reshape(-1).copy()), updates, axis=0, reduction="none"
    )
    return b.reshape(output, sizes)

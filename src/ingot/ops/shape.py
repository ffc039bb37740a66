"""Ops that move, repeat or clear elements. Attributes that are dims may be symbolic; the interpreter binds them."""

from typing import Annotated, Any

import numpy as np

from ingot.errors import InputError, ShapeError
from ingot.ir.dim import Dim, floordiv
from ingot.ir.dtype import boolean, i64
from ingot.ir.graph import TensorType, Type, UnrankedType
from ingot.ops.define import Ints, Sizes, broadcast_shapes, expect_numbers, op, product, sample, unify


def _infer_reshape(x, *, shape):
    if sum(dim is None for dim in shape) > 1:
        raise ShapeError(f"reshape: more than one unknown dim, got {list(shape)}")
    before, after = product(x.shape), product(shape)
    if any(isinstance(dim, int) and dim < 0 for dim in shape):
        raise ShapeError(f"reshape: negative dim, got {list(shape)}")
    if None in shape and before is not None:
        known = product([dim for dim in shape if dim is not None])
        if isinstance(before, int) and isinstance(known, int) and known > 0 and before % known == 0:
            shape = tuple(before // known if dim is None else dim for dim in shape)
        elif isinstance(before, int) and isinstance(known, int):
            raise ShapeError(f"reshape: bad number of elements, got {x} as {list(shape)}")
    if before is not None and after is not None:
        unify("reshape: number of elements of {} as {}", before, after, x, list(shape))
    return TensorType(x.dtype, tuple(shape))


@op(
    infer=_infer_reshape,
    view=True,
    samples=[
        sample("x[2,5,6]", shape=(10, 6)),
        sample("x[2,5,6]", shape=(2, 5, 2, 3)),
        sample("x[]", shape=(1, 1)),
        sample("x[1,1]", shape=()),
        sample("x[0,3]", shape=(3, 0)),
        sample("x:i64[6]", shape=(2, 1, 3)),
        sample("x:bool[2,2,1,3,2]", shape=(24,)),
    ],
)
def reshape(x, *, shape: Annotated[Any, tuple[Dim, ...]]):
    """The same elements in row-major order, in another shape; one dim may be unknown (none)."""
    return np.reshape(x, tuple(-1 if dim is None else dim for dim in shape))


def _infer_permute(x, *, axes):
    if sorted(axes) != list(range(x.rank)):
        raise ShapeError(f"permute: bad axes, got {list(axes)}, expected each of 0..{x.rank - 1} once")
    return TensorType(x.dtype, tuple(x.shape[axis] for axis in axes))


@op(
    infer=_infer_permute,
    view=True,
    samples=[
        sample("x[2,5,7]", axes=(0, 2, 1)),
        sample("x[2,3,5,4]", axes=(0, 2, 1, 3)),
        sample("x[2,3,2,1,5]", axes=(4, 2, 0, 3, 1)),
        sample("x[33,17]", axes=(1, 0)),
        sample("x[]", axes=()),
        sample("x[0,3]", axes=(1, 0)),
        sample("x:i64[3,4]", axes=(1, 0)),
        sample("x:bool[3,4]", axes=(1, 0)),
    ],
)
def permute(x, *, axes: Ints):
    """Axis i of the result is axis axes[i] of x."""
    return np.transpose(x, axes)


def _infer_slice(x, *, starts, stops, steps):
    if not len(starts) == len(stops) == len(steps) == x.rank or 0 in steps:
        got = f"starts {list(starts)}, stops {list(stops)}, steps {list(steps)}"
        raise ShapeError(f"slice: bad ranges, got {got} for {x}, expected one per axis, no step 0")
    return TensorType(x.dtype, tuple(map(_slice_dim, x.shape, starts, stops, steps)))


def _slice_dim(dim, start, stop, step):
    if start is None or stop is None:
        return None
    if isinstance(dim, int) and isinstance(start, int) and isinstance(stop, int):
        # Backwards over an empty dim, the start is dim - 1 = -1.
        lowest, last = (0, dim) if step > 0 else (-1, max(dim - 1, 0))
        if not ((0 if dim else lowest) <= start <= last and lowest <= stop <= last):
            raise ShapeError(f"slice: out of range, got {start}:{stop}:{step}, expected it within a dim of {dim}")
    if start == 0 and stop == dim and step == 1:
        return dim
    span = stop - start if step > 0 else start - stop
    length = floordiv(span + (abs(step) - 1), abs(step))
    return max(length, 0) if isinstance(length, int) else length


@op(
    infer=_infer_slice,
    view=True,
    samples=[
        sample("x[5,7]", starts=(1, 0), stops=(4, 7), steps=(1, 1)),
        sample("x[2,5,7]", starts=(0, 0, 1), stops=(2, 5, 7), steps=(1, 2, 3)),
        sample("x[5,7]", starts=(4, 6), stops=(-1, 0), steps=(-1, -2)),
        sample("x[5]", starts=(3,), stops=(3,), steps=(1,)),
        sample("x[5]", starts=(4,), stops=(2,), steps=(1,)),
        sample("x[]", starts=(), stops=(), steps=()),
        sample("x[0,3]", starts=(0, 1), stops=(0, 3), steps=(1, 1)),
        sample("x[0,3]", starts=(-1, 2), stops=(-1, -1), steps=(-1, -1)),
        sample("x:i64[9]", starts=(1,), stops=(9,), steps=(4,)),
    ],
)
def slice_(x, *, starts: Sizes, stops: Sizes, steps: Ints):
    """x[start:stop:step] on every axis, with 0 <= start; a stop of -1 under a negative step reaches index 0.

    Backwards over a dim of 0, a start may be -1, which is `dim - 1` there. A symbolic range is assumed to satisfy start
    <= stop (for a negative step, stop <= start).
    """
    ranges = zip(starts, stops, steps, strict=True)
    return x[(..., *(slice(start, None if stop < 0 else stop, step) for start, stop, step in ranges))]


def _infer_concat(*xs, axis):
    if not xs:
        raise ShapeError("concat: no operands, expected at least 1")
    first = xs[0]
    if any(x.rank != first.rank or x.dtype is not first.dtype for x in xs) or not 0 <= axis < first.rank:
        raise ShapeError(f"concat: bad operands, got {', '.join(map(str, xs))} on axis {axis}")
    dims = list(first.shape)
    where = f"concat of {', '.join(['{}'] * len(xs))} on axis {axis}"
    for x in xs[1:]:
        for i, dim in enumerate(x.shape):
            if i != axis:
                dims[i] = unify(where, dims[i], dim, *xs)
            else:
                dims[i] = None if dim is None or dims[i] is None else dims[i] + dim
    return TensorType(first.dtype, tuple(dims))


@op(
    computes=False,
    infer=_infer_concat,
    samples=[
        sample("a[2,5,7] b[2,3,7]", axis=1),
        sample("a[2,5] b[2,1] c[2,9]", axis=1),
        sample("a[2,5] b[3,5]", axis=0),
        sample("a[3]", axis=0),
        sample("a[0,3] b[2,3]", axis=0),
        sample("a[2,1,2,1,3] b[2,1,2,1,4]", axis=4),
        sample("a:i64[2] b:i64[3]", axis=0),
        sample("a:bool[2,2] b:bool[2,3]", axis=1),
    ],
)
def concat(*xs, axis: int):
    """The operands concatenated along an axis."""
    return np.concatenate(xs, axis)


def _infer_expand(x, *, shape):
    result = broadcast_shapes("expand", x.shape, tuple(shape))
    if len(result) != len(shape) or any(
        b == 1 and a != 1 and isinstance(a, int) for a, b in zip(result, shape, strict=True)
    ):
        raise ShapeError(f"expand: does not broadcast, got {x}, expected {list(shape)}")
    return TensorType(x.dtype, tuple(r if d is None else d for d, r in zip(shape, result, strict=True)))


@op(
    infer=_infer_expand,
    view=True,
    samples=[
        sample("x[5,1]", shape=(5, 7)),
        sample("x[1,7]", shape=(2, 5, 7)),
        sample("x[]", shape=(3,)),
        sample("x[2,3]", shape=(2, 3)),
        sample("x[1,3]", shape=(0, 3)),
        sample("x:i64[1,5]", shape=(3, 5)),
        sample("x:bool[1,1,5]", shape=(2, 3, 5)),
        sample("x[2,1,1,3]", shape=(2, 2, 4, 3)),
    ],
)
def expand(x, *, shape: Sizes):
    """x broadcast to a shape."""
    return np.broadcast_to(x, shape)


def _infer_pad(x, *, low, high, value):
    amounts = [*low, *high]
    if not len(low) == len(high) == x.rank or any(isinstance(n, int) and n < 0 for n in amounts):
        raise ShapeError(f"pad: bad amounts, got {list(low)} and {list(high)} for {x}, expected 0 or more per axis")
    expect_numbers("pad", x.dtype, value)
    padded = zip(x.shape, low, high, strict=True)
    return TensorType(x.dtype, tuple(None if d is None else d + l + h for d, l, h in padded))


@op(
    computes=False,
    infer=_infer_pad,
    samples=[
        sample("x[2,5]", low=(1, 0), high=(0, 2), value=0.0),
        sample("x[2,3,4,5]", low=(0, 0, 1, 1), high=(0, 0, 1, 1), value=-1.5),
        sample("x[3]", low=(0,), high=(0,), value=0.0),
        sample("x[]", low=(), high=(), value=0.0),
        sample("x[0,3]", low=(2, 0), high=(0, 1), value=3.0),
        sample("x:i64[5]", low=(2,), high=(1,), value=7),
        sample("x:bool[2,2]", low=(0, 1), high=(1, 0), value=True),
    ],
)
def pad(x, *, low: Sizes, high: Sizes, value: float | bool):
    """x with `low` and `high` elements of a value added on each axis."""
    return np.pad(x, list(zip(low, high, strict=True)), constant_values=value) if x.ndim else x


def _infer_trilu(x, *, k, upper):
    if x.rank < 2:
        raise ShapeError(f"trilu: rank too low, got {x}, expected 2 or more")
    return x


def _expand_trilu(g, x, *, k, upper):
    m, n = g.type(x).shape[-2:]
    rows = g.reshape(g.iota(length=m, start=0, step=1, dtype=i64), shape=(m, 1))
    columns = g.iota(length=n, start=0, step=1, dtype=i64)
    compared = (g.greater_equal if upper else g.less_equal)(g.sub(columns, rows), k)
    return g.where(compared, x, g.constant(0, g.type(x).dtype))


@op(
    infer=_infer_trilu,
    inplace=(0,),
    expand=_expand_trilu,
    samples=[
        sample("x[5,5]", k=0, upper=False),
        sample("x[5,5]", k=1, upper=True),
        sample("x[2,3,4,7]", k=-1, upper=False),
        sample("x[2,7,3]", k=-2, upper=True),
        sample("x[0,3]", k=0, upper=True),
        sample("x[1,1]", k=1, upper=True),
        sample("x:bool[4,5]", k=0, upper=False),
        sample("x:i64[4,5]", k=9, upper=True),
        sample("x[3,2]", k=2**63 - 1, upper=False),
        sample("x[3,2]", k=-(2**63), upper=False),
        sample("x[3,2]", k=-(2**63), upper=True),
    ],
)
def trilu(x, *, k: int, upper: bool):
    """The triangle of the last two dims on and above (`upper`) or on and below diagonal k; the rest is 0."""
    k = max(-x.shape[-2], min(k, x.shape[-1]))  # beyond the dims every diagonal has the same effect
    return np.triu(x, k) if upper else np.tril(x, k)


def _expect_tensor(where: str, type: Type) -> TensorType | UnrankedType:
    if not isinstance(type, (TensorType, UnrankedType)):
        raise ShapeError(f"{where}: got {type}, expected a tensor")
    return type


def _infer_has_rank(x, *, rank):
    _expect_tensor("has_rank", x)
    return TensorType(boolean, ())


@op(infer=_infer_has_rank, any_type=True, computes=False, samples=[])
def has_rank(x, *, rank: int):
    """Whether x has this number of dims."""
    return np.array(x.ndim == rank)


def _infer_as_rank(x, *, rank):
    _expect_tensor("as_rank", x)
    if isinstance(x, TensorType) and x.rank != rank:
        raise ShapeError(f"as_rank: wrong rank, got {x}, expected {rank}")
    return x if isinstance(x, TensorType) else TensorType(x.dtype, (None,) * rank)


@op(infer=_infer_as_rank, any_type=True, computes=False, samples=[])
def as_rank(x, *, rank: int):
    """x; another number of dims is an error of the run."""
    if x.ndim != rank:
        raise InputError(f"as_rank: wrong rank, got {list(x.shape)}, expected {rank}")
    return x


def _infer_squeeze(x):
    if isinstance(_expect_tensor("squeeze", x), TensorType) and x.is_static:
        return TensorType(x.dtype, tuple(dim for dim in x.shape if dim != 1))
    return UnrankedType(x.dtype)


@op(infer=_infer_squeeze, any_type=True, computes=False, samples=[])
def squeeze(x):
    """x without its dims of 1; if dims are only known at run time, so is the rank."""
    return np.squeeze(x)

"""Reductions. Sums of f32 are accumulated in float64 and rounded once."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ingot.errors import InputError, ShapeError
from ingot.ir.dim import Dim
from ingot.ir.dtype import i64
from ingot.ir.graph import OPS, Index, TensorType
from ingot.ops.define import Ints, expect_kind, op, sample


def _reduced(name: str, x: TensorType, axes: tuple[int, ...], keepdims: bool) -> tuple[Dim, ...]:
    if len(set(axes)) != len(axes) or not all(0 <= axis < x.rank for axis in axes):
        raise ShapeError(f"{name}: bad axes, got {list(axes)}, expected distinct ones in 0..{x.rank - 1}")
    if keepdims:
        return tuple(1 if i in axes else dim for i, dim in enumerate(x.shape))
    return tuple(dim for i, dim in enumerate(x.shape) if i not in axes)


def _reduce(name: str, function: Callable[..., Any], doc: str, kinds: str = "fiu", **declaration: Any) -> None:
    def infer(x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> TensorType:
        expect_kind(name, x, kinds)
        return TensorType(x.dtype, _reduced(name, x, axes, keepdims))

    def reference(x, *, axes: Ints, keepdims: bool):
        return function(x, axes, keepdims).astype(x.dtype)

    reference.__doc__ = f"{doc} No axes: x itself."
    samples = [
        sample("x[2,5,67]", axes=(2,), keepdims=False),
        sample("x[2,5,67]", axes=(2,), keepdims=True),
        sample("x[2,5,7]", axes=(0,), keepdims=False),
        sample("x[2,5,7]", axes=(1,), keepdims=True),
        sample("x[2,3,4,5]", axes=(0, 2), keepdims=False),
        sample("x[2,3,4,5]", axes=(1, 2), keepdims=True),
        sample("x[33]", axes=(0,), keepdims=False),
        sample("x[2,3,2,1,5]", axes=(0, 1, 2, 3, 4), keepdims=False),
        sample("x[3,0]", axes=(1,), keepdims=False),
        sample("x[0,3]", axes=(1,), keepdims=True),
        sample("x[2,3]", axes=(), keepdims=True),
    ]
    if "i" in kinds:
        samples.append(sample("x:i64>-3<4[3,5]", axes=(1,), keepdims=False))
    op(name=name, infer=infer, samples=samples, **declaration)(reference)


def _accumulator(x: np.ndarray) -> np.dtype:
    return np.dtype(np.float64) if x.dtype.kind == "f" else x.dtype


def _sum(x, axes, keepdims):
    return np.sum(x, axes, _accumulator(x), keepdims=keepdims)


def _mean(x, axes, keepdims):
    count = np.prod([x.shape[axis] for axis in axes], dtype=np.float64)
    return _sum(x, axes, keepdims) / count


def _prod(x, axes, keepdims):
    return np.prod(x, axes, _accumulator(x), keepdims=keepdims)


def lowest(dtype: np.dtype) -> Any:
    """Return the neutral element of maximum."""
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind not in "iu" else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    """Return the neutral element of minimum."""
    if dtype.kind == "b":
        return True
    return np.inf if dtype.kind not in "iu" else np.iinfo(dtype).max


def _max(x, axes, keepdims):
    return np.max(x, axes, keepdims=keepdims, initial=lowest(x.dtype))


def _min(x, axes, keepdims):
    return np.min(x, axes, keepdims=keepdims, initial=highest(x.dtype))


_reduce("reduce_sum", _sum, "Sum over axes; integers wrap, an empty sum is 0.", tolerance=None)
_reduce("reduce_mean", _mean, "Mean over axes; an empty mean is NaN.", kinds="f")
_reduce("reduce_prod", _prod, "Product over axes; integers wrap, an empty product is 1.", domain=(0.5, 1.5))
_reduce("reduce_max", _max, "Largest over axes, NaN if any is; if empty, -inf or the smallest integer.", kinds="fiub")
_reduce("reduce_min", _min, "Smallest over axes, NaN if any is; if empty, inf or the largest integer.", kinds="fiub")


def _infer_position(name: str) -> Callable[..., TensorType]:
    def infer(x: TensorType, *, axis: int, keepdims: bool) -> TensorType:
        expect_kind(name, x, "fiu")
        shape = _reduced(name, x, (axis,), keepdims)
        if x.shape[axis] == 0:
            raise ShapeError(f"{name}: axis {axis} is empty, got {x}, expected at least 1 element")
        return TensorType(i64, shape)

    return infer


_positions = [
    sample("x[2,5,67]", axis=2, keepdims=False),
    sample("x[2,5,7]", axis=0, keepdims=True),
    sample("x[2,5,7]", axis=1, keepdims=False),
    sample("x[1]", axis=0, keepdims=False),
    sample("x[0,3]", axis=1, keepdims=False),
    sample("x:i64[3,17]", axis=1, keepdims=False),
]


@op(infer=_infer_position("argmax"), samples=_positions)
def argmax(x, *, axis: int, keepdims: bool):
    """Index of the largest element, the first among equal ones; with NaN, the first NaN."""
    return np.argmax(x, axis, keepdims=keepdims).astype(np.int64)


@op(infer=_infer_position("argmin"), samples=_positions)
def argmin(x, *, axis: int, keepdims: bool):
    """Index of the smallest element, the first among equal ones; with NaN, the first NaN."""
    return np.argmin(x, axis, keepdims=keepdims).astype(np.int64)


def _infer_running(name: str) -> Callable[..., TensorType]:
    def infer(x: TensorType, *, axis: int) -> TensorType:
        expect_kind(name, x, "fiu")
        _reduced(name, x, (axis,), True)
        return x

    return infer


_running = [
    sample("x[2,5,67]", axis=2),
    sample("x[2,5,7]", axis=0),
    sample("x[2,5,7]", axis=1),
    sample("x[1]", axis=0),
    sample("x[0,3]", axis=1),
    sample("x:i64[3,5]", axis=1),
]


@op(infer=_infer_running("cumsum"), inplace=(0,), samples=_running)
def cumsum(x, *, axis: int):
    """Cumulative sum along an axis, including the element itself; integers wrap."""
    return np.cumsum(x, axis, _accumulator(x)).astype(x.dtype)


@op(infer=_infer_running("cumprod"), inplace=(0,), domain=(0.5, 1.5), samples=_running)
def cumprod(x, *, axis: int):
    """Cumulative product along an axis, including the element itself; integers wrap."""
    return np.cumprod(x, axis, _accumulator(x)).astype(x.dtype)


def _infer_reduce_over(x, axes, *, kind, keepdims):
    OPS[f"reduce_{kind}"].infer(x, axes=(), keepdims=keepdims)
    if axes.dtype is not i64 or axes.rank != 1 or not isinstance(axes.shape[0], int) or axes.shape[0] > x.rank:
        raise ShapeError(f"reduce_over: bad axes, got {axes}, expected i64 [n] with at most {x.rank} of them")
    return TensorType(x.dtype, (None,) * (x.rank if keepdims else x.rank - axes.shape[0]))


@op(
    infer=_infer_reduce_over,
    addresses={"axes": Index(lambda x, *_, **__: range(-x.ndim, x.ndim))},
    samples=[
        sample("x[2,5,67] a:i64>2<3[1]", kind="sum", keepdims=False),
        sample("x[2,5,7] a:i64>-3<-2[1]", kind="mean", keepdims=True),
        sample("x[2,0,7] a:i64>1<2[1]", kind="max", keepdims=True),
        sample("x[2,5] a:i64[0]", kind="min", keepdims=True),
        sample("x:i64>1<4[2,5] a:i64>0<1[1]", kind="prod", keepdims=False),
    ],
)
def reduce_over(
    x,
    axes,
    *,
    kind: Literal["max", "mean", "min", "prod", "sum"],
    keepdims: bool,
):
    """A reduction over axes given by an operand; they may count from the end, and must be distinct. No axes: x
    itself.
    """
    positions = [int(axis) + x.ndim * bool(axis < 0) for axis in axes]
    if len(set(positions)) != len(positions):
        raise InputError(f"axes: an axis is given twice, got {axes.tolist()} for rank {x.ndim}")
    return OPS[f"reduce_{kind}"].function(x, axes=tuple(sorted(positions)), keepdims=keepdims)

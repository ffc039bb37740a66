"""Rules for reductions, cumulative ops, top-k and sorting."""

import math
from collections.abc import Callable, Sequence

import torch

from ingot.ir.dim import Known
from ingot.ir.dtype import boolean, i64, u8
from ingot.load.aten.builder import AtenBuilder, Number, Tensor, element_count, from_torch
from ingot.load.aten.elementwise import as_bool
from ingot.load.aten.registry import aten

Axes = Sequence[int] | int | None


def _reduce(b: AtenBuilder, op: str, x: Tensor, dim: Axes, keepdim: bool) -> Tensor:
    axes = b.axes(x, dim)
    return b.add(op, x, axes=axes, keepdims=bool(keepdim)) if axes else x


def _accumulated(b: AtenBuilder, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """torch sums and multiplies integers and bools as int64."""
    if dtype is not None:
        return b.cast(x, from_torch(dtype))
    return x if b.dtype(x).kind == "f" else b.cast(x, i64)


@aten("sum.default")
def sum_all(b: AtenBuilder, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return sum_dim(b, x, None, False, dtype)


@aten("sum.dim_IntList")
def sum_dim(
    b: AtenBuilder, x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    return _reduce(b, "reduce_sum", _accumulated(b, x, dtype), dim, keepdim)


@aten("mean.default")
def mean_all(b: AtenBuilder, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return mean_dim(b, x, None, False, dtype)


@aten("mean.dim")
def mean_dim(
    b: AtenBuilder, x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    return _reduce(b, "reduce_mean", x if dtype is None else b.cast(x, from_torch(dtype)), dim, keepdim)


@aten("prod.default")
def prod_all(b: AtenBuilder, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return _reduce(b, "reduce_prod", _accumulated(b, x, dtype), None, False)


@aten("prod.dim_int")
def prod_dim(b: AtenBuilder, x: Tensor, dim: int, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    return _reduce(b, "reduce_prod", _accumulated(b, x, dtype), dim, keepdim)


@aten("amax.default")
def amax(b: AtenBuilder, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _reduce(b, "reduce_max", x, dim, keepdim)


@aten("amin.default")
def amin(b: AtenBuilder, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _reduce(b, "reduce_min", x, dim, keepdim)


@aten("max.default")
def max_all(b: AtenBuilder, x: Tensor) -> Tensor:
    return _reduce(b, "reduce_max", x, None, False)


@aten("min.default")
def min_all(b: AtenBuilder, x: Tensor) -> Tensor:
    return _reduce(b, "reduce_min", x, None, False)


@aten("max.dim")
def max_dim(b: AtenBuilder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _reduce(b, "reduce_max", x, dim, keepdim), argmax(b, x, dim, keepdim)


@aten("min.dim")
def min_dim(b: AtenBuilder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _reduce(b, "reduce_min", x, dim, keepdim), argmin(b, x, dim, keepdim)


@aten("argmax.default")
def argmax(b: AtenBuilder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _position(b, "argmax", x, dim, keepdim)


@aten("argmin.default")
def argmin(b: AtenBuilder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _position(b, "argmin", x, dim, keepdim)


def _position(b: AtenBuilder, op: str, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if b.dtype(x) is boolean:
        x = b.cast(x, u8)
    if dim is None or b.rank(x) == 0:
        flat = b.reshape(x, (element_count(b.shape(x)),))
        position = b.add(op, flat, axis=0, keepdims=False)
        return b.reshape(position, (1,) * b.rank(x)) if keepdim else position
    return b.add(op, x, axis=b.axis(x, dim), keepdims=bool(keepdim))


@aten("any.default", "any.dim", "any.dims")
def any(b: AtenBuilder, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return b.cast(_reduce(b, "reduce_max", b.cast(as_bool(b, x), i64), dim, keepdim), boolean)


@aten("all.default", "all.dim", "all.dims")
def all(b: AtenBuilder, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return b.cast(_reduce(b, "reduce_min", b.cast(as_bool(b, x), i64), dim, keepdim), boolean)


# -- moments


@aten("var.correction")
def var(b: AtenBuilder, x: Tensor, dim: Axes = None, correction: Number | None = None, keepdim: bool = False) -> Tensor:
    return _moments(b, x, dim, correction, keepdim)[0]


@aten("var.default")
def var_all(b: AtenBuilder, x: Tensor, unbiased: bool = True) -> Tensor:
    return var(b, x, None, int(unbiased))


@aten("var.dim")
def var_dim(b: AtenBuilder, x: Tensor, dim: Axes, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return var(b, x, dim, int(unbiased), keepdim)


@aten("std.correction")
def std(b: AtenBuilder, x: Tensor, dim: Axes = None, correction: Number | None = None, keepdim: bool = False) -> Tensor:
    return root(b, var(b, x, dim, correction, keepdim))


@aten("std.default")
def std_all(b: AtenBuilder, x: Tensor, unbiased: bool = True) -> Tensor:
    return std(b, x, None, int(unbiased))


@aten("std.dim")
def std_dim(b: AtenBuilder, x: Tensor, dim: Axes, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return std(b, x, dim, int(unbiased), keepdim)


@aten("var_mean.correction")
def var_mean(
    b: AtenBuilder, x: Tensor, dim: Axes = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _moments(b, x, dim, correction, keepdim)


@aten("var_mean.dim")
def var_mean_dim(
    b: AtenBuilder, x: Tensor, dim: Axes, unbiased: bool = True, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _moments(b, x, dim, int(unbiased), keepdim)


@aten("std_mean.correction")
def std_mean(
    b: AtenBuilder, x: Tensor, dim: Axes = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    variance, mean = _moments(b, x, dim, correction, keepdim)
    return root(b, variance), mean


def _moments(b: AtenBuilder, x: Tensor, dim: Axes, correction: Number | None, keepdim: bool) -> tuple[Tensor, Tensor]:
    axes = b.axes(x, dim)
    mean = b.add("reduce_mean", x, axes=axes, keepdims=True)
    centred = b.add("sub", x, mean)
    # The second mean is what rounding the first one left.
    centred = b.add("sub", centred, b.add("reduce_mean", centred, axes=axes, keepdims=True))
    squares = b.add("mul", centred, centred)
    correction = 1 if correction is None else correction
    if correction == 0:
        variance = b.add("reduce_mean", squares, axes=axes, keepdims=bool(keepdim))
    else:
        total = b.add("reduce_sum", squares, axes=axes, keepdims=bool(keepdim))
        count = element_count([b.shape(x)[a] for a in axes])
        free = count - correction  # type: ignore[operator]  # torch has checked that it is a number
        free_count = b.scalar(max(free, 0) if isinstance(free, (int, float)) else free, b.dtype(x))
        variance = b.add("div", total, free_count)
    return variance, mean if keepdim else b.add("reduce_mean", x, axes=axes, keepdims=False)


def root(b: AtenBuilder, squares: Tensor) -> Tensor:
    """Return the root of a sum of squares; in training, its gradient at 0 is 0, as in torch's distances."""
    if not b.trains:
        return b.add("sqrt", squares)
    zero = b.scalar(0, b.dtype(squares))
    is_zero = b.add("equal", squares, zero)
    return b.add("where", is_zero, zero, b.add("sqrt", b.add("where", is_zero, b.scalar(1, b.dtype(squares)), squares)))


@aten("linalg_vector_norm.default")
def linalg_vector_norm(
    b: AtenBuilder, x: Tensor, ord: float = 2, dim: Axes = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    x = x if dtype is None else b.cast(x, from_torch(dtype))
    magnitude = b.add("abs", x)
    if ord == math.inf:
        return _reduce(b, "reduce_max", magnitude, dim, keepdim)
    if ord == -math.inf:
        return _reduce(b, "reduce_min", magnitude, dim, keepdim)
    if ord == 1:
        return _reduce(b, "reduce_sum", magnitude, dim, keepdim)
    if ord == 2:
        return root(b, _reduce(b, "reduce_sum", b.add("mul", x, x), dim, keepdim))
    if ord == 0:
        differs = b.cast(b.add("not_equal", x, b.scalar(0, b.dtype(x))), b.dtype(x))
        return _reduce(b, "reduce_sum", differs, dim, keepdim)
    total = _reduce(b, "reduce_sum", b.add("pow", magnitude, b.scalar(ord, b.dtype(x))), dim, keepdim)
    return b.add("pow", total, b.scalar(1 / ord, b.dtype(x)))


@aten("norm.ScalarOpt_dim")
def norm_dim(b: AtenBuilder, x: Tensor, p: float | None, dim: Axes, keepdim: bool = False) -> Tensor:
    return linalg_vector_norm(b, x, 2 if p is None else p, dim, keepdim)


@aten("norm.Scalar")
def norm_all(b: AtenBuilder, x: Tensor, p: float = 2) -> Tensor:
    return linalg_vector_norm(b, x, p)


@aten("logsumexp.default")
def logsumexp(b: AtenBuilder, x: Tensor, dim: Axes, keepdim: bool = False) -> Tensor:
    """Shift by the maximum, or by 0 where that is infinite."""
    (x,) = b.promote(x, floating=True)
    axes, zero = b.axes(x, dim), b.scalar(0.0, b.dtype(x))
    peak = b.add("reduce_max", x, axes=axes, keepdims=True)
    shift = b.add("where", b.add("isinf", peak), zero, peak)
    total = b.add("reduce_sum", b.add("exp", b.add("sub", x, shift)), axes=axes, keepdims=True)
    result = b.add("add", b.add("log", total), shift)
    return b.reshape(result, b.result.shape)


# -- along an axis


@aten("cumsum.default")
def cumsum(b: AtenBuilder, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    x = _accumulated(b, x, dtype)
    return b.add("cumsum", x, axis=b.axis(x, dim)) if b.rank(x) else x


@aten("cumprod.default")
def cumprod(b: AtenBuilder, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Use the plain op; in training, use products whose gradients are correct for zero factors."""
    x = _accumulated(b, x, dtype)
    if not b.rank(x):
        return x
    axis = b.axis(x, dim)
    if b.trains:
        return _running(b, x, axis, lambda before, after: b.add("mul", before, after))
    return b.add("cumprod", x, axis=axis)


def _running(b: AtenBuilder, x: Tensor, axis: int, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine each element with all before it: over spans of 1, 2, 4 ... elements (Hillis and Steele, 1986)."""
    size = b.static(b.shape(x)[axis], "the axis of a running result")
    span = 1
    while span < size:
        joined = join(b.slice(x, axis, 0, size - span), b.slice(x, axis, span, size))
        x = b.add("concat", b.slice(x, axis, 0, span), joined, axis=axis)
        span *= 2
    return x


@aten("cummax.default", "cummin.default")
def cummax(b: AtenBuilder, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the cumulative maximum or minimum and its last index; a NaN is carried to all later elements."""
    if not b.rank(x):
        return x, b.scalar(0, i64)
    axis, op = b.axis(x, dim), "maximum" if b.target == "aten.cummax.default" else "minimum"
    best = _running(b, x, axis, lambda before, after: b.add(op, before, after))
    is_best = b.add("equal", x, best)
    if b.dtype(x).kind == "f":
        is_best = b.add("logical_or", is_best, b.add("isnan", x))
    ahead = (1,) * (b.rank(x) - 1 - axis)
    location = b.reshape(b.add("iota", length=b.shape(x)[axis], start=0, step=1, dtype=i64), (b.shape(x)[axis], *ahead))
    location = b.add("where", is_best, location, b.scalar(0, i64))
    location = _running(b, location, axis, lambda before, after: b.add("maximum", before, after))
    return b.add("gather_elements", x, location, axis=axis), location


@aten("logcumsumexp.default")
def logcumsumexp(b: AtenBuilder, x: Tensor, dim: int) -> Tensor:
    zero = b.scalar(0, b.dtype(x))

    def join(before: Tensor, after: Tensor) -> Tensor:
        """Return the logarithm of the sum of two exponentials; the larger operand where that is infinite."""
        large = b.add("maximum", before, after)
        distance = b.add("where", b.add("isinf", large), zero, b.add("abs", b.add("sub", before, after)))
        more = b.add("log1p", b.add("exp", b.add("neg", distance)))
        return b.add("add", large, more)

    return _running(b, x, b.axis(x, dim), join) if b.rank(x) else x


# -- order


@aten("topk.default")
def topk(
    b: AtenBuilder, x: Tensor, k: Known, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    values, indices = b.add("topk", x, k=k, axis=b.axis(x, dim), largest=bool(largest))
    return values, indices


@aten("sort.default")
def sort(b: AtenBuilder, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    axis = b.axis(x, dim)
    return topk(b, x, b.shape(x)[axis], axis, descending)


@aten("sort.stable")
def sort_stable(
    b: AtenBuilder, x: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return sort(b, x, dim, descending)


@aten("argsort.default")
def argsort(b: AtenBuilder, x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return sort(b, x, dim, descending)[1]


def _chosen(b: AtenBuilder, x: Tensor, location: Tensor, axis: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Gather the elements at an index along an axis; return both, without the axis unless `keepdim`."""
    value = b.add("gather_elements", x, location, axis=axis)
    if keepdim:
        return value, location
    shape = [size for i, size in enumerate(b.shape(location)) if i != axis]
    return b.reshape(value, shape), b.reshape(location, shape)


@aten("kthvalue.default")
def kthvalue(b: AtenBuilder, x: Tensor, k: Known, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not b.rank(x):
        return x, b.scalar(0, i64)
    axis = b.axis(x, dim)
    order = b.add("topk", x, k=k, axis=axis, largest=False)[1]
    return _chosen(b, x, b.slice(order, axis, k - 1, k), axis, keepdim)


@aten("median.dim")
def median_dim(b: AtenBuilder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the lower of the two middle elements, or the first NaN."""
    if not b.rank(x):
        return x, b.scalar(0, i64)
    axis = b.axis(x, dim)
    k = (b.shape(x)[axis] + 1) // 2
    order = b.add("topk", x, k=k, axis=axis, largest=False)[1]
    location = b.slice(order, axis, k - 1, k)
    if b.dtype(x).kind == "f":
        is_nan = b.cast(b.add("isnan", x), u8)
        has_nan = as_bool(b, b.add("reduce_max", is_nan, axes=(axis,), keepdims=True))
        location = b.add("where", has_nan, b.add("argmax", is_nan, axis=axis, keepdims=True), location)
    return _chosen(b, x, location, axis, keepdim)


@aten("nanmedian.dim")
def nanmedian_dim(b: AtenBuilder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the lower of the two middle elements that are not NaN; NaN if all are."""
    if b.dtype(x).kind != "f" or not b.rank(x):
        return median_dim(b, x, dim, keepdim)
    axis = b.axis(x, dim)
    order = b.add("topk", x, k=b.shape(x)[axis], axis=axis, largest=False)[1]  # NaN is last
    numbers = b.cast(b.add("logical_not", b.add("isnan", x)), i64)
    count = b.add("reduce_sum", numbers, axes=(axis,), keepdims=True)
    last = b.add("maximum", b.add("sub", count, b.scalar(1, i64)), b.scalar(0, i64))
    location = b.add("gather_elements", order, b.add("floor_div", last, b.scalar(2, i64)), axis=axis)
    return _chosen(b, x, location, axis, keepdim)


@aten("nanmedian.default")
def nanmedian(b: AtenBuilder, x: Tensor) -> Tensor:
    return nanmedian_dim(b, b.reshape(x, (element_count(b.shape(x)),)), 0)[0]


@aten("median.default")
def median(b: AtenBuilder, x: Tensor) -> Tensor:
    return median_dim(b, b.reshape(x, (element_count(b.shape(x)),)), 0)[0]


@aten("mode.default")
def mode(b: AtenBuilder, x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the smallest of the most frequent elements, and its last index: the end of the longest run in sorted
    order.

    NaN is unequal to every element, itself included.
    """
    if not b.rank(x):
        return x, b.scalar(0, i64)
    axis = b.axis(x, dim)
    size = b.shape(x)[axis]
    values, order = b.add("topk", x, k=size, axis=axis, largest=False)
    location = b.reshape(b.add("iota", length=size, start=0, step=1, dtype=i64), (size, *[1] * (b.rank(x) - 1 - axis)))
    begins = b.add("not_equal", b.slice(values, axis, 1, size), b.slice(values, axis, 0, size - 1))
    first = b.expand(b.scalar(True, boolean), b.shape(b.slice(values, axis, 0, 1)))
    begins = b.add("concat", first, begins, axis=axis)
    start = b.add("where", begins, location, b.scalar(0, i64))
    start = _running(b, start, axis, lambda before, after: b.add("maximum", before, after))
    longest = b.add("argmax", b.add("sub", location, start), axis=axis, keepdims=True)
    return _chosen(b, x, b.add("gather_elements", order, longest, axis=axis), axis, keepdim)

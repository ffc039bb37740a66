"""Convolution and pooling over any number of spatial dims. pads holds what goes before each one, then after each."""

import math

import numpy as np

from ingot.dim import Dim
from ingot.dtype import f32, i64
from ingot.errors import ShapeError
from ingot.ir import TensorType
from ingot.ops.define import Ints, expect_kind, op, sample, unify
from ingot.ops.reduce import lowest


def _spatial(name: str, x: TensorType, kernel, strides, pads, dilations) -> tuple:
    """The spatial dims of the result."""
    rank = x.rank - 2
    if rank < 1 or not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        got = f"kernel {list(kernel)}, strides {list(strides)}, pads {list(pads)}, dilations {list(dilations)}"
        raise ShapeError(f"{name}: bad rank, got {got} for {x}, expected one per spatial dim, pads two")
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise ShapeError(f"{name}: bad window, got kernel {list(kernel)}, strides {list(strides)}, pads {list(pads)}")
    result: list[Dim] = []
    for i, dim in enumerate(x.shape[2:]):
        if dim is None:
            result.append(None)
            continue
        room = dim + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1
        if isinstance(room, int) and room < 0:
            raise ShapeError(f"{name}: window larger than its input, got {list(kernel)} over {x}")
        result.append(room // strides[i] + 1)
    return tuple(result)


def _windows(x, kernel, strides, pads, dilations, value):
    """View [N, C, out..., kernel...] of the padded x [N, C, in...]."""
    rank = len(kernel)
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=value)
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, extent, tuple(range(2, 2 + rank)))
    return view[(..., *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))]


def _infer_conv(x, w, b=None, *, strides, pads, dilations, groups):
    if w.rank != x.rank or w.dtype is not x.dtype or not all(isinstance(dim, int) for dim in w.shape):
        raise ShapeError(f"conv: bad filter, got {w}, expected {x.dtype} of rank {x.rank} and known dims")
    expect_kind("conv", x, "fi")
    spatial = _spatial("conv", x, w.shape[2:], strides, pads, dilations)
    if groups < 1 or w.shape[0] % groups:
        raise ShapeError(f"conv: bad groups, got {groups}, expected a divisor of {w.shape[0]}")
    unify(f"conv: channels of x {x} and filter {w} in {groups} groups", x.shape[1], w.shape[1] * groups)
    if b is not None and (b.rank != 1 or b.dtype is not x.dtype or unify("conv: bias", b.shape[0], w.shape[0]) is None):
        raise ShapeError(f"conv: bad bias, got {b}, expected {x.dtype}[{w.shape[0]}]")
    return TensorType(x.dtype, (x.shape[0], w.shape[0], *spatial))


def _plain(rank, **attributes):
    return {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank} | attributes


@op(
    infer=_infer_conv,
    tolerance={f32: 1e-5},
    domain=(-1.0, 1.0),
    samples=[
        sample("x[2,3,7,8] w[4,3,3,3] b[4]", **_plain(2, groups=1)),
        sample("x[1,4,9,7] w[6,2,3,2]", **_plain(2, groups=2, strides=(2, 3), pads=(1, 0, 2, 1))),
        sample("x[1,3,9,9] w[3,1,3,3] b[3]", **_plain(2, groups=3, pads=(2, 2, 2, 2), dilations=(2, 2))),
        sample("x[2,5,4,4] w[7,5,1,1]", **_plain(2, groups=1)),
        sample("x[2,3,11] w[5,3,4] b[5]", **_plain(1, groups=1, strides=(2,), pads=(1, 2))),
        sample("x[1,2,4,3,5] w[3,2,2,2,2]", **_plain(3, groups=1)),
        sample("x[0,3,5,5] w[2,3,3,3]", **_plain(2, groups=1)),
        sample("x[1,1,1,1] w[1,1,1,1] b[1]", **_plain(2, groups=1)),
        sample("x:i32>-9<9[2,3,5,4] w:i32>-9<9[4,3,2,3] b:i32[4]", **_plain(2, groups=1, pads=(1, 0, 1, 2))),
    ],
)
def conv(x, w, b=None, *, strides: Ints, pads: Ints, dilations: Ints, groups: int):
    """Cross-correlation of x [N, C, in...] with w [O, C/groups, kernel...], plus b [O]; pads are 0, integers wrap."""
    rank = x.ndim - 2
    windows = _windows(x, w.shape[2:], strides, pads, dilations, 0)
    batch, out = x.shape[0], windows.shape[2 : 2 + rank]
    windows = windows.reshape(batch, groups, w.shape[1], *windows.shape[2:])
    spatial = tuple(range(3, 3 + rank))
    columns = windows.transpose(0, 1, 2, *(s + rank for s in spatial), *spatial)
    columns = columns.reshape(batch, groups, math.prod(w.shape[1:]), math.prod(out))
    rows = w.reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:]))
    result = np.matmul(rows, columns).reshape(batch, w.shape[0], *out)
    return result if b is None else result + b.reshape(-1, *[1] * rank)


def _pool_samples(**attributes):
    return [
        sample("x[2,3,7,8]", kernel=(2, 2), **_plain(2, strides=(2, 2), **attributes)),
        sample("x[1,2,7,5]", kernel=(3, 2), **_plain(2, pads=(1, 0, 1, 1), **attributes)),
        sample("x[1,2,9,9]", kernel=(2, 3), **_plain(2, dilations=(2, 2), **attributes)),
        sample("x[2,3,11]", kernel=(3,), **_plain(1, strides=(2,), pads=(1, 2), **attributes)),
        sample("x[1,2,3,4,3]", kernel=(2, 2, 2), **_plain(3, **attributes)),
        sample("x[0,2,3,3]", kernel=(3, 3), **_plain(2, **attributes)),
    ]


_integer_pool = [sample("x:u8<99[1,2,5,4]", kernel=(2, 3), **_plain(2, strides=(2, 1), pads=(1, 1, 0, 1)))]


def _infer_pool(name, kinds="fiu", dtype=None):
    def infer(x, *, kernel, strides, pads, dilations, count_include_pad=False):
        expect_kind(name, x, kinds)
        return TensorType(dtype or x.dtype, (*x.shape[:2], *_spatial(name, x, kernel, strides, pads, dilations)))

    return infer


@op(infer=_infer_pool("max_pool"), samples=[*_pool_samples(), *_integer_pool])
def max_pool(x, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints):
    """The largest in each window of x [N, C, in...], NaN if any is; padding is -inf, or the smallest integer."""
    windows = _windows(x, kernel, strides, pads, dilations, lowest(x.dtype))
    return windows.max(tuple(range(-len(kernel), 0)))


@op(infer=_infer_pool("max_pool_indices", dtype=i64), samples=[*_pool_samples(), *_integer_pool])
def max_pool_indices(x, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints):
    """Where the largest in each window of x [N, C, in...] is: i64, counted row by row over in..., never in the padding.

    Of equal ones it is the first, of any NaN the first NaN.
    """
    settings = (kernel, strides, pads, dilations)
    places = np.arange(math.prod(x.shape[2:])).reshape(1, 1, *x.shape[2:])
    values, places = _windows(x, *settings, lowest(x.dtype)), _windows(places, *settings, -1)
    rank, size = len(kernel), math.prod(kernel)
    values, places = (w.reshape(*w.shape[: 2 + rank], size) for w in (values, places))
    largest = values.max(-1, keepdims=True)
    found = np.argmax(((values == largest) | (values != values)) & (places >= 0), -1)
    places = np.broadcast_to(places, values.shape)
    return np.take_along_axis(places, found[..., None], -1)[..., 0]


@op(
    infer=_infer_pool("avg_pool", "f"),
    samples=[*_pool_samples(count_include_pad=False), *_pool_samples(count_include_pad=True)[:2]],
)
def avg_pool(x, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, count_include_pad: bool = False):
    """The mean of each window of x [N, C, in...]; padding counts only with count_include_pad; of nothing, NaN."""
    axes = tuple(range(-len(kernel), 0))
    total = np.sum(_windows(x, kernel, strides, pads, dilations, 0), axes, np.float64)
    inside = np.ones((1, 1, *x.shape[2:]))
    count = np.sum(_windows(inside, kernel, strides, pads, dilations, float(count_include_pad)), axes)
    return (total / count).astype(x.dtype)

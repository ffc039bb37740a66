"""Convolution and pooling over any number of spatial dims. pads lists the padding before each dim, then after
each dim.
"""

import math

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dim import Dim
from ingot.ir.dtype import f32, i64
from ingot.ir.graph import TensorType
from ingot.ops.define import Ints, expect_kind, op, sample, unify
from ingot.ops.reduce import lowest


def spatial_dims(name: str, x: TensorType, kernel, strides, pads, dilations) -> tuple:
    """Return the spatial dims of the result of windows over x [N, C, *dims].

    pads: 2 * len(dims) numbers. Raises ShapeError for a window that does not fit, or a wrong number of values.
    """
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
        span = dim + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1
        if isinstance(span, int) and span < 0:
            raise ShapeError(f"{name}: window larger than its input, got {list(kernel)} over {x}")
        result.append(span // strides[i] + 1)
    return tuple(result)


def _windows(x, kernel, strides, pads, dilations, value):
    """Return a view [N, C, out..., kernel...] of the padded x [N, C, in...]."""
    rank = len(kernel)
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=value)
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, extent, tuple(range(2, 2 + rank)))
    return view[(..., *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))]


def _infer_conv(x, w, b=None, *, strides, pads, dilations, groups):
    if w.rank != x.rank or w.dtype is not x.dtype or not all(isinstance(dim, int) for dim in w.shape):
        raise ShapeError(f"conv: bad filter, got {w}, expected {x.dtype} of rank {x.rank} and known dims")
    expect_kind("conv", x, "fi")
    spatial = spatial_dims("conv", x, w.shape[2:], strides, pads, dilations)
    if groups < 1 or w.shape[0] % groups:
        raise ShapeError(f"conv: bad groups, got {groups}, expected a divisor of {w.shape[0]}")
    unify("conv: channels of x {} and filter {} in {} groups", x.shape[1], w.shape[1] * groups, x, w, groups)
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
        sample("x[2,4,5,3,4] w[6,2,2,3,1] b[6]", **_plain(3, groups=2, strides=(2, 1, 1), pads=(1, 1, 0, 0, 1, 1))),
        sample("x[1,2,7,3,4] w[2,1,3,2,2]", **_plain(3, groups=2, dilations=(2, 1, 2))),
        sample("x[2,6,9] w[6,1,3] b[6]", **_plain(1, groups=6, pads=(1, 1))),
        sample("x[2,5,9] w[7,5,1] b[7]", **_plain(1, groups=1)),
        sample(
            "x[2,17,7,6] w[5,17,3,2] b[5]",
            **_plain(2, groups=1, strides=(2, 1), pads=(1, 0, 2, 1), dilations=(1, 2)),
        ),
        sample("x[2,16,9] w[3,16,3]", **_plain(1, groups=1, pads=(1, 1))),
        sample("x[0,3,5,5] w[2,3,3,3]", **_plain(2, groups=1)),
        sample("x[1,1,1,1] w[1,1,1,1] b[1]", **_plain(2, groups=1)),
        sample("x:i32>-9<9[2,3,5,4] w:i32>-9<9[4,3,2,3] b:i32[4]", **_plain(2, groups=1, pads=(1, 0, 1, 2))),
    ],
)
def conv(x, w, b=None, *, strides: Ints, pads: Ints, dilations: Ints, groups: int):
    """Cross-correlation of x [N, C, in...] with w [O, C/groups, kernel...], plus b [O]; padding is 0, integers wrap."""
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


def _infer_conv_transpose(x, w, b=None, *, strides, pads, dilations, groups, output_padding):
    rank, where = x.rank - 2, "conv_transpose"
    if rank < 1 or w.rank != x.rank or w.dtype is not x.dtype or not all(isinstance(dim, int) for dim in w.shape):
        raise ShapeError(f"{where}: bad filter, got {w}, expected {x.dtype} of rank {x.rank} and known dims")
    expect_kind(where, x, "f")
    lengths = (len(strides), len(dilations), len(output_padding), len(pads))
    if lengths != (rank, rank, rank, 2 * rank) or min(*strides, *dilations, *w.shape[2:]) < 1:
        got = f"strides {list(strides)}, pads {list(pads)}, dilations {list(dilations)}, filter {w}"
        raise ShapeError(f"{where}: bad window, got {got}, expected one per spatial dim of {x}, pads two")
    if min(*pads, *output_padding) < 0:
        raise ShapeError(f"{where}: bad pads, got {list(pads)} and {list(output_padding)}, expected 0 or more")
    if groups < 1 or w.shape[0] % groups:
        raise ShapeError(f"{where}: bad groups, got {groups}, expected a divisor of {w.shape[0]}")
    unify(f"{where}: channels of x {x} and filter {w}", x.shape[1], w.shape[0])
    out = w.shape[1] * groups
    if b is not None and (b.rank != 1 or b.dtype is not x.dtype or unify(f"{where}: bias", b.shape[0], out) is None):
        raise ShapeError(f"{where}: bad bias, got {b}, expected {x.dtype}[{out}]")
    spatial: list[Dim] = []
    for i, dim in enumerate(x.shape[2:]):
        reach = dilations[i] * (w.shape[2 + i] - 1) + 1 + output_padding[i] - pads[i] - pads[rank + i]
        size = None if dim is None else (dim - 1) * strides[i] + reach
        if (isinstance(size, int) and size < 0) or dim == 0:
            raise ShapeError(f"{where}: nothing is left, got pads {list(pads)} for {x} and filter {w}")
        spatial.append(size)
    return TensorType(x.dtype, (x.shape[0], out, *spatial))


def _filled(g, w, axis, dilation, length):
    """Insert zeros between the elements of w along an axis, then crop or pad it to a length after the last element."""
    shape = g.type(w).shape
    head, size, behind = shape[:axis], shape[axis], shape[axis + 1 :]

    def padded(x, at, amount):
        low = (0,) * g.type(x).rank
        return g.pad(x, low=low, high=(*low[:at], amount, *low[at + 1 :]), value=0.0)

    if dilation > 1:
        w = padded(g.reshape(w, shape=(*head, size, 1, *behind)), axis + 1, dilation - 1)
        w = g.reshape(w, shape=(*head, size * dilation, *behind))
    missing = length - size * dilation
    if missing > 0:
        w = padded(w, axis, missing)
    elif missing < 0:
        shape = (*head, length, *behind)
        w = g.slice(w, starts=(0,) * len(shape), stops=shape, steps=(1,) * len(shape))
    return w


def _phase_filter(g, w, strides, dilations, groups):
    """Reorder the filter [C, O / groups, kernel...] to that of a convolution, [groups * strides.. * O / groups, C /
    groups, positions...]: the channels of one output position are adjacent.
    """
    inside, each, *kernel = g.type(w).shape
    rank, last = len(kernel), 2 + len(kernel)
    w = g.permute(g.reshape(w, shape=(groups, inside // groups, each, *kernel)), axes=(0, 2, 1, *range(3, 3 + rank)))
    w = g.reshape(w, shape=(groups * each, inside // groups, *kernel))
    for axis, stride, dilation in zip(range(2, last), strides, dilations, strict=True):
        if stride > 1:
            w = _filled(g, w, axis, dilation, -(-((kernel[axis - 2] - 1) * dilation + 1) // stride) * stride)
            out, *shape = g.type(w).shape
            shape[axis - 1] //= stride
            w = g.reshape(w, shape=(out, *shape[:axis], stride, *shape[axis:]))
            w = g.permute(w, axes=(0, axis + 1, *(i for i in range(1, last + 1) if i != axis + 1)))
            w = g.reshape(w, shape=(out * stride, *shape))
    phases, taps = math.prod(strides), g.type(w).shape[2:]
    if phases > 1:
        w = g.reshape(w, shape=(groups, each, phases, inside // groups, *taps))
        w = g.permute(w, axes=(0, 2, 1, *range(3, 4 + rank)))
        w = g.reshape(w, shape=(groups * phases * each, inside // groups, *taps))
    head = g.type(w).shape[:2]
    backwards = {"starts": (0, 0, *(t - 1 for t in taps)), "stops": (*head, *[-1] * rank)}
    return g.slice(w, **backwards, steps=(1, 1, *[-1] * rank)), taps


def _expand_conv_transpose(g, x, w, b=None, *, strides, pads, dilations, groups, output_padding):
    """A convolution computes all output positions of one input element as channels; they are then interleaved.

    Filter position `stride * j + r` contributes to output position r from j elements before, so no product involves the
    zeros between elements. Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016.
    """
    rank, phases = len(strides), math.prod(strides)
    batch, out, *wanted = g.type(g.node.outputs[0]).shape
    kernel = g.type(w).shape[2:]
    w, taps = _phase_filter(g, w, strides, dilations, groups)
    steps = tuple(1 if s > 1 else d for s, d in zip(strides, dilations, strict=True))
    if b is not None and phases > 1:
        b = g.expand(g.reshape(b, shape=(groups, 1, out // groups)), shape=(groups, phases, out // groups))
        b = g.reshape(b, shape=(out * phases,))
    low, high, starts = [], [], []
    for i, size in enumerate(g.type(x).shape[2:]):
        reach = steps[i] * (taps[i] - 1)
        lead = min(pads[i] // strides[i], reach)
        end = (kernel[i] - 1) * dilations[i] + 1 + output_padding[i] - pads[rank + i]
        least = lead + 1 - size if isinstance(size, int) else 0
        low.append(reach - lead)
        high.append(max(-(-end // strides[i]) - 1, least, 0))
        starts.append(pads[i] - lead * strides[i])
    y = g.conv(x, w, b, strides=(1,) * rank, pads=(*low, *high), dilations=steps, groups=groups)
    out_dims = g.type(y).shape[2:]
    if phases > 1:
        y = g.reshape(y, shape=(batch * groups, *strides, out // groups, *out_dims))
        y = g.permute(y, axes=(0, 1 + rank, *(axis for i in range(rank) for axis in (2 + rank + i, 1 + i))))
        out_dims = tuple(n * s for n, s in zip(out_dims, strides, strict=True))
        y = g.reshape(y, shape=(batch, out, *out_dims))
    stops = tuple(start + size for start, size in zip(starts, wanted, strict=True))
    if not any(starts) and stops == tuple(out_dims):
        return y
    return g.slice(y, starts=(0, 0, *starts), stops=(batch, out, *stops), steps=(1,) * (2 + rank))


def _transposed_defaults(rank, **attributes):
    return _plain(rank, output_padding=(0,) * rank, groups=1) | attributes


@op(
    infer=_infer_conv_transpose,
    expand=_expand_conv_transpose,
    tolerance={f32: 1e-5},
    domain=(-1.0, 1.0),
    samples=[
        sample("x[2,3,5,4] w[3,4,3,3] b[4]", **_transposed_defaults(2)),
        sample("x[2,6,5,4] w[6,4,2,2] b[4]", **_transposed_defaults(2, strides=(2, 2))),
        sample(
            "x[1,4,5,6] w[4,3,4,3]", **_transposed_defaults(2, strides=(2, 3), pads=(1, 0, 1, 2), output_padding=(1, 0))
        ),
        sample("x[1,6,4,5] w[6,2,3,3] b[4]", **_transposed_defaults(2, groups=2, strides=(2, 1), dilations=(2, 3))),
        sample("x[1,3,5,3] w[3,2,1,1]", **_transposed_defaults(2, strides=(3, 2), output_padding=(2, 4))),
        sample("x[1,2,3,3] w[2,2,3,3] b[2]", **_transposed_defaults(2, pads=(2, 4, 2, 0))),
        sample("x[2,3,7] w[3,5,4] b[5]", **_transposed_defaults(1, strides=(3,), pads=(1, 2))),
        sample("x[1,2,3,2,4] w[2,3,2,3,2]", **_transposed_defaults(3, strides=(2, 1, 2), pads=(0, 1, 0, 1, 0, 1))),
        sample("x[0,3,5,5] w[3,2,3,3]", **_transposed_defaults(2)),
        sample("x[1,1,1,1] w[1,1,1,1] b[1]", **_transposed_defaults(2)),
    ],
)
def conv_transpose(
    x, w, b=None, *, strides: Ints, pads: Ints, dilations: Ints, groups: int, output_padding: Ints
):  # fmt: skip
    """The transpose of `conv`: each element of x [N, C, in...] adds a filter w [C, O/groups, kernel...] to y.

    y [N, O, (in - 1) * stride + dilation * (kernel - 1) + 1...], plus b [O]; pads are cropped from y, and
    output_padding extends its ends. Elements of x are `stride` positions apart.
    """
    rank, (batch, channels, *sizes) = x.ndim - 2, x.shape
    wide = np.promote_types(x.dtype, np.float32) if x.dtype.itemsize < 4 else x.dtype
    each, kernel = w.shape[1], w.shape[2:]
    full = [
        (n - 1) * s + d * (k - 1) + 1 + extra
        for n, s, d, k, extra in zip(sizes, strides, dilations, kernel, output_padding, strict=True)
    ]
    y = np.zeros((batch, groups, each, *full), wide)
    rows = x.reshape(batch, groups, channels // groups, math.prod(sizes)).astype(wide)
    columns = np.swapaxes(w.reshape(groups, channels // groups, each, *kernel), 1, 2).astype(wide)
    for tap in np.ndindex(*kernel):
        part = np.matmul(columns[(..., *tap)], rows).reshape(batch, groups, each, *sizes)
        positions = zip(tap, dilations, sizes, strides, strict=True)
        slices = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in positions]
        y[(slice(None), slice(None), slice(None), *slices)] += part
    cropped = [slice(low, n - high) for low, n, high in zip(pads[:rank], full, pads[rank:], strict=True)]
    y = y.reshape(batch, groups * each, *full)[(slice(None), slice(None), *cropped)]
    return (y if b is None else y + b.reshape(-1, *[1] * rank)).astype(x.dtype)


def _pool_samples(**attributes):
    return [
        sample("x[2,3,7,8]", kernel=(2, 2), **_plain(2, strides=(2, 2), **attributes)),
        sample("x[1,2,7,5]", kernel=(3, 2), **_plain(2, pads=(1, 0, 1, 1), **attributes)),
        sample("x[1,2,9,9]", kernel=(2, 3), **_plain(2, dilations=(2, 2), **attributes)),
        sample("x[2,3,11]", kernel=(3,), **_plain(1, strides=(2,), pads=(1, 2), **attributes)),
        sample("x[1,2,3,4,3]", kernel=(2, 2, 2), **_plain(3, **attributes)),
        sample("x[2,2,5,4,3]", kernel=(2, 3, 2), **_plain(3, strides=(2, 1, 1), pads=(1, 1, 0, 0, 1, 1), **attributes)),
        sample("x[0,2,3,3]", kernel=(3, 3), **_plain(2, **attributes)),
    ]


_integer_pool = [sample("x:u8<99[1,2,5,4]", kernel=(2, 3), **_plain(2, strides=(2, 1), pads=(1, 1, 0, 1)))]


def _infer_pool(name, kinds="fiu", dtype=None):
    def infer(x, *, kernel, strides, pads, dilations, count_include_pad=False):
        expect_kind(name, x, kinds)
        return TensorType(dtype or x.dtype, (*x.shape[:2], *spatial_dims(name, x, kernel, strides, pads, dilations)))

    return infer


@op(infer=_infer_pool("max_pool"), samples=[*_pool_samples(), *_integer_pool])
def max_pool(x, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints):
    """The largest element in each window of x [N, C, in...], NaN if any is; padding is -inf, or the smallest
    integer.
    """
    windows = _windows(x, kernel, strides, pads, dilations, lowest(x.dtype))
    return windows.max(tuple(range(-len(kernel), 0)))


@op(infer=_infer_pool("max_pool_indices", dtype=i64), samples=[*_pool_samples(), *_integer_pool])
def max_pool_indices(x, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints):
    """The index of the largest element in each window of x [N, C, in...]: i64, row-major over in..., never in the
    padding.

    Among equal elements it is the first, with NaN the first NaN.
    """
    settings = (kernel, strides, pads, dilations)
    positions = np.arange(math.prod(x.shape[2:])).reshape(1, 1, *x.shape[2:])
    values, positions = _windows(x, *settings, lowest(x.dtype)), _windows(positions, *settings, -1)
    rank, size = len(kernel), math.prod(kernel)
    values, positions = (w.reshape(*w.shape[: 2 + rank], size) for w in (values, positions))
    largest = values.max(-1, keepdims=True)
    found = np.argmax(((values == largest) | (values != values)) & (positions >= 0), -1)
    positions = np.broadcast_to(positions, values.shape)
    return np.take_along_axis(positions, found[..., None], -1)[..., 0]


@op(
    infer=_infer_pool("avg_pool", "f"),
    samples=[*_pool_samples(count_include_pad=False), *_pool_samples(count_include_pad=True)[:2]],
)
def avg_pool(x, *, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, count_include_pad: bool = False):
    """The mean of each window of x [N, C, in...]; padding counts only with count_include_pad; an empty mean is NaN."""
    axes = tuple(range(-len(kernel), 0))
    total = np.sum(_windows(x, kernel, strides, pads, dilations, 0), axes, np.float64)
    inside = np.ones((1, 1, *x.shape[2:]))
    count = np.sum(_windows(inside, kernel, strides, pads, dilations, float(count_include_pad)), axes)
    return (total / count).astype(x.dtype)

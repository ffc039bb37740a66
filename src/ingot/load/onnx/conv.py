"""Rules for convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ingot.ir.dim import Dim, Expr
from ingot.ir.dtype import DType, f32, f64, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, count
from ingot.load.onnx.tensors import count_elements

MAX_WINDOW = 2**31 - 1  # of a window attribute


@onnx("Conv")
def conv(call: Call) -> str:
    return convolve(call, call[0], call[1], call.get(2))


def convolve(call: Call, x: str, filters: str, bias: str | None, *zeros: str | None, op: str = "conv") -> str:
    """Convolve with the attributes of a node. x: the node's first operand, or a value computed from it.

    op, zeros: another op that convolves, and its further operands (zero points).
    """
    kernel = _kernel(call, filters)
    strides, pads, dilations = window(call, kernel)
    groups = call.attr_int("group", 1)
    attributes = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    return str(getattr(call.build, op)(x, filters, bias, *zeros, **attributes))


@onnx("DeformConv", since=19)
def deform_conv(call: Call) -> str:
    kernel = _kernel(call, call[1])
    strides, pads, dilations = window(call, kernel)
    return call.build.deform_conv(
        call[0], call[1], call[2], call.get(3), call.get(4), strides=strides, pads=pads, dilations=dilations,
        groups=call.attr_int("group", 1), offset_groups=call.attr_int("offset_group", 1),
    )  # fmt: skip


def _kernel(call: Call, filters: str) -> tuple[int, ...]:
    """Return the spatial dims of the filter."""
    type = call.build.type(filters)
    if not type.is_static:
        raise call.unbound(f"a filter of symbolic dims, {type}")
    kernel = type.dims[2:]
    if "kernel_shape" in call.attributes and call.attr_ints("kernel_shape") != kernel:
        raise call.malformed(f"attribute 'kernel_shape' is {list(call.attr_ints('kernel_shape'))}, filter {type}")
    return kernel


@onnx("ConvTranspose")
def conv_transpose(call: Call) -> str:
    kernel, rank = _kernel(call, call[1]), call.type(0).rank - 2
    if rank < 1 or len(kernel) != rank:
        raise call.malformed(f"a kernel of {len(kernel)} dims does not fit {call.type(0)}")
    ones, zeros = (1,) * rank, (0,) * rank
    strides, dilations = call.attr_ints("strides", ones), call.attr_ints("dilations", ones)
    extra = call.attr_ints("output_padding", zeros)
    _expect_sizes(
        call, rank, kernel_shape=(kernel, 1), strides=(strides, 1), dilations=(dilations, 1), output_padding=(extra, 0)
    )
    pads, extra = _cut(call, kernel, strides, dilations, extra)
    _expect_sizes(call, rank, pads=(pads, 0), output_padding=(extra, 0))
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e + s
        for n, k, s, d, e in zip(call.shape(0)[2:], kernel, strides, dilations, extra, strict=True)
    ]
    count_elements([n for n in (*call.shape(0)[:2], *full) if isinstance(n, int)], "the uncut result")
    return call.build.conv_transpose(
        call[0], call[1], call.get(2), strides=strides, pads=pads, dilations=dilations,
        groups=call.attr_int("group", 1), output_padding=extra,
    )  # fmt: skip


def _cut(
    call: Call, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], extra: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the pads and the output padding; with a requested output size, the surplus is cropped on both sides."""
    rank, mode = len(kernel), _auto_pad(call)
    if "output_shape" in call.attributes:
        wanted = call.attr_ints("output_shape")
        _expect_sizes(call, rank, output_shape=(wanted, 1))
    elif mode.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(call.shape(0)[2:], strides, strict=True))
    else:
        return (call.attr_ints("pads", (0,) * 2 * rank) if mode == "NOTSET" else (0,) * 2 * rank), extra
    small, large, added = [], [], []
    for n, w, k, s, d, e in zip(call.shape(0)[2:], wanted, kernel, strides, dilations, extra, strict=True):
        total = (n - 1) * s + (k - 1) * d + 1 + e - w
        if not isinstance(total, int):
            raise call.unbound(f"a fixed size {w} of a symbolic dim")
        small.append(max(total, 0) // 2)
        large.append(max(total, 0) - small[-1])
        added.append(e + max(-total, 0))
    return tuple((*small, *large) if mode == "SAME_UPPER" else (*large, *small)), tuple(added)


@onnx("MaxPool")
def max_pool(call: Call) -> tuple[str | None, ...]:
    """Return the largest element of each window, and its index in all of x; with storage_order=1, the spatial indices
    are column-major.
    """
    attributes = _pooling(call)
    result = call.build.max_pool(call[0], **attributes)
    if len(call.outputs) == 1:
        return (result,)
    build, shape = call.build, call.shape(0)
    found = build.max_pool_indices(call[0], **attributes)
    if call.attr_int("storage_order", 0):
        found = _column_major(call, found)
    rows, plane = count(shape[:2]), count(shape[2:])
    first = build.mul(build.iota(length=rows, start=0, step=1, dtype=i64), build.dims(values=(plane,)))
    return result, build.add(found, call.reshape(first, (*shape[:2], *[1] * (len(shape) - 2))))


def _column_major(call: Call, indices: str) -> str:
    """Convert spatial indices from row-major to column-major order: the first spatial dim varies fastest."""
    build, spatial, total = call.build, call.shape(0)[2:], ""
    before: Size = 1
    for i, size in enumerate(spatial):
        after = count(spatial[i + 1 :])
        coordinate = build.mod(build.div(indices, build.dims(values=(after,))), build.dims(values=(size,)))
        term = build.mul(coordinate, build.dims(values=(before,)))
        total, before = build.add(total, term) if total else term, before * size
    return total


def _pooling(call: Call) -> dict[str, tuple[int, ...]]:
    """Return a pooling op's kernel, strides, pads and dilations; the padding of ceil_mode is added to the pads."""
    kernel = call.attr_ints("kernel_shape")
    strides, pads, dilations = window(call, kernel)
    pads, extra = _ceiled(call, kernel, strides, pads, dilations)
    pads = tuple(p + e for p, e in zip(pads, extra, strict=True))
    return {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations}


@onnx("LpPool", since=2)
def lp_pool(call: Call) -> str:
    """Compute the p-norm of each window: the mean of the powers, including zeros of the padding, times the window
    size.
    """
    build, dtype, p = call.build, call.type(0).dtype, call.attr_int("p", 2)
    if p < 1:
        raise call.malformed(f"attribute 'p' is {p}, expected 1 or more")
    attributes = _pooling(call)
    powers = raised(call, call.cast(call[0], accumulator(dtype)), p)
    mean = build.avg_pool(powers, **attributes, count_include_pad=True)
    return call.cast(rooted(call, build.mul(mean, float(math.prod(attributes["kernel"]))), p), dtype)


@onnx("GlobalLpPool", since=2)
def global_lp_pool(call: Call) -> str:
    build, dtype, p = call.build, call.type(0).dtype, call.attr_int("p", 2)
    rank = call.type(0).rank
    if p < 1 or rank < 3:
        raise call.malformed(f"attribute 'p' is {p}, operand {call.type(0)}, expected 1 or more and rank 3 or more")
    powers = raised(call, call.cast(call[0], accumulator(dtype)), p)
    return call.cast(rooted(call, build.reduce_sum(powers, axes=tuple(range(2, rank)), keepdims=True), p), dtype)


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which sums of powers of a float dtype are computed."""
    return f64 if dtype is f64 else f32


def raised(call: Call, x: str, p: int) -> str:
    """Compute |x| to the power p."""
    build = call.build
    return build.mul(x, x) if p == 2 else build.abs(x) if p == 1 else build.pow(build.abs(x), float(p))


def rooted(call: Call, x: str, p: int) -> str:
    """Compute the p-th root of x >= 0."""
    return x if p == 1 else call.build.sqrt(x) if p == 2 else call.build.pow(x, 1 / p)


@onnx("AveragePool")
def average_pool(call: Call) -> str:
    """The padding of ceil_mode never counts in the mean. Pads that do count are therefore added by a separate pad
    op.
    """
    build, x = call.build, call[0]
    kernel = call.attr_ints("kernel_shape")
    strides, pads, dilations = window(call, kernel)
    included = bool(call.attr_int("count_include_pad", 0))
    pads, extra = _ceiled(call, kernel, strides, pads, dilations)
    if included and any(extra):
        rank = len(kernel)
        x = build.pad(x, low=(0, 0, *pads[:rank]), high=(0, 0, *pads[rank:]), value=0.0)
        pads, included = extra, False
    else:
        pads = tuple(p + e for p, e in zip(pads, extra, strict=True))
    attributes = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    return build.avg_pool(x, **attributes, count_include_pad=included)


Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def window(call: Call, kernel: tuple[int, ...]) -> Window:
    """Return the strides, pads and dilations of a window over the spatial dims of operand 0."""
    return expect_window(call, kernel, call.type(0).shape[2:])


def expect_window(call: Call, kernel: tuple[Size, ...], spatial: Sequence[Dim]) -> Window:
    """Return strides, pads and dilations, checked: one per spatial dim, two pads, positive and within 32 bits.

    Kernel sizes that are only known at run time are not checked.
    """
    rank = len(spatial)
    if rank < 1 or len(kernel) != rank:
        raise call.malformed(f"a kernel of {len(kernel)} dims does not fit {call.type(0)}")
    ones = (1,) * rank
    strides, dilations = call.attr_ints("strides", ones), call.attr_ints("dilations", ones)
    pads = _pads(call, kernel, strides, dilations)
    sizes = {"kernel_shape": (kernel, 1), "strides": (strides, 1), "dilations": (dilations, 1), "pads": (pads, 0)}
    _expect_sizes(call, rank, **sizes)
    padded = [n + pads[i] + pads[rank + i] for i, n in enumerate(spatial) if isinstance(n, int)]
    padded += [n for n in call.type(0).shape[:2] if isinstance(n, int)]
    count_elements(padded, "the padded operand")
    return strides, pads, dilations


def _expect_sizes(call: Call, rank: int, **given: tuple[tuple[Size, ...], int]) -> None:
    """Raise LoadError unless each attribute has a value per spatial dim (pads: two), from its lower bound to 2^31 -
    1.
    """
    for name, (values, low) in given.items():
        count = 2 * rank if name == "pads" else rank
        if len(values) != count or any(isinstance(v, int) and not low <= v <= MAX_WINDOW for v in values):
            raise call.malformed(f"{name} is {list(values)}, expected {count} values of {low} or more")


def _auto_pad(call: Call) -> str:
    """Return the attribute `auto_pad`; an empty one means none, as in ONNX Runtime."""
    return call.word("auto_pad", "NOTSET", ("", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")) or "NOTSET"


def _pads(call: Call, kernel: Sequence[Any], strides: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[int, ...]:
    rank, mode = len(kernel), _auto_pad(call)
    if mode == "NOTSET":
        return call.attr_ints("pads", (0,) * 2 * rank)
    if mode == "VALID":
        return (0,) * 2 * rank
    if len(strides) != rank or len(dilations) != rank or min(strides) < 1:
        raise call.malformed(f"strides {list(strides)}, dilations {list(dilations)} do not fit {call.type(0)}")
    small, large = [], []
    for size, k, s, d in zip(call.shape(0)[2:], kernel, strides, dilations, strict=True):
        if isinstance(size, Expr):
            if s != 1:
                raise call.unbound(f"auto_pad {mode} with a stride over a symbolic dim")
            total = d * (k - 1)
        else:
            total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        small.append(total // 2)
        large.append(total - total // 2)
    return (*small, *large) if mode == "SAME_UPPER" else (*large, *small)


def _ceiled(
    call: Call, kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the pads, and the padding that ceil_mode adds after each dim for a last window that starts inside the
    input or its pads.
    """
    rank = len(kernel)
    if not call.attr_int("ceil_mode", 0):
        return pads, (0,) * 2 * rank
    extra = []
    for i, size in enumerate(call.shape(0)[2:]):
        if isinstance(size, Expr):
            raise call.unbound("ceil_mode over a symbolic dim")
        span = size + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1
        windows = -(-span // strides[i]) + 1
        if (windows - 1) * strides[i] >= size + pads[i]:
            windows -= 1
        extra.append(max((windows - 1) * strides[i] - span, 0))
    return pads, (*[0] * rank, *extra)


@onnx("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> str:
    rank = call.type(0).rank
    if rank < 3:
        raise call.malformed(f"operand {call.type(0)}, expected rank 3 or more")
    reduce = call.build.reduce_mean if call.op == "GlobalAveragePool" else call.build.reduce_max
    return reduce(call[0], axes=tuple(range(2, rank)), keepdims=True)

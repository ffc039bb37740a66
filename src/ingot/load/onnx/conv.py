"""Convolution and pooling."""

from __future__ import annotations

from ingot.dim import Expr
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.tensors import count_elements

MAX_WINDOW = 2**31 - 1


@onnx("Conv")
def conv(call: Call) -> str:
    if not call.type(1).is_static:
        raise call.unsupported(f"a filter of symbolic dims, {call.type(1)}")
    kernel = call.type(1).dims[2:]
    if "kernel_shape" in call.attributes and call.attr_ints("kernel_shape") != kernel:
        raise call.malformed(
            f"attribute 'kernel_shape' is {list(call.attr_ints('kernel_shape'))}, filter {call.type(1)}"
        )
    strides, pads, dilations = _window(call, kernel)
    groups = call.attr_int("group", 1)
    return call.build.conv(
        call[0], call[1], call.get(2), strides=strides, pads=pads, dilations=dilations, groups=groups
    )


@onnx("MaxPool")
def max_pool(call: Call) -> str:
    if call.attr_int("storage_order", 0) or call.type(0).dtype.kind != "f":
        raise call.unsupported(f"storage_order=1, or {call.type(0)}")
    kernel = call.attr_ints("kernel_shape")
    strides, pads, dilations = _window(call, kernel)
    pads, extra = _ceiled(call, kernel, strides, pads, dilations)
    pads = tuple(p + e for p, e in zip(pads, extra, strict=True))
    return call.build.max_pool(call[0], kernel=kernel, strides=strides, pads=pads, dilations=dilations)


@onnx("AveragePool")
def average_pool(call: Call) -> str:
    """What ceil_mode adds past the padding never counts, so pads that do count are made before and apart from it."""
    build, x = call.build, call[0]
    kernel = call.attr_ints("kernel_shape")
    strides, pads, dilations = _window(call, kernel)
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


def _window(call: Call, kernel: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, pads and dilations, checked: one per spatial dim, two pads, positive and within 32 bits."""
    rank = call.type(0).rank - 2
    if rank < 1 or len(kernel) != rank:
        raise call.malformed(f"a kernel of {len(kernel)} dims does not fit {call.type(0)}")
    ones = (1,) * rank
    strides, dilations = call.attr_ints("strides", ones), call.attr_ints("dilations", ones)
    pads = _pads(call, kernel, strides, dilations)
    for name, values, count, low in (
        ("kernel_shape", kernel, rank, 1),
        ("strides", strides, rank, 1),
        ("dilations", dilations, rank, 1),
        ("pads", pads, 2 * rank, 0),
    ):
        if len(values) != count or any(not low <= v <= MAX_WINDOW for v in values):
            raise call.malformed(f"{name} is {list(values)}, expected {count} values of {low} or more")
    added = (0, 0, *(before + after for before, after in zip(pads[:rank], pads[rank:], strict=True)))
    padded = [n + extra for n, extra in zip(call.type(0).shape, added, strict=True) if isinstance(n, int)]
    count_elements(padded, "the padded operand")
    return strides, pads, dilations


def _pads(call: Call, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[int, ...]:
    rank = len(kernel)
    mode = call.attr_text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return call.attr_ints("pads", (0,) * 2 * rank)
    if mode == "VALID":
        return (0,) * 2 * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise call.malformed(f"attribute 'auto_pad' is {mode!r}")
    if len(strides) != rank or len(dilations) != rank or min(strides) < 1:
        raise call.malformed(f"strides {list(strides)}, dilations {list(dilations)} do not fit {call.type(0)}")
    small, large = [], []
    for size, k, s, d in zip(call.shape(0)[2:], kernel, strides, dilations, strict=True):
        if isinstance(size, Expr):
            if s != 1:
                raise call.unsupported(f"auto_pad {mode} with a stride over a symbolic dim")
            total = d * (k - 1)
        else:
            total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        small.append(total // 2)
        large.append(total - total // 2)
    return (*small, *large) if mode == "SAME_UPPER" else (*large, *small)


def _ceiled(
    call: Call, kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pads, and what ceil_mode adds after each dim for a last window that starts inside the input or its pads."""
    rank = len(kernel)
    if not call.attr_int("ceil_mode", 0):
        return pads, (0,) * 2 * rank
    extra = []
    for i, size in enumerate(call.shape(0)[2:]):
        if isinstance(size, Expr):
            raise call.unsupported("ceil_mode over a symbolic dim")
        room = size + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1
        windows = -(-room // strides[i]) + 1
        if (windows - 1) * strides[i] >= size + pads[i]:
            windows -= 1
        extra.append(max((windows - 1) * strides[i] - room, 0))
    return pads, (*[0] * rank, *extra)


@onnx("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> str:
    rank = call.type(0).rank
    if rank < 3:
        raise call.malformed(f"operand {call.type(0)}, expected rank 3 or more")
    reduce = call.build.reduce_mean if call.op == "GlobalAveragePool" else call.build.reduce_max
    return reduce(call[0], axes=tuple(range(2, rank)), keepdims=True)

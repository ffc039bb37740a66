"""Rules for convolution and pooling."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ingot.ir.dim import Expr, Known
from ingot.load.aten.builder import AtenBuilder, Tensor, element_count
from ingot.load.aten.registry import aten

Window = Sequence[int] | int


def per_axis(value: Window, count: int) -> tuple[int, ...]:
    """Expand a window parameter given once for all axes to one value per axis."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * count if len(values) == 1 else values)


def _batched(b: AtenBuilder, x: Tensor, spatial: int) -> Tensor:
    """Add a batch axis to x, which torch allows to omit."""
    return x if b.rank(x) == spatial + 2 else b.reshape(x, (1, *b.shape(x)))


@aten("conv1d.default", "conv2d.default", "conv3d.default")
def conv(
    b: AtenBuilder, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Window = 1, padding: Window = 0,
    dilation: Window = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    spatial = b.rank(weight) - 2
    pads = per_axis(padding, spatial)
    return _conv(b, x, weight, bias, stride, pads + pads, dilation, groups)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_named_padding(
    b: AtenBuilder, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Window = 1, padding: str = "valid",
    dilation: Window = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """ "same" puts an odd pad at the end, as torch does."""
    spatial = b.rank(weight) - 2
    steps = per_axis(dilation, spatial)
    kernel = [b.static(k, "the kernel") for k in b.shape(weight)[2:]]
    total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(steps, kernel, strict=True)]
    before = tuple(n // 2 for n in total)
    after = tuple(n - n // 2 for n in total)
    return _conv(b, x, weight, bias, stride, before + after, dilation, groups)


@aten("convolution.default")
def convolution(
    b: AtenBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Window, padding: Window, dilation: Window,
    transposed: bool, output_padding: Window, groups: int,
) -> Tensor:  # fmt: skip
    if transposed:
        return conv_transpose(b, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(b, x, weight, bias, stride, padding, dilation, groups)


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    b: AtenBuilder, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Window = 1, padding: Window = 0,
    output_padding: Window = 0, groups: int = 1, dilation: Window = 1,
) -> Tensor:  # fmt: skip
    spatial = b.rank(weight) - 2
    pads = per_axis(padding, spatial)
    y = b.add(
        "conv_transpose", _batched(b, x, spatial), weight, bias, strides=per_axis(stride, spatial), pads=pads + pads,
        dilations=per_axis(dilation, spatial), groups=groups, output_padding=per_axis(output_padding, spatial),
    )  # fmt: skip
    return b.reshape(y, b.result.shape)


def _conv(
    b: AtenBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Window, pads: tuple[int, ...],
    dilation: Window, groups: int,
) -> Tensor:  # fmt: skip
    spatial = b.rank(weight) - 2
    strides, dilations = per_axis(stride, spatial), per_axis(dilation, spatial)
    result = b.add(
        "conv", _batched(b, x, spatial), weight, bias, strides=strides, pads=pads, dilations=dilations, groups=groups
    )
    return b.reshape(result, b.result.shape)


# -- pooling


@aten("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def max_pool(
    b: AtenBuilder, x: Tensor, kernel_size: Window, stride: Window = (), padding: Window = 0, dilation: Window = 1,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    result = b.result[0] if isinstance(b.result, list) else b.result
    spatial = _spatial(b)
    kernel = per_axis(kernel_size, spatial)
    strides = per_axis(stride, spatial) if stride != () and stride != [] else kernel
    dilations = per_axis(dilation, spatial)
    x = _batched(b, x, spatial)
    pads = _pads(b, x, result.shape, kernel, strides, per_axis(padding, spatial), dilations, ceil_mode)
    y = b.add("max_pool", x, kernel=kernel, strides=strides, pads=pads, dilations=dilations)
    return b.reshape(y, result.shape)


@aten("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "max_pool1d_with_indices.default")
def max_pool_with_indices(
    b: AtenBuilder, x: Tensor, kernel_size: Window, stride: Window = (), padding: Window = 0, dilation: Window = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    y = max_pool(b, x, kernel_size, stride, padding, dilation, ceil_mode)
    pooled = y
    while (node := b.graph.producer(pooled)) is not None and node.op.view:
        pooled = str(node.operands[0])
    assert node is not None
    positions = b.add("max_pool_indices", node.operands[0], **node.attributes)
    return y, b.reshape(positions, b.result[1].shape)


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    b: AtenBuilder, x: Tensor, kernel_size: Window, stride: Window = (), padding: Window = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    spatial = _spatial(b)
    kernel = per_axis(kernel_size, spatial)
    strides = per_axis(stride, spatial) if stride != () and stride != [] else kernel
    ones, given = (1,) * spatial, per_axis(padding, spatial)
    x = _batched(b, x, spatial)
    pads = _pads(b, x, b.result.shape, kernel, strides, given, ones, ceil_mode)
    is_cut = pads != given + given  # what ceil_mode adds never counts
    counted = bool(divisor_override or (count_include_pad and (any(given) or not is_cut)))
    y = b.add("avg_pool", x, kernel=kernel, strides=strides, pads=pads, dilations=ones, count_include_pad=counted)
    if divisor_override:
        y = b.add("mul", y, b.scalar(math.prod(kernel) / divisor_override, b.dtype(y)))
    elif counted and is_cut:
        y = _of_cut_windows(b, x, y, kernel, strides, given)
    return b.reshape(y, b.result.shape)


def _of_cut_windows(
    b: AtenBuilder, x: Tensor, y: Tensor, kernel: tuple[int, ...], strides: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor:
    """The means over the part of each window before the end of the padding; y: the means over whole windows."""
    for axis, (window, step, pad) in enumerate(zip(kernel, strides, padding, strict=True), 2):
        end, count = (b.static(b.shape(each)[axis], "a pooled axis") for each in (x, y))
        first = step * np.arange(count)
        share = window / (np.minimum(first + window, end + 2 * pad) - first)
        table = share.astype(b.dtype(y).numpy).reshape(count, *[1] * (b.rank(y) - 1 - axis))
        y = b.add("mul", y, b.constant(table))
    return y


def _spatial(b: AtenBuilder) -> int:
    """Return the number of pooled axes of this call, from the name of its op."""
    return int(b.target.split("pool")[1][0])


def _pads(
    b: AtenBuilder, x: Tensor, result: Sequence[Known], kernel: tuple[int, ...], strides: tuple[int, ...],
    padding: tuple[int, ...], dilations: tuple[int, ...], ceil_mode: bool,
) -> tuple[int, ...]:  # fmt: skip
    """Return the pads before and after; ceil_mode pads at the end until the last window fits."""
    if not ceil_mode:
        return padding + padding
    after = []
    for i, (k, s, p, d) in enumerate(zip(kernel, strides, padding, dilations, strict=True)):
        size, windows = b.shape(x)[2 + i], result[len(result) - len(kernel) + i]
        needed = (windows - 1) * s + (k - 1) * d + 1 - size - p
        after.append(max(b.static(needed, "a ceil_mode pad"), p))
    return padding + tuple(after)


@aten(
    "adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default",
    "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default",
)  # fmt: skip
def adaptive_avg_pool(b: AtenBuilder, x: Tensor, output_size: Sequence[int]) -> Tensor:
    """A single window over a symbolic axis is its mean."""
    spatial = _spatial(b)
    axes = tuple(range(b.rank(x) - spatial, b.rank(x)))
    if set(per_axis(output_size, spatial)) == {1} and any(isinstance(b.shape(x)[axis], Expr) for axis in axes):
        return b.add("reduce_mean", x, axes=axes, keepdims=True)
    kernel = _adaptive_kernel(b, x, output_size)
    if kernel is not None:
        return avg_pool(b, x, kernel, kernel)
    for axis, positions, inside in _adaptive_windows(b, x, output_size):
        weights = inside / inside.sum(1, keepdims=True)
        table = b.constant(weights.astype(b.dtype(x).numpy))
        x = b.add("resample", x, b.constant(positions), table, axis=axis)
    return x


@aten("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(
    b: AtenBuilder, x: Tensor, output_size: Sequence[int]
) -> tuple[Tensor, Callable[[], Tensor]]:  # fmt: skip
    windows = [(axis, inside) for axis, inside, _ in _adaptive_windows(b, x, output_size)]
    positions = functools.partial(_adaptive_positions, b, x, windows)
    kernel = _adaptive_kernel(b, x, output_size)
    if kernel is not None:
        return max_pool(b, x, kernel, kernel), positions
    for axis, inside in windows:
        x = b.add("reduce_max", b.add("gather", x, b.constant(inside), axis=axis), axes=(axis + 1,), keepdims=False)
    return x, positions


def _adaptive_positions(b: AtenBuilder, x: Tensor, windows: Sequence[tuple[int, np.ndarray]]) -> Tensor:
    """The position in its plane of each window's largest element, i64; windows: of each axis, by
    `_adaptive_windows`.
    """
    spatial, rank = len(windows), b.rank(x)
    position = np.zeros((1,) * 2 * spatial, np.int64)
    for i, (axis, inside) in enumerate(windows):
        own = [1] * 2 * spatial
        own[i], own[spatial + i] = inside.shape
        position = position * b.static(b.shape(x)[axis], "an adaptively pooled axis") + inside.reshape(own)
    counts, lead, last = position.shape[:spatial], b.shape(x)[: rank - spatial], rank - spatial
    position = position.reshape(math.prod(counts), -1)
    flat = b.reshape(x, (*lead, element_count(b.shape(x)[last:])))
    found = b.add("gather", flat, b.constant(position), axis=last)
    chosen = b.add("argmax", found, axis=last + 1, keepdims=True)
    every = b.expand(b.constant(position), (*lead, *position.shape))
    return b.reshape(b.add("gather_elements", every, chosen, axis=last + 1), (*lead, *counts))


def _adaptive_sizes(b: AtenBuilder, x: Tensor, output_size: Sequence[int]) -> list[tuple[int, int]]:
    """Return the size of each pooled axis, and its number of windows."""
    spatial = _spatial(b)
    sizes = [b.static(d, "an adaptively pooled axis") for d in b.shape(x)[-spatial:]]
    return list(zip(sizes, per_axis(output_size, spatial), strict=True))


def _adaptive_kernel(b: AtenBuilder, x: Tensor, output_size: Sequence[int]) -> tuple[int, ...] | None:
    """Return the window size if all windows have one size and are adjacent; None if they differ or overlap."""
    pairs = _adaptive_sizes(b, x, output_size)
    return None if any(size % count for size, count in pairs) else tuple(size // count for size, count in pairs)


def _adaptive_windows(
    b: AtenBuilder, x: Tensor, output_size: Sequence[int]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield, for each axis, the elements of its windows, i64[windows, longest], and which of them count, bool.

    Window i of n has the elements from floor(i * size / n) to ceil((i + 1) * size / n); a shorter one repeats its last.
    """
    pairs = _adaptive_sizes(b, x, output_size)
    for axis, (size, count) in enumerate(pairs, b.rank(x) - len(pairs)):
        window = np.arange(count)
        first, stop = window * size // count, -(-(window + 1) * size // count)
        positions = first[:, None] + np.arange((stop - first).max(initial=1))
        yield axis, np.minimum(positions, stop[:, None] - 1), positions < stop[:, None]

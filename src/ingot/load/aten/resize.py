"""Rules: upsampling and interpolation, each axis on its own."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ingot.dim import Expr, Known, floordiv
from ingot.dtype import f32, f64
from ingot.load.aten.builder import AtenBuilder, Tensor
from ingot.load.aten.registry import aten
from ingot.load.resample import Axis, align_corners, cubic, half_pixel, linear, nearest, repeats, taps

_MODES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int]] = {
    "linear": (linear, 1),
    "bicubic": (partial(cubic, a=-0.75), 2),
    "bicubic_aa": (partial(cubic, a=-0.5), 2),
}


@aten("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
@aten("_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default", "_upsample_nearest_exact3d.default")
def upsample_nearest(
    b: AtenBuilder, x: Tensor, output_size: Sequence[Known], *scales: float | None, **named: float | None
) -> Tensor:  # fmt: skip
    """Of a symbolic axis, each element repeated a whole number of times. Repeats of all axes are one expand."""
    places = 0.5 if "exact" in b.target else 0.0
    factors: list[int] = []
    for axis, (size, out, scale) in enumerate(_axes(b, x, scales, named), 2):
        factor: Known | None
        if isinstance(size, Expr) or isinstance(out, Expr):
            factor = floordiv(out, size)
            if factor * size != out or not isinstance(factor, int):
                return NotImplemented
        else:
            coordinates = (np.arange(out, dtype=np.float32) + np.float32(places)) * np.float32(scale or size / out)
            indices = nearest(coordinates, size, "floor")
            factor = repeats(indices, size)
            if factor is None:
                x, factor = b.add("gather", x, b.constant(indices), axis=axis), 1
        factors.append(factor)
    pairs = list(zip(b.shape(x)[2:], factors, strict=True))
    split = [dim for size, factor in pairs for dim in ((size, 1) if factor != 1 else (size,))]
    full = [dim for size, factor in pairs for dim in ((size, factor) if factor != 1 else (size,))]
    head = b.shape(x)[:2]
    x = b.expand(b.reshape(x, (*head, *split)), (*head, *full))
    return b.reshape(x, b.result.shape)


@aten("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
@aten("_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec")
def upsample_nearest_vec(
    b: AtenBuilder, x: Tensor, output_size: Sequence[Known] | None, scale_factors: Sequence[float] | None
) -> Tensor:  # fmt: skip
    return upsample_nearest(b, x, (), *(scale_factors or ()))


@aten("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
@aten("upsample_bicubic2d.default", "_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")
def interpolate(
    b: AtenBuilder, x: Tensor, output_size: Sequence[Known], align: bool, *scales: float | None, **named: float | None
) -> Tensor:  # fmt: skip
    """f16 and bf16 are computed in f32. Of aligned corners, torch's antialiasing takes only the scale."""
    axes = _axes(b, x, scales, named)
    dtype = b.dtype(x)
    if dtype.kind != "f":
        return NotImplemented
    antialias = "_aa" in b.target
    kernel, support = _MODES[("bicubic_aa" if antialias else "bicubic") if "cubic" in b.target else "linear"]
    x = b.cast(x, dtype if dtype is f64 else f32)
    for axis, (size, out, scale) in enumerate(axes, 2):
        if isinstance(size, Expr) or isinstance(out, Expr):
            return NotImplemented
        scale = (size - 1) / max(out - 1, 1) if align else scale or size / out
        if size == out and scale == 1:
            continue
        each = Axis(size, out, float(out), 1 / scale if scale else 1.0)
        coordinates = align_corners(each) if align and not antialias else half_pixel(each)
        stretch = max(scale, 1.0) if antialias else 1.0
        indices, weights = taps(coordinates, size, kernel, support, stretch=stretch, exclude_outside=antialias)
        table = b.constant(weights.astype(b.dtype(x).numpy))
        x = b.add("resample", x, b.constant(indices), table, axis=axis)
    return b.cast(x, dtype)


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
@aten("upsample_bicubic2d.vec", "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec")
def interpolate_vec(
    b: AtenBuilder, x: Tensor, output_size: Sequence[Known] | None, align: bool, scale_factors: Sequence[float] | None
) -> Tensor:  # fmt: skip
    return interpolate(b, x, (), align, *(scale_factors or ()))


def _axes(
    b: AtenBuilder, x: Tensor, scales: Sequence[float | None], named: dict[str, float | None]
) -> list[tuple[Known, Known, float | None]]:
    """Of each spatial axis: the size, the size wanted, and how far apart results lie where the caller said that."""
    given = [*scales, *(named[name] for name in sorted(named))]  # scales_d, scales_h, scales_w
    sizes, wanted = b.shape(x)[2:], b.result.shape[2:]
    apart = [1 / scale if scale else None for scale in given] + [None] * (len(sizes) - len(given))
    return list(zip(sizes, wanted, apart, strict=True))

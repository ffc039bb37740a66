"""Rules for upsampling and interpolation, axis by axis."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ingot.ir.dim import Known, floordiv, maximum
from ingot.ir.dtype import f32, f64
from ingot.load.aten.builder import AtenBuilder, AtenGraphBuilder, Tensor
from ingot.load.aten.registry import aten
from ingot.load.eager import Value, is_known
from ingot.load.resample import Axis, align_corners, cubic, half_pixel, linear, nearest, repeat, repeats, taps
from ingot.ops.define import Builder

_MODES: dict[str, tuple[Callable[[Builder, Value], Value], int]] = {
    "linear": (linear, 1),
    "bicubic": (partial(cubic, a=-0.75), 2),
    "bicubic_aa": (partial(cubic, a=-0.5), 2),
}


def _spacing(build: Builder, size: Known, out: Known) -> Value:
    """Return the distance of adjacent results in the operand: f64."""
    return build.div(build.scalar(size, f64), build.scalar(out, f64))


@aten("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
@aten("_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default", "_upsample_nearest_exact3d.default")
def upsample_nearest(
    b: AtenBuilder, x: Tensor, output_size: Sequence[Known], *scales: float | None, **named: float | None
) -> Tensor:  # fmt: skip
    """An axis that repeats each element equally often is expanded, all such axes at once; other axes are gathered."""
    positions = 0.5 if "exact" in b.target else 0.0
    factors: dict[int, int] = {}
    for axis, (size, out, scale) in reversed([*enumerate(_axes(b, x, scales, named), 2)]):  # single elements while few
        factor = floordiv(out, size) if size != 0 else 0
        if is_known(size, out) or not isinstance(factor, int) or factor * size != out:
            build = b.builder_for(size, out)
            spacing = build.scalar(scale, f64) if scale else _spacing(build, size, out)
            position = build.add(build.iota(length=out, start=0, step=1, dtype=f32), positions)
            indices = nearest(build, build.mul(position, build.cast(spacing, dtype=f32)), size, "floor")
            read = repeats(indices, size) if isinstance(indices, np.ndarray) and isinstance(size, int) else None
            if read is None:
                x, read = b.add("gather", x, b.table(indices), axis=axis), 1
            factor = read
        if factor != 1:
            factors[axis] = factor
    return repeat(AtenGraphBuilder(b), x, factors)


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
    """f16 and bf16 are computed in f32. With aligned corners, torch's antialiasing only uses the scale."""
    axes = _axes(b, x, scales, named)
    dtype = b.dtype(x)
    if dtype.kind != "f":
        return NotImplemented
    antialias = "_aa" in b.target
    kernel, support = _MODES[("bicubic_aa" if antialias else "bicubic") if "cubic" in b.target else "linear"]
    x = b.cast(x, dtype if dtype is f64 else f32)
    for axis, (size, out, scale) in enumerate(axes, 2):
        if size == out and (align or scale in (None, 1)):
            continue
        build = b.builder_for(size, out)
        if align:
            spacing = _spacing(build, size - 1, maximum(out - 1, 1))
        else:
            spacing = build.scalar(scale, f64) if scale else _spacing(build, size, out)
        inverse = build.where(build.equal(spacing, 0.0), 1.0, build.div(1.0, spacing))
        each = Axis(size, out, build.scalar(out, f64), inverse)
        coordinates = (align_corners if align and not antialias else half_pixel)(build, each)
        stretch = build.maximum(spacing, 1.0) if antialias else None
        indices, weights = taps(
            build, coordinates, each, kernel, support, stretch=stretch, exclude_outside=antialias
        )  # fmt: skip
        x = b.add("resample", x, b.table(indices), b.table(build.cast(weights, dtype=b.dtype(x))), axis=axis)
    return b.cast(x, dtype)


@aten("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(b: AtenBuilder, x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    return b.add(
        "grid_sample", x, grid, mode=("linear", "nearest", "cubic")[mode],
        padding=("zeros", "border", "reflection")[padding], align_corners=bool(align),
    )  # fmt: skip


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
@aten("upsample_bicubic2d.vec", "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec")
def interpolate_vec(
    b: AtenBuilder, x: Tensor, output_size: Sequence[Known] | None, align: bool, scale_factors: Sequence[float] | None
) -> Tensor:  # fmt: skip
    return interpolate(b, x, (), align, *(scale_factors or ()))


def _axes(
    b: AtenBuilder, x: Tensor, scales: Sequence[float | None], named: dict[str, float | None]
) -> list[tuple[Known, Known, float | None]]:
    """Return, for each spatial axis: the size, the output size, and the distance of adjacent results if the caller gave
    it.
    """
    given = [*scales, *(named[name] for name in sorted(named))]  # scales_d, scales_h, scales_w
    sizes, wanted = b.shape(x)[2:], b.result.shape[2:]
    spacing = [1 / scale if scale else None for scale in given] + [None] * (len(sizes) - len(given))
    return list(zip(sizes, wanted, spacing, strict=True))

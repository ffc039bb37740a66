"""Rule for Resize: each axis is resampled separately, by repetition, a gather, or weighted sums."""

from __future__ import annotations

import functools

import numpy as np

from ingot.ir.dim import floordiv, scaled
from ingot.ir.dtype import boolean, f32, f64, i64
from ingot.load.eager import Eager, Value, is_known
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, is_negative, normalize_axes
from ingot.load.onnx.tensors import count_elements
from ingot.load.resample import COORDINATES, NEAREST, Axis, crop, cubic, linear, nearest, repeat, repeats, taps
from ingot.ops.define import Builder

_CROP = "tf_crop_and_resize"
# In these modes, an integer factor repeats each element of an axis equally often or not at all, whatever the size.
_EVEN = ("asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")


@onnx("Resize", since=11)
def resize(call: Call) -> str:
    mode = call.word("mode", "nearest", ("nearest", "linear", "cubic"))
    x, dtype = call[0], call.type(0).dtype
    axes = normalize_axes(call.attr_ints("axes", tuple(range(call.type(0).rank))), call.type(0).rank)
    if mode != "nearest" and dtype is boolean:
        raise call.malformed(f"attribute 'mode' is {mode!r} for {call.type(0)}")
    wanted = _wanted(call, axes)
    if mode == "nearest":
        x = _nearest(call, axes, wanted)
    else:  # rounded once, at the end
        x = call.cast(x, dtype if dtype is f64 or dtype is f32 else f32 if dtype.kind == "f" else f64)
        for axis, each in wanted.items():
            x = _summed(call, x, axis, each, _coordinates(call, axes, axis, each), mode)
    if _mode(call) == _CROP:
        x = _extrapolated(call, x, axes, wanted)
    return call.cast(call.build.round(x) if mode != "nearest" and dtype.kind in "iu" else x, dtype)


def _mode(call: Call) -> str:
    return call.word("coordinate_transformation_mode", "half_pixel", (*COORDINATES, _CROP))


def _rounding(call: Call) -> str:
    return call.word("nearest_mode", "round_prefer_floor", tuple(NEAREST))


def _builder_for(call: Call, axis: Axis, *values: Value) -> Builder:
    return call.builder_for(axis.size, axis.out, axis.width, axis.scale, *values)


def _wanted(call: Call, axes: tuple[int, ...]) -> dict[int, Axis]:
    """Return the axes that change, or that may change."""
    sizes = [call.shape(0)[axis] for axis in axes]
    has_sizes = call.has(3) and call.type(3).shape != (0,)
    if has_sizes == (call.has(2) and call.type(2).shape != (0,)):
        raise call.malformed("one of scales and sizes is expected")
    found = _by_sizes(call, sizes) if has_sizes else _by_scales(call, sizes)
    count_elements([each.out for each in found if isinstance(each.out, int)], "sizes")
    result: dict[int, Axis] = {}
    for axis, each in zip(axes, found, strict=True):
        is_same = each.size == each.out and (not isinstance(each.scale, np.ndarray) or each.scale == 1)
        if is_same and _mode(call) != _CROP:
            continue
        if each.size == 0 and each.out != 0 and isinstance(each.out, int):
            raise call.malformed(f"{each.out} elements of an empty axis {axis}")
        result[axis] = each
    return result


def _by_scales(call: Call, sizes: list[Size]) -> list[Axis]:
    scales = call.single(2) if len(sizes) == 1 else call.value(2)
    builder = call.builder_for(scales)
    if len(sizes) == 1:
        scales = builder.reshape(scales, shape=(1,))
    elif call.type(2).shape != (len(sizes),):
        raise call.malformed(f"scales are {call.type(2)}, expected {len(sizes)} positive numbers")
    if isinstance(scales, np.ndarray) and not (np.isfinite(scales).all() and (scales > 0).all()):
        raise call.malformed(f"scales are {scales[:8].tolist()}, expected {len(sizes)} positive numbers")
    found = []
    for i, (size, out) in enumerate(zip(sizes, _scaled(call, sizes, scales), strict=True)):
        scale = builder.reshape(builder.slice(scales, starts=(i,), stops=(i + 1,), steps=(1,)), shape=())
        own = call.builder_for(scale, size)
        width = own.cast(own.mul(scale, own.scalar(size, f32)), dtype=f64)
        found.append(Axis(size, out, width, builder.cast(scale, dtype=f64)))
    return found


def _scaled(call: Call, sizes: list[Size], scales: Value) -> tuple[Size, ...]:
    """Return the dims times the scales, in f32 and rounded down; symbolic dims times an exact fraction, else computed
    at run time.
    """
    if isinstance(scales, np.ndarray):
        exact = [_multiplied(size, scale.item()) for size, scale in zip(sizes, scales, strict=True)]
        if None not in exact:
            return tuple(exact)  # type: ignore[arg-type]
    build = call.build
    product = build.mul(build.cast(build.dims(values=tuple(sizes)), dtype=f32), scales)
    return call.measured(build.cast(build.floor(product), dtype=i64))


def _multiplied(size: Size, scale: float) -> Size | None:
    if isinstance(size, int):
        return int(np.floor(np.float32(size) * np.float32(scale)))
    return scaled(size, scale)


def _by_sizes(call: Call, sizes: list[Size]) -> list[Axis]:
    wanted = call.dims(3)
    if len(wanted) != len(sizes) or any(is_negative(size) for size in wanted):
        raise call.malformed(f"sizes are {list(wanted)}, expected {len(sizes)} of 0 or more")
    policy = call.word("keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
    scales = [_ratio(call.builder_for(*pair), *pair) for pair in zip(wanted, sizes, strict=True)]
    if policy != "stretch":
        builder = call.builder_for(*scales)
        each = builder.concat(*(builder.reshape(scale, shape=(1,)) for scale in scales), axis=0)
        reduce = builder.reduce_min if policy == "not_larger" else builder.reduce_max
        scale = reduce(each, axes=(0,), keepdims=False)
        extents = builder.cast(builder.dims(values=tuple(sizes)), dtype=f64)
        wanted = call.measured(builder.cast(builder.add(builder.mul(extents, scale), 0.5), dtype=i64))
        scales = [scale] * len(sizes)
    found = zip(sizes, wanted, scales, strict=True)
    return [Axis(size, out, call.builder_for(out).scalar(out, f64), scale) for size, out, scale in found]


def _ratio(builder: Builder, out: Size, size: Size) -> Value:
    return builder.scalar(1, f64) if size == 0 else builder.div(builder.scalar(out, f64), builder.scalar(size, f64))


def _coordinates(call: Call, axes: tuple[int, ...], axis: int, each: Axis) -> Value:
    """Return the coordinates of an axis's output elements in the operand: f32[out]."""
    mode = _mode(call)
    if mode != _CROP:
        return COORDINATES[mode](_builder_for(call, each), each)
    roi, axis_index = call.value(1), axes.index(axis)
    builder = call.builder_for(roi)
    if call.type(1).shape != (2 * len(axes),):
        raise call.malformed(f"roi is {call.type(1)}, expected {2 * len(axes)} numbers")
    ends = [builder.slice(roi, starts=(i,), stops=(i + 1,), steps=(1,)) for i in (axis_index, axis_index + len(axes))]
    found = crop(_builder_for(call, each, roi), each, *(builder.cast(end, dtype=f32) for end in ends))
    if isinstance(found, np.ndarray) and not np.isfinite(found).all():
        raise call.malformed(f"roi is {roi.tolist()}, expected finite numbers")
    return found


def _nearest(call: Call, axes: tuple[int, ...], wanted: dict[int, Axis]) -> str:
    x, factors = call[0], {}
    for axis, each in reversed(wanted.items()):  # the innermost axis first, while the tensor is small
        factor = None if is_known(each.size, each.out) else _even_factor(call, each)
        if factor is None:
            coordinates = _coordinates(call, axes, axis, each)
            indices = nearest(call.builder_for(each.size, coordinates), coordinates, each.size, _rounding(call))
            if isinstance(indices, np.ndarray) and isinstance(each.size, int):
                factor = repeats(indices, each.size)
        if factor is None:
            x = call.build.gather(x, call.build.table(indices), axis=axis)
        else:
            factors[axis] = factor
    return repeat(call.build, x, factors)


def _even_factor(call: Call, axis: Axis) -> int | None:
    """Return how often each element of a symbolic axis is repeated; None unless all are repeated equally often at any
    size.
    """
    factor = floordiv(axis.out, axis.size)
    if not isinstance(factor, int) or factor * axis.size != axis.out or not 1 <= factor < 2**16:
        return None
    if _mode(call) not in _EVEN:
        return None
    builder = Eager()
    tried = Axis(3, 3 * factor, builder.scalar(3 * factor, f64), builder.scalar(factor, f64))
    indices = nearest(builder, COORDINATES[_mode(call)](builder, tried), 3, _rounding(call))
    return factor if repeats(indices, 3) == factor else None


def _summed(call: Call, x: str, axis: int, each: Axis, coordinates: Value, mode: str) -> str:
    build, support = call.build, 1 if mode == "linear" else 2
    kernel = linear if mode == "linear" else functools.partial(cubic, a=call.attr_float("cubic_coeff_a", -0.75))
    own = call.builder_for(each.scale)
    stretch = own.maximum(own.div(1.0, each.scale), 1.0) if call.attr_int("antialias", 0) else None
    builder = _builder_for(call, each, coordinates)
    indices, weights = taps(
        builder, coordinates, each, kernel, support, stretch=stretch,
        exclude_outside=bool(call.attr_int("exclude_outside", 0)),
    )  # fmt: skip
    weights = builder.cast(weights, dtype=build.type(x).dtype)
    return build.resample(x, build.table(indices), build.table(weights), axis=axis)


def _extrapolated(call: Call, x: str, axes: tuple[int, ...], wanted: dict[int, Axis]) -> str:
    """Replace elements outside of a crop by the extrapolation value."""
    build = call.build
    for axis, each in wanted.items():
        coordinates = _coordinates(call, axes, axis, each)
        builder = call.builder_for(coordinates, each.size)
        outside = builder.logical_or(
            builder.less(coordinates, 0.0), builder.greater(coordinates, builder.scalar(each.size - 1, f32))
        )
        if not isinstance(outside, np.ndarray) or outside.any():
            mask = builder.reshape(outside, shape=(each.out, *(1,) * (build.type(x).rank - axis - 1)))
            value = build.scalar(call.attr_float("extrapolation_value", 0.0), build.type(x).dtype)
            x = build.where(build.table(mask), value, x)
    return x

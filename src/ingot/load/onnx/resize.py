"""Resize: every axis on its own, as copies, a gather or weighted sums of what a table says. And GridSample."""

from __future__ import annotations

import functools
import math

import numpy as np

from ingot.dim import Expr, floordiv
from ingot.dtype import boolean, f32, f64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, is_negative, normalize_axes
from ingot.load.onnx.tensors import count_elements
from ingot.load.resample import COORDINATES, NEAREST, Axis, crop, cubic, linear, nearest, repeats, taps

_CROP = "tf_crop_and_resize"
# These give an axis whose elements repeat a whole number of times the same table at any size.
_EVEN = ("asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")


@onnx("Resize")
def resize(call: Call) -> str:
    mode = _word(call, "mode", "nearest", ("nearest", "linear", "cubic"))
    x, dtype = call[0], call.type(0).dtype
    axes = normalize_axes(call.attr_ints("axes", tuple(range(call.type(0).rank))), call.type(0).rank)
    wanted = _axes(call, axes)
    if mode != "nearest" and dtype is boolean:
        raise call.malformed(f"attribute 'mode' is {mode!r} for {call.type(0)}")
    if mode != "nearest" and any(isinstance(axis, tuple) for axis in wanted.values()):
        raise call.unsupported(f"mode {mode!r} over a symbolic dim")
    if mode != "nearest" and dtype not in (f32, f64):  # rounded once, at the end
        x = call.build.cast(x, dtype=f32 if dtype.kind == "f" else f64)
    for axis, each in wanted.items():
        if isinstance(each, tuple):
            x = _repeated(call, x, axis, _even_factor(call, *each))
        elif mode == "nearest":
            x = _nearest(call, x, axis, nearest(_coordinates(call, axes, axis, each), each.size, _rounding(call)))
        else:
            x = _summed(call, x, axis, each, _coordinates(call, axes, axis, each), mode)
    if call.attr_text("coordinate_transformation_mode", "half_pixel") == _CROP:
        x = _extrapolated(call, x, axes, wanted)
    return call.cast(call.build.round(x) if mode != "nearest" and dtype.kind in "iu" else x, dtype)


def _word(call: Call, name: str, default: str, known: tuple[str, ...]) -> str:
    word = call.attr_text(name, default)
    if word not in known:
        raise call.malformed(f"attribute {name!r} is {word!r}, expected one of {', '.join(known)}")
    return word


def _rounding(call: Call) -> str:
    return _word(call, "nearest_mode", "round_prefer_floor", tuple(NEAREST))


def _axes(call: Call, axes: tuple[int, ...]) -> dict[int, Axis | tuple[Size, Size]]:
    """The axes that change: an Axis, or the operand's and the result's dim where these are symbolic."""
    shape = call.shape(0)
    sizes = [shape[axis] for axis in axes]
    has_sizes = call.has(3) and call.type(3).shape != (0,)
    if has_sizes == (call.has(2) and call.type(2).shape != (0,)):
        raise call.malformed("one of scales and sizes is expected")
    if has_sizes:
        wanted, scales = call.sizes(3), [0.0] * len(axes)
    else:
        data = call.build.graph.data(call[2])
        if data is None:
            raise call.unsupported("an input 2 that is not known at load")
        scales = [float(scale) for scale in data.ravel()]
        if len(scales) != len(axes) or not all(math.isfinite(scale) and scale > 0 for scale in scales):
            raise call.malformed(f"scales are {scales[:8]}, expected {len(axes)} positive numbers")
        wanted = tuple(_scaled(call, size, scale) for size, scale in zip(sizes, scales, strict=True))
    if len(wanted) != len(axes) or any(is_negative(size) for size in wanted):
        raise call.malformed(f"sizes are {list(wanted)}, expected {len(axes)} of 0 or more")
    if has_sizes:
        wanted, scales = _kept_aspect(call, sizes, wanted)
    count_elements([size for size in wanted if isinstance(size, int)], "sizes")
    is_crop = call.attr_text("coordinate_transformation_mode", "half_pixel") == _CROP
    result: dict[int, Axis | tuple[Size, Size]] = {}
    for axis, size, out, scale in zip(axes, sizes, wanted, scales, strict=True):
        if size == out and (scale == 1 or isinstance(size, Expr)) and not is_crop:
            continue
        if isinstance(size, Expr) or isinstance(out, Expr):
            result[axis] = size, out
        else:
            if size == 0 and out:
                raise call.malformed(f"{out} places of an empty axis {axis}")
            width = float(out) if has_sizes else float(np.float32(scale) * np.float32(size))
            result[axis] = Axis(size, out, width, scale)
    return result


def _scaled(call: Call, size: Size, scale: float) -> Size:
    """The dim, multiplied in f32 and rounded down; a symbolic one by a whole number."""
    if isinstance(size, int):
        return int(np.floor(np.float32(size) * np.float32(scale)))
    if scale != int(scale):
        raise call.unsupported(f"a scale of {scale} over a symbolic dim {size}")
    return size * int(scale)


def _kept_aspect(call: Call, sizes: list[Size], wanted: tuple[Size, ...]) -> tuple[tuple[Size, ...], list[float]]:
    """The sizes under keep_aspect_ratio_policy, and the scales that they mean."""
    policy = _word(call, "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
    known = [size for size in (*sizes, *wanted) if isinstance(size, int)]
    if len(known) < 2 * len(sizes):
        if policy != "stretch":
            raise call.unsupported(f"keep_aspect_ratio_policy over symbolic dims {sizes}")
        pairs = zip(sizes, wanted, strict=True)
        return wanted, [w / s if isinstance(s, int) and isinstance(w, int) and s else 1.0 for s, w in pairs]
    scales = [w / s if s else 1.0 for s, w in zip(known[: len(sizes)], known[len(sizes) :], strict=True)]
    if policy == "stretch":
        return wanted, scales
    scale = min(scales) if policy == "not_larger" else max(scales)
    return tuple(int(scale * size + 0.5) for size in known[: len(sizes)]), [scale] * len(sizes)


def _coordinates(call: Call, axes: tuple[int, ...], axis: int, each: Axis) -> np.ndarray:
    mode = _word(call, "coordinate_transformation_mode", "half_pixel", (*COORDINATES, _CROP))
    if mode != _CROP:
        return COORDINATES[mode](each)
    roi = call.build.graph.data(call[1])
    if roi is None:
        raise call.unsupported("an input 1 that is not known at load")
    if roi.shape != (2 * len(axes),):
        raise call.malformed(f"roi is {call.type(1)}, expected {2 * len(axes)} numbers")
    place = axes.index(axis)
    found = crop(each, float(roi[place]), float(roi[place + len(axes)]))
    if not np.isfinite(found).all():
        raise call.malformed(f"roi is {roi.tolist()}, expected finite numbers")
    return found


def _even_factor(call: Call, size: Size, out: Size) -> int:
    """How often an axis of any size is repeated."""
    factor = floordiv(out, size)
    if not isinstance(factor, int) or factor * size != out or not 1 <= factor < 2**16:
        raise call.unsupported(f"resizing a dim of {size} to {out}")
    mode = call.attr_text("coordinate_transformation_mode", "half_pixel")
    tried = Axis(3, 3 * factor, 3.0 * factor, float(factor))
    if mode not in _EVEN or repeats(nearest(COORDINATES[mode](tried), 3, _rounding(call)), 3) != factor:
        raise call.unsupported(f"mode {mode!r} with {_rounding(call)!r} over a symbolic dim {size}")
    return factor


def _repeated(call: Call, x: str, axis: int, factor: int) -> str:
    shape = call.known_shape(call.build.type(x))
    head, size, behind = shape[:axis], shape[axis], shape[axis + 1 :]
    x = call.build.expand(call.reshape(x, (*head, size, 1, *behind)), shape=(*head, size, factor, *behind))
    return call.reshape(x, (*head, size * factor, *behind))


def _nearest(call: Call, x: str, axis: int, indices: np.ndarray) -> str:
    dim = call.build.type(x).shape[axis]
    assert isinstance(dim, int)
    factor = repeats(indices, dim)
    if factor is not None:
        return _repeated(call, x, axis, factor)
    return call.build.gather(x, call.build.table(indices), axis=axis)


def _summed(call: Call, x: str, axis: int, each: Axis, coordinates: np.ndarray, mode: str) -> str:
    build, support = call.build, 1 if mode == "linear" else 2
    kernel = linear if mode == "linear" else functools.partial(cubic, a=call.attr_float("cubic_coeff_a", -0.75))
    stretch = max(1 / each.scale, 1.0) if call.attr_int("antialias", 0) else 1.0
    indices, weights = taps(
        coordinates, each.size, kernel, support, stretch=stretch,
        exclude_outside=bool(call.attr_int("exclude_outside", 0)),
    )  # fmt: skip
    table = build.table(weights.astype(build.type(x).dtype.numpy))
    return build.resample(x, build.table(indices), table, axis=axis)


def _extrapolated(call: Call, x: str, axes: tuple[int, ...], wanted: dict[int, Axis | tuple[Size, Size]]) -> str:
    """What a crop reads from outside has a value of its own."""
    for axis, each in wanted.items():
        if isinstance(each, tuple):
            raise call.unsupported(f"mode {_CROP!r} over a symbolic dim")
        coordinates = _coordinates(call, axes, axis, each)
        outside = (coordinates < 0) | (coordinates > each.size - 1)
        if outside.any():
            behind = (1,) * (call.build.type(x).rank - axis - 1)
            mask = call.build.table(outside.reshape(-1, *behind))
            value = call.build.scalar(call.attr_float("extrapolation_value", 0.0), call.build.type(x).dtype)
            x = call.build.where(mask, value, x)
    return x


@onnx("GridSample")
def grid_sample(call: Call) -> str:
    """Points are computed in their own dtype, elements in theirs, and both in the wider of the two."""
    modes = {"linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic", "nearest": "nearest"}
    mode = _word(call, "mode", "linear" if call.opset >= 20 else "bilinear", tuple(modes))
    padding = _word(call, "padding_mode", "zeros", ("zeros", "border", "reflection"))
    dtype, grid = call.type(0).dtype, call.type(1).dtype
    wide = f64 if f64 in (dtype, grid) or dtype.kind != "f" else f32
    y = call.build.grid_sample(
        call.cast(call[0], wide), call.cast(call[1], wide), mode=modes[mode], padding=padding,
        align_corners=bool(call.attr_int("align_corners", 0)),
    )  # fmt: skip
    return call.cast(y, dtype)

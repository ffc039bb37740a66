"""Rules for ops on image files and regions of images."""

from __future__ import annotations

from math import inf

from ingot.ir.dtype import f32, f64, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.ops.decode import pillow

MAX_BINS = 64  # of a region, along an axis


@onnx("RoiAlign")
def roi_align(call: Call) -> str:
    """Before opset 16, element centers are whole numbers."""
    default = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    mode, centers = call.attr_text("mode", "avg").lower(), call.attr_text("coordinate_transformation_mode", default)
    if mode not in ("avg", "max") or centers not in ("half_pixel", "output_half_pixel"):
        raise call.malformed(f"mode {mode!r} and coordinate_transformation_mode {centers!r}")
    call.expect_sizes(1, -1)
    return call.build.roi_align(
        call[0], call[1], call[2], height=call.attr_int("output_height", 1), width=call.attr_int("output_width", 1),
        ratio=call.attr_int("sampling_ratio", 0), scale=call.attr_float("spatial_scale", 1.0), mode=mode,
        half_pixel=centers == "half_pixel",
    )  # fmt: skip


@onnx("MaxRoiPool")
def max_roi_pool(call: Call) -> str:
    """Return the largest element of each bin of whole pixels, 0 for an empty bin: Girshick, "Fast R-CNN", 2015."""
    build, dtype = call.build, call.type(0).dtype
    counts = call.attr_ints("pooled_shape")
    if call.type(0).rank != 4 or call.type(1).rank != 2 or call.shape(1)[1] != 5:
        raise call.malformed(f"images are {call.type(0)}, regions {call.type(1)}, expected rank 4 and [n, 5]")
    if len(counts) != 2 or not all(1 <= count <= MAX_BINS for count in counts):
        raise call.malformed(f"attribute 'pooled_shape' is {list(counts)}, expected two numbers of 1..{MAX_BINS}")
    numbers, corners = call.slice(call[1], 1, 0, 1), call.slice(call[1], 1, 1, 5)
    corners = _rounded(call, build.mul(call.cast(corners, f32), call.attr_float("spatial_scale", 1.0)))
    x = build.gather(call[0], call.reshape(call.cast(numbers, i64), (call.shape(1)[0],)), axis=0)
    for axis, count, first in ((3, counts[1], 0), (2, counts[0], 1)):
        size = call.shape(0)[axis]
        low, high = _bins(call, call.slice(corners, 1, first, first + 3, 2), count)
        rows = build.iota(length=size, start=0, step=1, dtype=f32)
        rows = call.reshape(rows, tuple(size if i == axis else 1 for i in range(4)))
        found = []
        for bin in range(count):
            a, b = (call.reshape(call.slice(e, 1, bin, bin + 1), (call.shape(1)[0], 1, 1, 1)) for e in (low, high))
            is_in = build.logical_and(build.greater_equal(rows, a), build.less(rows, b))
            inside = build.where(is_in, x, build.scalar(-inf, dtype))
            found.append(build.reduce_max(inside, axes=(axis,), keepdims=True))
        x = build.concat(*found, axis=axis)
    return build.where(build.equal(x, -inf), build.scalar(0.0, dtype), x)


def _rounded(call: Call, x: str) -> str:
    """Round to the nearest whole number, half away from zero: f32."""
    wide = call.cast(x, f64)
    return call.cast(
        call.build.mul(call.build.sign(wide), call.build.floor(call.build.add(call.build.abs(wide), 0.5))), f32
    )


def _bins(call: Call, ends: str, count: int) -> tuple[str, str]:
    """Return the begin and end of the bins between two pixels [n, 2] of one axis: f32 [n, count] each."""
    build = call.build
    begin, end = (call.slice(ends, 1, i, i + 1) for i in (0, 1))
    step = build.div(build.maximum(build.add(build.sub(end, begin), 1.0), 1.0), float(count))
    steps = build.iota(length=count, start=0, step=1, dtype=f32)
    low = build.floor(build.mul(step, steps))
    high = build.ceil(build.mul(step, build.add(steps, 1.0)))
    return build.add(low, begin), build.add(high, begin)


@onnx("ImageDecoder", since=20)
def image_decoder(call: Call) -> str:
    pillow()
    orders = {"RGB": "rgb", "BGR": "bgr", "Grayscale": "gray"}
    pixels = call.attr_text("pixel_format", "RGB")
    if pixels not in orders:
        raise call.malformed(f"attribute 'pixel_format' is {pixels!r}, expected one of {list(orders)}")
    return call.build.decode_image(call[0], pixels=orders[pixels])

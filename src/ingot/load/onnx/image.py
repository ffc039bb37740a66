"""Ops on image files and regions of images."""

from __future__ import annotations

from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.ops.decode import pillow


@onnx("RoiAlign")
def roi_align(call: Call) -> str:
    """Before there was a choice, centers of elements were whole numbers."""
    default = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    mode, centers = call.attr_text("mode", "avg").lower(), call.attr_text("coordinate_transformation_mode", default)
    if mode not in ("avg", "max") or centers not in ("half_pixel", "output_half_pixel"):
        raise call.malformed(f"mode {mode!r} and coordinate_transformation_mode {centers!r}")
    return call.build.roi_align(
        call[0], call[1], call[2], height=call.attr_int("output_height", 1), width=call.attr_int("output_width", 1),
        ratio=call.attr_int("sampling_ratio", 0), scale=call.attr_float("spatial_scale", 1.0), mode=mode,
        half_pixel=centers == "half_pixel",
    )  # fmt: skip


@onnx("ImageDecoder", since=20)
def image_decoder(call: Call) -> str:
    pillow()
    orders = {"RGB": "rgb", "BGR": "bgr", "Grayscale": "gray"}
    pixels = call.attr_text("pixel_format", "RGB")
    if pixels not in orders:
        raise call.malformed(f"attribute 'pixel_format' is {pixels!r}, expected one of {list(orders)}")
    return call.build.decode_image(call[0], pixels=orders[pixels])

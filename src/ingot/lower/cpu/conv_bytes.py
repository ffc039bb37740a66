"""What convolutions of bytes read: images that are rounded to them, and fixed filters that are codes."""

from __future__ import annotations

import math

from ingot.dtype import f32, i8, i32, u8
from ingot.ir import Node
from ingot.lower.cpu.formats import PANEL
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.recipe import Static
from ingot.lower.view import View, channels_last

_ROUND = 0.08  # nanoseconds on one thread per element that is rounded
_FOUR = 4  # bytes that a dot product takes together
_MOST = 1 << 16  # products that one sum of 32 bits holds
_LAST = channels_last(4)


def coded_filter(lowering: Lowering, node: Node) -> str:
    """Refuses filters that are not codes of int8 with a scale for each output channel, for sums of fours."""
    if i8 not in lowering.target.rounded:
        return "images are not to be rounded"
    root = lowering.groups[node].root if node in lowering.groups else node
    decoded = lowering.static_value(str(root.operands[1]))
    types = tuple(operand.type.dtype for operand in decoded.inputs)
    if decoded.op != "dequantize" or types != (i8, f32):
        return "the filter is not codes of int8"
    assert decoded.node is not None
    out, channels, *kernel = decoded.dims
    if decoded.inputs[1].dims != (out,) or decoded.node.axis or decoded.node.block:
        return "the filter has no scale for each output channel"
    if (channels % _FOUR and root.groups > 1) or _filled(channels, _FOUR) * math.prod(kernel) >= _MOST:
        return f"{channels} channels, expected a multiple of {_FOUR}, and below {_MOST} in a window"
    return ""


def rounded_image(lowering: Lowering, x: View) -> tuple[View, View]:
    """An image [N, C, H, W] as bytes with its channels last, and the step and zero point of each [N, 2]; made once.

    Its channels are filled up to fours.
    """
    if x not in lowering.rounded_images:
        name = f"{lowering.lowered.tensors[x.tensor].name}.uint8"
        batch, channels, height, width = x.shape
        codes = lowering.temporary(name, u8, (batch, _filled(channels, _FOUR), height, width), _LAST)
        levels = lowering.temporary(f"{name}.levels", f32, (batch, 2))
        ranges = lowering.temporary(f"{name}.ranges", f32, (batch, height, 2))
        fields: dict[str, Field] = {
            "x": pointer(x), "out": pointer(codes), "ranges": pointer(ranges), "levels": pointer(levels),
            "batch": batch, "channels": channels, "filled": codes.shape[1], "height": height, "width": width,
            "x_strides": (x.strides[0], x.strides[2], x.strides[3]),
        }  # fmt: skip
        writes = [codes, levels, ranges]
        lowering.step("round_image_u8", "round_image_args", fields, [x], writes, work=x.size * _ROUND, turns=2)
        lowering.rounded_images[x] = codes, levels
    return lowering.rounded_images[x]


def packed_filter(lowering: Lowering, conv: Node) -> tuple[View, View, View]:
    """Panels of the codes of a filter, and for each of their columns the scale and the sum of the codes."""
    codes, scales = lowering.static_value(str(conv.operands[1])).inputs
    codes = _grown(codes, 1, _FOUR)
    groups = conv.groups
    out, channels, *kernel = codes.dims
    each, k = out // groups, channels * math.prod(kernel)
    last = (0, *range(2, codes.type.rank), 1)
    rows = _grown(codes.derive("permute", axes=last).derive("reshape", shape=(groups, each, k)), 1, PANEL)
    fours = rows.derive("reshape", shape=(groups * rows.dims[1] // PANEL, PANEL, k // _FOUR, _FOUR))
    panels = lowering.weight(fours.derive("permute", axes=(0, 2, 1, 3)))
    sums = rows.derive("cast", dtype=i32).derive("reduce_sum", axes=(2,), keepdims=False)
    columns = _grown(scales.derive("reshape", shape=(groups, each)), 1, PANEL)
    return panels, lowering.weight(columns), lowering.weight(sums)


def _filled(count: int, unit: int) -> int:
    """The smallest multiple of a unit that is not less than a count."""
    return -(-count // unit) * unit


def _grown(value: Static, axis: int, unit: int) -> Static:
    """A value with zeros behind it along an axis, up to a multiple of a unit."""
    high = tuple(_filled(dim, unit) - dim if i == axis else 0 for i, dim in enumerate(value.dims))
    return value.derive("pad", low=(0,) * len(high), high=high, value=0) if any(high) else value

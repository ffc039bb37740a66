"""The layout of images for window kernels: channels last. A sequence is an image of one row."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir.graph import Node
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering
from ingot.lower.view import View, channels_last


def two(values: Sequence[int], rowwise: int) -> tuple[int, ...]:
    """Return the values of a window for rows and columns; for a sequence, `rowwise` and the only value."""
    return tuple(values) if len(values) > 1 else (rowwise, *values)


def image_strides(view: View) -> tuple[int, ...]:
    """Return the strides of batch, rows and columns."""
    return view.strides[0], view.strides[2], view.strides[3]


def image_result(lowering: Lowering, value: str) -> View:
    """Return the channels-last view that an image is written to."""
    order = channels_last(lowering.graph.type(value).rank)
    return lowering.accepted_result(value, lambda view: view.has_adjacent_channels, order).as_image()


def image_fields(x: View, out: View, node: Node) -> dict[str, Field]:
    (stride_h, stride_w), (dilation_h, dilation_w) = two(node.strides, 1), two(node.dilations, 1)
    pad_top, pad_left = two(node.pads[: len(node.pads) // 2], 0)
    return {
        "batch": x.shape[0], "height": x.shape[2], "width": x.shape[3],
        "out_height": out.shape[2], "out_width": out.shape[3],
        "stride_h": stride_h, "stride_w": stride_w, "pad_top": pad_top, "pad_left": pad_left,
        "dilation_h": dilation_h, "dilation_w": dilation_w,
    }  # fmt: skip

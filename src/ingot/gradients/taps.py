"""Unroll ops that sample images between their elements into simpler ops, through which gradients flow."""

from __future__ import annotations

from ingot.gradients.registry import unrolled
from ingot.ir.graph import Node
from ingot.ops.taps import expand_deform_conv, expand_grid_sample, expand_roi_align


def _has_points(node: Node, _: int) -> str:
    return "" if node.ratio else "whose number of points per bin depends on data"


unrolled("grid_sample", refuse=lambda node, _: "")(expand_grid_sample)
unrolled("deform_conv", refuse=lambda node, _: "")(expand_deform_conv)
unrolled("roi_align", refuse=_has_points)(expand_roi_align)

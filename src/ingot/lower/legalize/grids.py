"""Legalize ops that interpolate an image between its elements."""

from __future__ import annotations

from ingot.lower.legalize.table import restates
from ingot.ops.taps import expand_deform_conv, expand_grid_sample, expand_roi_align

restates("grid_sample")(expand_grid_sample)
restates("deform_conv")(expand_deform_conv)
restates("roi_align")(expand_roi_align)

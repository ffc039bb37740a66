"""Legalize ops that interpolate an image between its elements."""

from __future__ import annotations

from ingot.lower.legalize.table import legalizes
from ingot.ops.taps import expand_deform_conv, expand_grid_sample, expand_roi_align

legalizes("grid_sample")(expand_grid_sample)
legalizes("deform_conv")(expand_deform_conv)
legalizes("roi_align")(expand_roi_align)

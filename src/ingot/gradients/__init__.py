"""How gradients flow through each op, as plain ops: rows, and the differentiation of graphs by them."""

from ingot.gradients import conv, elementwise, fourier, index, linear, norm, recurrent, reduce, shape, taps
from ingot.gradients.differentiate import differentiate
from ingot.gradients.registry import FLAT, GRADIENTS, MISSING, UNROLLED

__all__ = [
    "FLAT",
    "GRADIENTS",
    "MISSING",
    "UNROLLED",
    "conv",
    "differentiate",
    "elementwise",
    "fourier",
    "index",
    "linear",
    "norm",
    "recurrent",
    "reduce",
    "shape",
    "taps",
]

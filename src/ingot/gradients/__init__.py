"""The gradient rule of each op, in plain ops, and reverse-mode differentiation of graphs."""

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

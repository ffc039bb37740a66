"""How gradients flow through each op, as plain ops: rows, and the differentiation of graphs by them."""

from ingot.gradients import conv, elementwise, index, linear, norm, reduce, shape
from ingot.gradients.differentiate import differentiate
from ingot.gradients.registry import FLAT, GRADIENTS, MISSING

__all__ = [
    "FLAT",
    "GRADIENTS",
    "MISSING",
    "conv",
    "differentiate",
    "elementwise",
    "index",
    "linear",
    "norm",
    "reduce",
    "shape",
]

"""ONNX models: `load_onnx`. Importing this registers every rule."""

from ingot.load.onnx import attention, contrib, conv, elementwise, index, linear, norm, reduce, shape
from ingot.load.onnx.model import load_onnx

__all__ = ["attention", "contrib", "conv", "elementwise", "index", "linear", "load_onnx", "norm", "reduce", "shape"]

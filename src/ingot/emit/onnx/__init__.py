"""Graphs back to ONNX: `export_onnx`. Importing this registers every rule."""

from ingot.emit.onnx import control, elementwise, networks, recurrent, tensors, trees  # noqa: F401  # each declares its rules
from ingot.emit.onnx.model import export_onnx

__all__ = ["export_onnx"]

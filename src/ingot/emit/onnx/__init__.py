"""Export graphs to ONNX: `export_onnx`. Importing this package registers every rule."""

from ingot.emit.onnx import (  # noqa: F401  # each declares its rules
    control,
    elementwise,
    fourier,
    networks,
    recurrent,
    tensors,
    trees,
)
from ingot.emit.onnx.model import expect_replaceable, export_onnx

__all__ = ["expect_replaceable", "export_onnx"]

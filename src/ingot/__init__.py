"""Ingot: pour in a model; out comes one planned, inspectable program.

session = ingot.InferenceSession("model.onnx")
(y,) = session.run(None, {"x": x})
"""

import importlib
from typing import TYPE_CHECKING, Any

from ingot.errors import (
    IngotError,
    InputError,
    LimitError,
    LoadError,
    OutputError,
    ResourceError,
    ShapeError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from ingot.emit.onnx import export_onnx
    from ingot.llm import LLM
    from ingot.session import InferenceSession

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "InferenceSession",
    "IngotError",
    "InputError",
    "LimitError",
    "LoadError",
    "OutputError",
    "ResourceError",
    "ShapeError",
    "UnsupportedError",
    "export_onnx",
]

# What brings numpy, onnx and the pipeline is imported when it is first wanted: name -> its module.
_LATE = {"InferenceSession": "ingot.session", "LLM": "ingot.llm", "export_onnx": "ingot.emit.onnx"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'ingot' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)

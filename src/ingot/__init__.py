"""Ingot: pour in a model; out comes one planned, inspectable program.

session = ingot.InferenceSession("model.onnx")
(y,) = session.run(None, {"x": x})
"""

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
]


def __getattr__(name: str) -> Any:
    if name == "InferenceSession":  # numpy and the pipeline are loaded when they are first wanted
        from ingot.session import InferenceSession

        return InferenceSession
    if name == "LLM":
        from ingot.llm import LLM

        return LLM
    raise AttributeError(f"module 'ingot' has no attribute {name!r}")

"""Ingot: pour in a model; out comes one planned, inspectable program.

session = ingot.InferenceSession("model.onnx")
(y,) = session.run(None, {"x": x})

`import ingot as ort` has ONNX Runtime's other names too.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ingot.errors import (
    ExtensionError,
    IngotError,
    IngotWarning,
    InputError,
    LimitError,
    LoadError,
    OutputError,
    ResourceError,
    ShapeError,
    StoppedError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from ingot import ort as ort
    from ingot.emit.onnx import export_onnx
    from ingot.inspect.comparison import compare
    from ingot.ir.dim import at_most
    from ingot.ir.types import TensorType
    from ingot.llm import LLM
    from ingot.ops.custom import ExternalKernel, WgslKernel, register_op, unregister_op
    from ingot.ort import *  # noqa: F403  ONNX Runtime's names, all of them
    from ingot.ort.session import InferenceSession
    from ingot.passes import register_pass, unregister_pass
    from ingot.session.seeds import set_seed
    from ingot.training import SGD, AdamW, Cosine, CrossEntropy, Linear, Trainer, lora

__version__ = "0.2.0"

__all__ = [
    "LLM",
    "SGD",
    "AdamW",
    "Cosine",
    "CrossEntropy",
    "ExtensionError",
    "ExternalKernel",
    "InferenceSession",
    "IngotError",
    "IngotWarning",
    "InputError",
    "LimitError",
    "Linear",
    "LoadError",
    "OutputError",
    "ResourceError",
    "ShapeError",
    "StoppedError",
    "TensorType",
    "Trainer",
    "UnsupportedError",
    "WgslKernel",
    "at_most",
    "compare",
    "export_onnx",
    "lora",
    "register_op",
    "register_pass",
    "set_seed",
    "unregister_op",
    "unregister_pass",
]
if TYPE_CHECKING:
    __all__ += ort.__all__

# Modules that need numpy, onnx or the pipeline are imported on first use: name -> module.
_LATE = {
    "AdamW": "ingot.training",
    "Cosine": "ingot.training",
    "CrossEntropy": "ingot.training",
    "ExternalKernel": "ingot.ops.custom",
    "WgslKernel": "ingot.ops.custom",
    "InferenceSession": "ingot.ort.session",
    "LLM": "ingot.llm",
    "Linear": "ingot.training",
    "SGD": "ingot.training",
    "TensorType": "ingot.ir.types",
    "Trainer": "ingot.training",
    "at_most": "ingot.ir.dim",
    "compare": "ingot.inspect.comparison",
    "export_onnx": "ingot.emit.onnx",
    "lora": "ingot.training",
    "register_op": "ingot.ops.custom",
    "register_pass": "ingot.passes",
    "set_seed": "ingot.session.seeds",
    "unregister_op": "ingot.ops.custom",
    "unregister_pass": "ingot.passes",
}


# Type checkers see the imports above instead.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _LATE:
            return getattr(importlib.import_module(_LATE[name]), name)
        # The rest of ONNX Runtime's names, for `import ingot as ort`.
        others = importlib.import_module("ingot.ort")
        if name == "ort":
            return others
        if name not in others.__all__:
            raise AttributeError(f"module 'ingot' has no attribute {name!r}")
        return getattr(others, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

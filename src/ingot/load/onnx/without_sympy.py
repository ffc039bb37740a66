"""onnx_ir without sympy, which takes as long to import as all else that a small model needs.

onnx_ir wants it for arithmetic with dims, which loading does not do: it is imported when something of it is asked for.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _Later(types.ModuleType):
    """Stands for a module, which is imported once one of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # another thread asks while onnx_ir is imported
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_onnx_ir() -> None:
    """Imports onnx_ir, with stand-ins for sympy and for what onnx_ir makes of it at once."""
    stand_ins = [_Later(name) for name in ("sympy", "onnx_ir._symbolic_shapes") if name not in sys.modules]
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        importlib.import_module("onnx_ir")
    finally:
        for module in stand_ins:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]

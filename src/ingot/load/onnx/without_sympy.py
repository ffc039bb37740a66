"""Import onnx_ir without sympy, whose import takes as long as all other imports for a small model.

onnx_ir needs it for arithmetic with dims, which loading does not use: sympy is imported when a name of it is accessed.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _Later(types.ModuleType):
    """A module that is imported when one of its names is first accessed."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # another thread may access it while onnx_ir is imported
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_onnx_ir() -> None:
    """Import onnx_ir with empty modules in place of sympy and for the onnx_ir module that uses sympy at import time."""
    stand_ins = [_Later(name) for name in ("sympy", "onnx_ir._symbolic_shapes") if name not in sys.modules]
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        importlib.import_module("onnx_ir")
    finally:
        for module in stand_ins:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]

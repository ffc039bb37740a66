"""Alias of `onnxruntime_pybind11_state`, under the name that ONNX Runtime's Python code imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.ort.capi import onnxruntime_pybind11_state

if TYPE_CHECKING:
    from ingot.ort.capi.onnxruntime_pybind11_state import *  # noqa: F403

# Type checkers see the import above instead.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return getattr(onnxruntime_pybind11_state, name)

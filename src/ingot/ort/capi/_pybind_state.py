"""Alias of `onnxruntime_pybind11_state`, under the name that ONNX Runtime's Python code imports."""

from __future__ import annotations

from typing import Any

from ingot.ort.capi import onnxruntime_pybind11_state


def __getattr__(name: str) -> Any:
    return getattr(onnxruntime_pybind11_state, name)

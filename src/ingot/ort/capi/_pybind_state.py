"""Everything of `onnxruntime_pybind11_state`, under the name by which Python's half of ONNX Runtime imports it."""

from __future__ import annotations

from typing import Any

from ingot.ort.capi import onnxruntime_pybind11_state


def __getattr__(name: str) -> Any:
    return getattr(onnxruntime_pybind11_state, name)

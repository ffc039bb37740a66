"""torch.onnx.export for many models: torch would make its table of ops for each, which takes most of small exports."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


def export_onnx(source: Any, inputs: tuple[Any, ...] = (), file: Any = None, **options: Any) -> Any:
    """The ONNX program of a module or an ExportedProgram, which goes to a file where one is given.

    Raises what torch.onnx.export raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.onnx.export(source, inputs, file, dynamo=True, verbose=False, **options)

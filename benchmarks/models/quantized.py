"""Models of 8 bits as the other engines' own quantizers make them, for `python -m benchmarks models --precision int8`.

Calibration is over random inputs of the kind that is measured. Weights are random, too, so that errors show how the
engines compare and not how good a trained model would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

SAMPLES = 16


def samples(inputs: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Inputs like those given: normal numbers, or ids below the largest."""
    random = np.random.default_rng(0)

    def like(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind == "f":
            return random.standard_normal(array.shape, array.dtype)
        return random.integers(0, array.max() + 1, array.shape, array.dtype)

    return [{name: like(array) for name, array in inputs.items()} for _ in range(SAMPLES)]


def has_convolutions(module: torch.nn.Module) -> bool:
    """Whether a model is mostly convolutions: a patch embedding alone makes none."""
    return sum(isinstance(each, torch.nn.Conv2d) for each in module.modules()) > 1


def write_once(path: Path, make: Callable[[Path], None]) -> Path:
    """The file; the first caller writes it."""
    from filelock import FileLock

    with FileLock(f"{path}.lock"):
        if not path.exists():
            make(path)
    return path


def onnxruntime(model: Path, module: torch.nn.Module, inputs: dict[str, np.ndarray]) -> Path:
    """By ONNX Runtime's quantizer: static with QDQ for convolutions, else dynamic."""
    import onnxruntime as ort
    from onnxruntime import quantization as q

    class Reader(q.CalibrationDataReader):
        def __init__(self) -> None:
            self.rest: Iterator[dict[str, np.ndarray]] = iter(samples(inputs))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rest, None)

    def make(path: Path) -> None:
        prepared = path.with_suffix(".prepared.onnx")
        options = ort.SessionOptions()  # batch norms become part of convolutions, and everything is in one file
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(prepared)
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        if has_convolutions(module):
            q.quantize_static(str(prepared), str(path), Reader(), quant_format=q.QuantFormat.QDQ, per_channel=True)
        else:
            q.quantize_dynamic(str(prepared), str(path), weight_type=q.QuantType.QInt8, per_channel=True)

    return write_once(model.with_suffix(".onnxruntime.onnx"), make)


def ingot(model: Path, module: torch.nn.Module, inputs: dict[str, np.ndarray]) -> Path:
    """By `ingot quantize`, calibrated."""
    from ingot.quantize import quantize_model

    def make(path: Path) -> None:
        quantize_model(model, path, samples(inputs))

    return write_once(model.with_suffix(".ingot.onnx"), make)


def openvino(model: Path, module: torch.nn.Module, inputs: dict[str, np.ndarray]) -> Any:
    """By NNCF, OpenVINO's quantizer: calibrated, with its presets for transformers where there are no convolutions."""
    import nncf
    import openvino as ov

    kind = None if has_convolutions(module) else nncf.ModelType.TRANSFORMER
    return nncf.quantize(ov.Core().read_model(model), nncf.Dataset(samples(inputs)), model_type=kind)

"""One start, in a process of its own: `python -m benchmarks.cold_start.start ENGINE MODEL THREADS`."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cold_start.model import TOKENS
from benchmarks.harness.resources import peak_bytes

Start = Callable[[Path, int], Callable[[dict[str, np.ndarray]], Any]]


def onnxruntime(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """ONNX Runtime as it comes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def openvino(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """OpenVINO pinned to f32."""
    import openvino as ov

    properties = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    core = ov.Core()
    request = core.compile_model(core.read_model(model), "CPU", properties).create_infer_request()
    return lambda feeds: request.infer(feeds)


def ingot(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """Ingot from the ONNX file alone."""
    from ingot import InferenceSession

    session = InferenceSession(model, threads=threads, cache=False)
    return lambda feeds: session.run(None, feeds)


def ingot_cached(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """Ingot from the ONNX file, a second time."""
    from ingot import InferenceSession

    session = InferenceSession(model, threads=threads, cache=model.parent / "cache")
    return lambda feeds: session.run(None, feeds)


def ingot_saved(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """Ingot from a program that `session.save` wrote."""
    from ingot import InferenceSession

    session = InferenceSession(model.with_suffix(".saved"), threads=threads)
    return lambda feeds: session.run(None, feeds)


_INGOT = ("ingot.session.inference", "ingot.run.library", "cffi.cparser")
STARTS: dict[str, tuple[Start, tuple[str, ...]]] = {  # how, and the modules that it imports
    "onnxruntime": (onnxruntime, ("onnxruntime",)),
    "openvino": (openvino, ("openvino",)),
    "ingot": (ingot, (*_INGOT, "ingot.load.onnx")),
    "ingot, cached": (ingot_cached, _INGOT),
    "ingot, saved": (ingot_saved, _INGOT),
}


def start(name: str, model: Path, threads: int) -> dict[str, float]:
    """One start, in this process."""
    how, modules = STARTS[name]
    for module in modules:
        importlib.import_module(module)
    ids = np.random.default_rng(0).integers(0, 30000, (1, TOKENS))
    feeds = {"ids": ids, "mask": np.ones((1, TOKENS), np.int64)}
    imported, begin = peak_bytes(), time.perf_counter()
    run = how(model, threads)
    loaded = time.perf_counter()
    run(feeds)
    end = time.perf_counter()
    return {"load": loaded - begin, "run": end - loaded, "peak": peak_bytes() - imported, "imported": imported}


if __name__ == "__main__":
    print(json.dumps(start(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))

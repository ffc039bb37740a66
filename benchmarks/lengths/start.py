"""One engine on one model, in a process of its own: `python -m benchmarks.lengths.start ENGINE MODEL THREADS`."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lengths.models import FRAMES, TOKENS

CALLS = 200
_INGOT = ("ingot.session.inference", "ingot.run.library", "cffi.cparser", "ingot.load.onnx")
_OURS = ("ingot", "ingot, by itself", "ingot, each length")
ENGINES = {"onnxruntime": ("onnxruntime",), **dict.fromkeys(_OURS, _INGOT)}  # and what they import

Run = Callable[[dict[str, np.ndarray]], Any]


def opened(engine: str, model: Path, threads: int) -> Run:
    """A run of a model by its file."""
    if engine == "onnxruntime":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        session: Any = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    else:
        import ingot

        limit = FRAMES if model.stem.startswith("whisper") else TOKENS
        dims = {"ingot": {"length": ingot.at_most(limit)}, "ingot, by itself": None}.get(engine, {})
        session = ingot.InferenceSession(model, threads=threads, dims=dims, cache=False)
    return lambda feeds: session.run(None, feeds)


def feeds(model: Path) -> list[dict[str, np.ndarray]]:
    """Inputs of random lengths, the same for every engine."""
    rng = np.random.default_rng(0)
    if model.stem.startswith("whisper"):
        return [{"x": rng.standard_normal((1, 80, n), np.float32)} for n in rng.integers(1, FRAMES + 1, CALLS)]
    lengths = rng.integers(1, TOKENS + 1, CALLS)
    return [{"ids": rng.integers(0, 30000, (1, n)), "mask": np.ones((1, n), np.int64)} for n in lengths]


def start(engine: str, model: Path, threads: int) -> dict[str, float]:
    """One engine on one model, in this process."""
    for module in ENGINES[engine]:
        importlib.import_module(module)
    given = feeds(model)
    used, begin = time.process_time(), time.perf_counter()
    run = opened(engine, model, threads)
    loaded = time.perf_counter()
    run(given[0])
    first = time.perf_counter()
    for each in given[1:]:
        run(each)
    end, all_used = time.perf_counter(), time.process_time()
    return {"load": loaded - begin, "first": first - loaded, "total": end - begin, "cpu": all_used - used}


if __name__ == "__main__":
    print(json.dumps(start(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))

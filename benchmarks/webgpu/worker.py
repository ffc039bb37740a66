"""One engine on WebGPU in a process of its own: it answers as `benchmarks.harness.serve` defines.

Its folder has models, and their inputs by name; outputs go there, to be compared. It runs where torch is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.serve import serve

PROVIDER = "WebGpuExecutionProvider"


def engine_run(engine: str, path: Path) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    """A run of a model by its file. Exits where an engine would run it elsewhere."""
    if engine == "ingot":
        from ingot import InferenceSession

        session: Any = InferenceSession(path, executor="webgpu", strict=True)
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(path, options, providers=[PROVIDER])
        if session.get_providers()[0] != PROVIDER:
            sys.exit(f"onnxruntime has no adapter, got {session.get_providers()}")
    return lambda feeds: session.run(None, feeds)


def build(engine: str, name: str, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """The engine's call."""
    with np.load(folder / f"{name}.npz") as arrays:
        feeds = dict(arrays)
    run = engine_run(engine, folder / f"{name}.onnx")
    np.savez(folder / f"{engine}.npz", *run(feeds))
    return lambda: run(feeds), {}


if __name__ == "__main__":
    serve(build)

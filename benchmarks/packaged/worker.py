"""One engine with one model of a package, in a process of its own: it answers as `benchmarks.harness.serve` defines,
and leaves outputs in the folder, to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.serve import serve
from packaged_models import workloads


def engine_run(engine: str, path: Path, threads: int) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
    """A run of a model by its file."""
    if engine == "ingot":
        from ingot import InferenceSession

        session: Any = InferenceSession(path, threads=threads)
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def build(engine: str, name: str, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """The engine's call."""
    path, feeds = workloads()[name]
    run = engine_run(engine, path, threads)
    np.savez(folder / f"{engine}.npz", *run(feeds))
    return lambda: run(feeds), {}


if __name__ == "__main__":
    serve(build)

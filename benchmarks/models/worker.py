"""A workload on an engine, in a process of its own; follows the protocol of `benchmarks.harness.serve`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.serve import serve
from benchmarks.models.engines import ENGINES, exact
from benchmarks.models.networks import find
from benchmarks.models.workloads import Workload


def run_of(engine: str, workload: Workload, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """The engine's call, seconds to the first output, and the largest difference from float64, relative to its largest
    value.
    """
    torch.set_num_threads(threads)
    start = time.perf_counter()
    call = ENGINES[engine](workload, folder, threads, precision)
    result = np.array(call())
    seconds = time.perf_counter() - start
    expected = exact(workload)
    return call, {
        "build_seconds": seconds,
        "difference": float(np.abs(result - expected).max() / np.abs(expected).max()),
    }


def build(engine: str, name: str, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """The same of a workload by its name."""
    return run_of(engine, find(name), folder, threads, precision)


if __name__ == "__main__":
    serve(build)

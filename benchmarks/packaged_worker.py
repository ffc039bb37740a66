"""One engine with one model of a package, in a process of its own: `python -m benchmarks.packaged_worker ENGINE FOLDER
THREADS`. Requests and answers are those of `benchmarks.worker`; outputs go to FOLDER, to be compared.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.worker import die_with_parent, timed, warm
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


def serve(engine: str, folder: Path, threads: int) -> None:
    """Answers requests until stdin ends. What libraries print goes to stderr, not between the answers."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    call: Callable[[], list[np.ndarray]] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        if "build" in request:
            start = time.perf_counter()
            path, feeds = workloads()[request["build"]]
            run = engine_run(engine, path, threads)
            call = lambda run=run, feeds=feeds: run(feeds)  # noqa: E731
            np.savez(folder / f"{engine}.npz", *call())
            answer = {"build_seconds": time.perf_counter() - start}
        elif "calibrate" in request:
            answer = {"runs": max(1, round(request["calibrate"] / timed(call, warm(call))))}
        else:
            answer = {"seconds": timed(call, request["run"])}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

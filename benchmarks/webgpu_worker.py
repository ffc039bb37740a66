"""One engine on WebGPU in a process of its own: `python -m benchmarks.webgpu_worker ENGINE FOLDER THREADS`.

Requests and answers are those of `benchmarks.worker`, with what a run takes of all CPUs. FOLDER has models, and their
inputs by name; outputs go there, to be compared. It runs where torch is not installed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.worker import die_with_parent, timed, warm

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


def serve(engine: str, folder: Path) -> None:
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
            with np.load(folder / f"{request['build']}.npz") as held:
                feeds = dict(held)
            run = engine_run(engine, folder / f"{request['build']}.onnx")
            call = lambda run=run, feeds=feeds: run(feeds)  # noqa: E731
            np.savez(folder / f"{engine}.npz", *call())
            answer = {"build_seconds": time.perf_counter() - start}
        elif "calibrate" in request:
            answer = {"runs": max(1, round(request["calibrate"] / timed(call, warm(call))))}
        else:
            before = time.process_time()
            answer = {"seconds": timed(call, request["run"])}
            answer["cpu_seconds"] = (time.process_time() - before) / request["run"]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))

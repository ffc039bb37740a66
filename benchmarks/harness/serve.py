"""The engine's side of its process: `python -m PROGRAM ENGINE FOLDER THREADS PRECISION`.

Reads one JSON request a line and answers with one JSON line: {"build": workload} builds the call to time, and returns
the details that the question needs; {"calibrate": seconds} warms up and returns how many runs take so long; {"run": n}
runs n times and gives the seconds of one run, and those that all CPUs together spent on it. It imports the standard
library alone: one engine runs where little else is installed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REGAIN_SECONDS = 0.02
# (engine, workload, folder, threads, precision) -> what is timed, and the answer.
Build = Callable[[str, str, Path, int, str], tuple[Any, dict[str, Any]]]
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Has Linux kill this process when its parent ends: one that is stopped or busy would not notice."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def answer_requests(answer: Callable[[dict[str, Any]], Any]) -> None:
    """Answers requests until stdin ends. What libraries print goes to stderr, not between the answers."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def serve(build: Build) -> None:
    """Answers the requests to the engine that the command line names."""
    engine, folder, threads, precision = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    call = None

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal call
        if "build" in request:
            call = None
            call, details = build(engine, request["build"], folder, threads, precision)
            return details
        if "calibrate" in request:
            seconds, _ = timed(call, warm(call))
            return {"runs": max(1, round(request["calibrate"] / seconds))}
        seconds, cpu_seconds = timed(call, request["run"])
        return {"seconds": seconds, "cpu_seconds": cpu_seconds}

    answer_requests(answer)


def warm(call: Any) -> int:
    """Runs for a quarter of a second; gives a number of runs that takes about a tenth."""
    runs, start = 0, time.perf_counter()
    while time.perf_counter() < start + 0.25:
        call()
        runs += 1
    return max(1, runs * 2 // 5)


def timed(call: Any, runs: int) -> tuple[float, float]:
    """Seconds of one run, and those of all CPUs, over `runs` of them, after a moment to get the caches back from the
    neighbours.
    """
    end = time.perf_counter() + REGAIN_SECONDS
    while time.perf_counter() < end:
        call()
    begin, start = time.process_time(), time.perf_counter()
    for _ in range(runs):
        call()
    return (time.perf_counter() - start) / runs, (time.process_time() - begin) / runs

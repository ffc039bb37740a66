"""Measure each workload at several numbers of threads, alone and with a busy neighbour process."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.crowding.worker import DECODE
from benchmarks.harness import page
from benchmarks.harness.report import table, verdict
from benchmarks.harness.worker import Worker

PROGRAM = "benchmarks.crowding.worker"

ROUNDS = 7
BATCH_SECONDS = 0.1
LIMIT, NEIGHBOUR_LIMIT = 1.5, 1.25
WORKLOADS = ("mlp 32x512", "block-sdpa 4x64x128", "bert 32", DECODE)


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """A process that keeps one core busy meanwhile."""
    busy = "from benchmarks.harness.serve import die_with_parent\ndie_with_parent()\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", busy])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def seconds(workers: dict[int, Worker], runs: dict[int, int]) -> dict[int, float]:
    """Median seconds of a run for each number of threads, rounds interleaved."""
    rounds: dict[int, list[float]] = {threads: [] for threads in workers}
    for _ in range(ROUNDS):
        for threads, worker in workers.items():
            rounds[threads].append(worker.request(run=runs[threads])["seconds"])
    return {threads: statistics.median(times) for threads, times in rounds.items()}


def crowding(only: str) -> tuple[str, bool]:
    """The table, and whether every limit holds."""
    cores = len(os.sched_getaffinity(0))
    rows, holds = [], True
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        workers = {}
        for threads in (1, cores, 2 * cores):
            (Path(folder) / str(threads)).mkdir()
            workers[threads] = Worker("ingot", Path(folder) / str(threads), threads, PROGRAM)
            stack.callback(workers[threads].close)
        for name in page.chosen(WORKLOADS, only):
            for worker in workers.values():
                worker.send(build=name)
            for worker in workers.values():
                worker.expect(worker.answer())
            runs = {t: worker.request(calibrate=BATCH_SECONDS)["runs"] for t, worker in workers.items()}
            alone = seconds(workers, runs)
            with neighbour():
                crowded = seconds(workers, runs)
            for what, times, slow, quick, limit in (
                (f"{2 * cores} threads / {cores} threads", alone, 2 * cores, cores, LIMIT),
                (f"busy neighbour: {cores} threads / 1 thread", crowded, cores, 1, NEIGHBOUR_LIMIT),
                (f"busy neighbour: {2 * cores} threads / {cores} threads", crowded, 2 * cores, cores, LIMIT),
            ):
                ratio = times[slow] / times[quick]
                holds &= ratio <= limit
                rows.append(
                    [name, what, f"{1e6 * times[slow]:.0f}", f"{ratio:.2f}", f"{limit}", verdict(ratio <= limit)]
                )
    return table(["workload", "times compared", "us", "ratio", "goal", ""], rows), holds


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__, only=True).parse_args()
    text, holds = crowding(asked.only)
    page.publish(__package__, asked, "Crowding", ["ingot"], text)
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()

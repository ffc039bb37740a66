"""`make bench-crowding`: more threads than cores, and a neighbour that never rests, cost little. Ends with 1 if not.

Two threads for each core must take at most 1.5 of the time of one for each; and beside a process that keeps one core
busy, a thread for each core must take at most 1.25 of the time of a single thread. Language models decode, too: many
small steps, and a barrier after most.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.crowding_worker import DECODE
from benchmarks.goals import verdict
from benchmarks.report import table
from benchmarks.side_by_side import Worker

ROUNDS = 7
BATCH_SECONDS = 0.1
LIMIT, NEIGHBOUR_LIMIT = 1.5, 1.25
WORKLOADS = ("mlp 32x512", "block-sdpa 4x64x128", "bert 32", DECODE)


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """A process that keeps one core busy meanwhile."""
    busy = "from benchmarks.worker import die_with_parent\ndie_with_parent()\nwhile True: pass"
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
            rounds[threads].append(worker.told(run=runs[threads])["seconds"])
    return {threads: statistics.median(times) for threads, times in rounds.items()}


def crowding() -> tuple[str, bool]:
    """The table, and whether every limit holds."""
    cores = len(os.sched_getaffinity(0))
    rows, holds = [], True
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        workers = {}
        for threads in (1, cores, 2 * cores):
            (Path(folder) / str(threads)).mkdir()
            workers[threads] = Worker("ingot", Path(folder) / str(threads), threads, "benchmarks.crowding_worker")
            stack.callback(workers[threads].close)
        for name in WORKLOADS:
            for worker in workers.values():
                worker.send(build=name)
            for worker in workers.values():
                worker.expect(worker.answer())
            runs = {t: worker.told(calibrate=BATCH_SECONDS)["runs"] for t, worker in workers.items()}
            alone = seconds(workers, runs)
            with neighbour():
                beside = seconds(workers, runs)
            for what, times, slow, quick, limit in (
                (f"{2 * cores} threads / {cores} threads", alone, 2 * cores, cores, LIMIT),
                (f"busy neighbour: {cores} threads / 1 thread", beside, cores, 1, NEIGHBOUR_LIMIT),
                (f"busy neighbour: {2 * cores} threads / {cores} threads", beside, 2 * cores, cores, LIMIT),
            ):
                ratio = times[slow] / times[quick]
                holds &= ratio <= limit
                rows.append(
                    [name, what, f"{1e6 * times[slow]:.0f}", f"{ratio:.2f}", f"{limit}", verdict(ratio <= limit)]
                )
    return table(["workload", "times compared", "us", "ratio", "goal", ""], rows), holds


def main() -> None:
    """Prints the table."""
    text, holds = crowding()
    print(text)
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()

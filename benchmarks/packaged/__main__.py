"""Measure both engines on each model, and compare their outputs."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import packages, page
from benchmarks.harness.report import table
from benchmarks.harness.rounds import BATCH_SECONDS
from benchmarks.harness.worker import Worker
from packaged_models import workloads

PROGRAM = "benchmarks.packaged.worker"
ENGINES = ("ingot", "onnxruntime")
PACKAGES = ("silero-vad", "faster-whisper", "magika", "rapidocr-onnxruntime", "basic-pitch", "speechmos")
THREADS = (1, 2)
ROUNDS = 9


def measure(name: str, threads: int, rounds: int) -> tuple[dict[str, float], float]:
    """Median seconds of each engine, and the largest difference of their outputs."""
    with tempfile.TemporaryDirectory() as folder:
        workers = {engine: Worker(engine, Path(folder), threads, PROGRAM) for engine in ENGINES}
        try:
            for worker in workers.values():
                worker.request(build=name)
            ours, theirs = (list(np.load(Path(folder) / f"{engine}.npz").values()) for engine in ENGINES)
            runs = {engine: w.request(calibrate=BATCH_SECONDS)["runs"] for engine, w in workers.items()}
            times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
            for number in range(rounds):
                for engine in ENGINES[:: 1 if number % 2 else -1]:
                    times[engine].append(workers[engine].request(run=runs[engine])["seconds"])
        finally:
            for worker in workers.values():
                worker.close()
    differences = (np.abs(a - b).max() / max(1, np.abs(b).max()) for a, b in zip(ours, theirs, strict=True))
    return {engine: statistics.median(each) for engine, each in times.items()}, float(max(differences))


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__, rounds=ROUNDS, only=True).parse_args()
    packages.require(*ENGINES, *PACKAGES)
    rows = []
    for name in page.chosen(workloads(), asked.only):
        cells, largest = [], 0.0
        for threads in THREADS:
            seconds, difference = measure(name, threads, asked.rounds)
            largest = max(largest, difference)
            ours, theirs = (seconds[engine] for engine in ENGINES)
            cells += [f"{ours * 1e6:.0f}", f"{theirs * 1e6:.0f}", f"{ours / theirs:.2f}"]
        rows.append([name, *cells, f"{largest:.1e}"])
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = ["model"]
    for threads in THREADS:
        head += [f"ingot, {threads}", f"onnxruntime, {threads}", "ratio"]
    engines = (*ENGINES, *PACKAGES)
    page.publish(__package__, asked, "Models that packages ship", engines, table([*head, "difference"], rows))


if __name__ == "__main__":
    main()

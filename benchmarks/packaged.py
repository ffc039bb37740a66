"""`make bench-packaged`: trained models that packages ship, Ingot beside ONNX Runtime; writes benchmarks/packaged.md.

Each engine lives in a process of its own and is stopped while the other is measured; rounds are interleaved.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.report import machine, table
from benchmarks.side_by_side import Worker
from packaged_models import workloads

ENGINES = ("ingot", "onnxruntime")
PACKAGES = ("silero-vad", "faster-whisper", "magika", "rapidocr-onnxruntime", "basic-pitch", "speechmos")
THREADS = (1, 2)
ROUNDS = 9
BATCH_SECONDS = 0.2
_ABOUT = """Medians in microseconds of one run through the engine's Python interface, by number of threads; rounds
interleaved, each engine in a process of its own that is stopped while the other is measured. Inputs are those of
`tests/whole/test_packaged_models.py`. Differences are relative to the largest output or 1.

Where Ingot is slower: PLCMOS is 3 x 3 convolutions over large images, as ResNet-50 is."""


def measure(name: str, threads: int, rounds: int) -> tuple[dict[str, float], float]:
    """Median seconds of each engine, and the largest difference of their outputs."""
    with tempfile.TemporaryDirectory() as folder:
        workers = {engine: Worker(engine, Path(folder), threads, "benchmarks.packaged_worker") for engine in ENGINES}
        try:
            for worker in workers.values():
                worker.told(build=name)
            ours, theirs = (list(np.load(Path(folder) / f"{engine}.npz").values()) for engine in ENGINES)
            runs = {engine: w.told(calibrate=BATCH_SECONDS)["runs"] for engine, w in workers.items()}
            times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
            for number in range(rounds):
                for engine in ENGINES[:: 1 if number % 2 else -1]:
                    times[engine].append(workers[engine].told(run=runs[engine])["seconds"])
        finally:
            for worker in workers.values():
                worker.close()
    differences = (np.abs(a - b).max() / max(1, np.abs(b).max()) for a, b in zip(ours, theirs, strict=True))
    return {engine: statistics.median(each) for engine, each in times.items()}, float(max(differences))


def versions() -> str:
    """Of what is measured."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in (*ENGINES, *PACKAGES))


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    rows = []
    for name in (name for name in workloads() if asked.only in name):
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
    where = f"{machine()}. {versions()}."
    text = f"# Models that packages ship\n\n{where}\n\n{_ABOUT}\n\n{table([*head, 'difference'], rows)}"
    if not asked.only:
        (Path(__file__).parent / "packaged.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()

"""Measure each engine on each model, on one thread and on two."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness import packages, page
from benchmarks.harness.report import table
from benchmarks.lengths.models import MODELS
from benchmarks.lengths.start import CALLS, ENGINES

ROUNDS = 5
THREADS = (1, 2)


def measure(folder: Path, model: str, rounds: int, threads: int) -> dict[str, list[dict[str, float]]]:
    """Every engine once a round."""
    path = folder / f"{model}.onnx"
    if not path.exists():
        subprocess.run([sys.executable, "-m", "benchmarks.lengths.models", str(folder)], check=True)
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for engine in list(ENGINES)[:: 1 if number % 2 else -1]:
            command = [sys.executable, "-m", "benchmarks.lengths.start", engine, str(path), str(threads)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.setdefault(engine, []).append(json.loads(done.stdout.splitlines()[-1]))
    return found


def lengths_table(models: Iterable[str], rounds: int, threads: int, folder: Path) -> str:
    """The Markdown table of medians."""
    rows = []
    for model in models:
        found = measure(folder, model, rounds, threads)
        for engine in ENGINES:
            runs = found[engine]
            load, first, total, cpu = (
                statistics.median(r[key] for r in runs) for key in ("load", "first", "total", "cpu")
            )
            ratios = [
                statistics.median(
                    mine[key] / theirs[key] for mine, theirs in zip(runs, found["onnxruntime"], strict=True)
                )
                for key in ("total", "cpu")
            ]
            rows.append([f"{model}, {engine}", f"{load:.3f}", f"{first:.3f}", f"{total:.2f}", f"{ratios[0]:.2f}",
                         f"{cpu:.2f}", f"{ratios[1]:.2f}"])  # fmt: skip
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = ["model, engine", "load s", "first run s", f"all {CALLS} s", "/ ONNX Runtime", "CPU s", "/ ONNX Runtime"]
    return f"## Threads: {threads}\n\n{table(head, rows)}"


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__, rounds=ROUNDS, only=True).parse_args()
    packages.require("onnxruntime")
    models = page.chosen(MODELS, asked.only)
    with tempfile.TemporaryDirectory() as folder:
        tables = [lengths_table(models, asked.rounds, threads, Path(folder)) for threads in THREADS]
    page.publish(__package__, asked, "Lengths that change", ["ingot", "onnxruntime"], *tables)


if __name__ == "__main__":
    main()

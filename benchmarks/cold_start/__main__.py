"""Measure every start of both files."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.cold_start.start import STARTS
from benchmarks.harness import page
from benchmarks.harness.report import table

ROUNDS = 3
SETTLED_SECONDS = 2.5  # before a file is old enough for the cache


def prepare(folder: Path, threads: int) -> tuple[list[Path], int]:
    """The models, their saved programs and their cache; bytes of packed weights and arena."""
    models = [folder / "one_file.onnx", folder / "external.onnx"]
    if not all(model.exists() for model in models):
        subprocess.run([sys.executable, "-m", "benchmarks.cold_start.model", str(folder)], check=True)
    time.sleep(SETTLED_SECONDS)
    from ingot import InferenceSession

    for model in models:
        session = InferenceSession(model, threads=threads, cache=folder / "cache")
        session.save(model.with_suffix(".saved"))
    return models, session.weight_bytes + session.plan.arena_bytes


def measure(
    folder: Path, starts: list[str], rounds: int, threads: int
) -> tuple[dict[tuple[str, str], list[dict[str, float]]], int]:
    """Every start of every model, once a round; and the bytes of weights and arena."""
    models, nbytes = prepare(folder, threads)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for model in models:
            for name in starts:
                command = [sys.executable, "-m", "benchmarks.cold_start.start", name, str(model), str(threads)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found.setdefault((model.stem, name), []).append(json.loads(done.stdout.splitlines()[-1]))
    return found, nbytes


def cold_table(folder: Path, starts: list[str], rounds: int, threads: int) -> str:
    """The Markdown table: medians of seconds, with the bound of the project's goal, and peak memory."""
    found, nbytes = measure(folder, starts, rounds, threads)
    rows = []
    for (model, name), starts in found.items():
        totals = [s["load"] + s["run"] for s in starts]
        low, total, high = statistics.quantiles(totals, n=4) if len(totals) > 1 else totals * 3
        theirs = statistics.median(s["load"] + s["run"] for s in found[model, "onnxruntime"])
        bound = {"ingot": theirs / 2 + 0.3, "ingot, cached": 0.2, "ingot, saved": 0.2}.get(name)
        load, run, peak, imported = (
            statistics.median(s[key] for s in starts) for key in ("load", "run", "peak", "imported")
        )
        rows.append(
            [f"{model}, {name}", f"{load:.3f}", f"{run:.3f}", f"{total:.3f}", f"{(high - low) / total:.0%}",
             "" if bound is None else f"{bound:.3f}", f"{total / theirs:.2f}", f"{peak / 2**20:.0f}",
             f"{peak / nbytes:.2f}", f"{imported / 2**20:.0f}"]
        )  # fmt: skip
    head = ["file, engine", "load s", "first run s", "both s", "IQR", "goal s", "/ ONNX Runtime", "peak MiB",
            "/ (weights + arena)", "imports MiB"]  # fmt: skip
    return f"{table(head, rows)}\n\nPacked weights and arena: {nbytes / 2**20:.0f} MiB. Peaks are above the imports'."


def main() -> None:
    """Measure and report."""
    engines = ("onnxruntime", "openvino", "ingot")
    parser = page.options(__package__, rounds=ROUNDS, threads=page.THREADS, engines=engines)
    parser.add_argument("--folder", type=Path, help="where models are, or are exported to; by default temporary")
    asked = parser.parse_args()
    if "onnxruntime" not in asked.engines:
        parser.error("--engines: ratios and goals are to onnxruntime, which is not named")
    starts = [name for name in STARTS if name.partition(",")[0] in asked.engines]
    with tempfile.TemporaryDirectory() as folder:
        text = cold_table(asked.folder or Path(folder), starts, asked.rounds, asked.threads)
    page.publish(__package__, asked, "Cold start", asked.engines, text)


if __name__ == "__main__":
    main()

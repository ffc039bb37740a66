"""Measure every shape of the contract against numpy and against reading, and judge."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.harness import page, report
from benchmarks.harness.rounds import Harness

PROGRAM = "benchmarks.models.worker"
CONTRACT = ROOT / "src/ingot/contracts/matvec.yaml"
ENGINES = ["numpy", "read", "ingot"]
ROUNDS = 15


def measure(k: int, n: int, rounds: int) -> dict[str, float]:
    """The figures of one shape: medians over rounds of the ratio to numpy and of the share of the read bandwidth."""
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(PROGRAM, ENGINES, page.THREADS, Path(folder))
        try:
            measured = harness.measure(f"matvec 1x{k}x{n}", rounds)
        finally:
            harness.close()
    for engine, measurement in measured.items():
        if measurement.failure:
            sys.exit(f"matvec 1x{k}x{n}: {engine} failed: {measurement.failure}")
    numpy, read, ingot = (measured[engine].rounds for engine in ENGINES)
    return {
        "microseconds": round(1e6 * statistics.median(ingot), 1),
        "ratio_to_numpy": round(statistics.median(i / n for i, n in zip(ingot, numpy, strict=True)), 2),
        "read_fraction": round(statistics.median(r / i for r, i in zip(read, ingot, strict=True)), 2),
    }


def broken(bound: dict[str, Any], figures: dict[str, float]) -> str:
    """Which bounds the figures break, or nothing."""
    faults = []
    if figures["ratio_to_numpy"] > bound["ratio_to_numpy"]:
        faults.append(f"ratio above {bound['ratio_to_numpy']}")
    if figures["read_fraction"] < bound["read_fraction"]:
        faults.append(f"read fraction below {bound['read_fraction']}")
    return ", ".join(faults)


def record(entries: list[dict[str, Any]]) -> None:
    """Adds entries to the end of the contract, where the history is."""
    text = CONTRACT.read_text().replace("history: []\n", "history:\n")
    lines = [f"  - {yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1000)}" for entry in entries]
    CONTRACT.write_text(text + "".join(lines))


def main() -> None:
    """Measure, report and judge."""
    parser = page.options(__package__, rounds=ROUNDS)
    parser.add_argument("--record", action="store_true", help="add the figures to the history")
    asked = parser.parse_args()
    rows, entries, faults = [], [], []
    for bound in yaml.safe_load(CONTRACT.read_text())["bounds"]:
        figures = measure(bound["k"], bound["n"], asked.rounds)
        fault = broken(bound, figures)
        shape = f"1x{bound['k']}x{bound['n']}"
        rows.append([shape, f"{figures['microseconds']:.1f}", f"{figures['ratio_to_numpy']:.2f}",
                     f"{bound['ratio_to_numpy']:.2f}", f"{figures['read_fraction']:.0%}",
                     f"{bound['read_fraction']:.0%}", fault or "holds"])  # fmt: skip
        entries.append({"date": time.strftime("%Y-%m-%d"), "machine": report.machine(), "shape": shape, **figures})
        faults += [f"{shape}: {fault}"] if fault else []
    head = ["shape", "us", "ratio to numpy", "at most", "of read bandwidth", "at least", ""]
    page.publish(__package__, asked, "The matvec contract", ENGINES, report.table(head, rows))
    if asked.record:
        record(entries)
    if faults:
        sys.exit("broken: " + "; ".join(faults))


if __name__ == "__main__":
    main()

"""`make bench`: everything, into benchmarks/results.md. Takes the options of benchmarks.side_by_side."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import report, side_by_side
from benchmarks.engines import version

FOLDER = Path(__file__).parent


def output_of(*arguments: str) -> str:
    """What a Python program prints, run in a process of its own. Raises CalledProcessError."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    """Measures and writes results.md."""
    asked = side_by_side.options().parse_args()
    engines = asked.engines.split(",")
    start = time.time()
    figures = json.loads(output_of("benchmarks/roofline/roofline.py", "--json"))
    results = side_by_side.measure(side_by_side.chosen(asked.only), engines, asked.rounds, asked.threads)
    versions = sorted({version(engine) for engine in engines} | {f"numpy {importlib.metadata.version('numpy')}"})
    sections = [
        "# Benchmarks",
        f"Written by `make bench`. {report.machine()}. Python {platform.python_version()}, {', '.join(versions)}. "
        f"{time.strftime('%Y-%m-%d')}, {asked.rounds} rounds, {asked.threads} threads for every engine, f32.",
        "## Side by side",
        "Medians in microseconds of one run through the engine's Python interface; each engine in a process of its "
        "own, rounds interleaved, the others stopped meanwhile. Differences are from eager torch, relative to the "
        "largest output.",
        report.side_by_side(results, engines),
        "## Ablation",
        "Microseconds of one run, all in one process.",
        output_of("-m", "benchmarks.ablation"),
        "## Roofline",
        "What this machine does at best (see `benchmarks/roofline`), and the share of it that Ingot reached above.",
        report.roofline(figures),
        report.shares(results, figures, asked.threads),
        f"Measured in {(time.time() - start) / 60:.0f} minutes.",
    ]
    (FOLDER / "results.md").write_text("\n\n".join(sections) + "\n")
    print(f"wrote {FOLDER / 'results.md'}")


if __name__ == "__main__":
    main()

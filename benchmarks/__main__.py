"""`make bench`: everything, into benchmarks/results.md. Takes the options of benchmarks.side_by_side."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import report, side_by_side
from benchmarks.engines import version

FOLDER = Path(__file__).parent


def output_of(module: str) -> str:
    """What a benchmark prints, run in a process of its own. Raises CalledProcessError."""
    command = [sys.executable, "-m", module]
    return subprocess.run(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    """Measures and writes results.md."""
    asked = side_by_side.options().parse_args()
    engines = asked.engines.split(",")
    start = time.time()
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
        output_of("benchmarks.ablation"),
        "## Roofline",
        output_of("benchmarks.roofline"),
        f"Measured in {(time.time() - start) / 60:.0f} minutes.",
    ]
    (FOLDER / "results.md").write_text("\n\n".join(sections) + "\n")
    print(f"wrote {FOLDER / 'results.md'}")


if __name__ == "__main__":
    main()

"""`benchmarks.models.worker` with the networks of the zoo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness.serve import serve
from benchmarks.models.worker import run_of
from benchmarks.zoo.networks import workloads


def build(engine: str, name: str, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """As `run_of`, of a network by its name."""
    return run_of(engine, workloads()[name], folder, threads, precision)


if __name__ == "__main__":
    serve(build)

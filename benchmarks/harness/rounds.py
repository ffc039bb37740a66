"""Interleaved rounds: each round runs every engine once, in an order that rotates.

While an engine is measured the processes of all others are stopped: pools that spin would slow their neighbours.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.worker import Worker

BATCH_SECONDS = 0.2


@dataclass
class Measurement:
    """One engine on one workload: seconds of a run, one number a round."""

    rounds: list[float] = field(default_factory=list)
    difference: float = float("nan")
    build_seconds: float = float("nan")
    failure: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds) if self.rounds and not self.failure else float("inf")

    @property
    def spread(self) -> float:
        """The interquartile range over the median."""
        if len(self.rounds) < 2:
            return float("nan")
        low, _, high = statistics.quantiles(self.rounds, n=4)
        return (high - low) / statistics.median(self.rounds)


Results = dict[str, dict[str, Measurement]]


class Harness:
    """The workers of a program: each is started when first needed, and again after it died."""

    def __init__(self, program: str, engines: list[str], threads: int, folder: Path, precision: str = "f32") -> None:
        self.program, self.engines, self.threads, self.folder = program, engines, threads, folder
        self.precision = precision
        self.workers: dict[str, Worker] = {}

    def worker(self, engine: str) -> Worker:
        if engine not in self.workers:
            self.workers[engine] = Worker(engine, self.folder, self.threads, self.program, self.precision)
        return self.workers[engine]

    def measure(self, name: str, rounds: int) -> dict[str, Measurement]:
        """Builds a workload on all engines at once, then measures it in interleaved rounds."""
        measured = {engine: Measurement() for engine in self.engines}
        for engine in self.engines:
            self.worker(engine).send(build=name)
        for engine, measurement in measured.items():
            answer = self.alive(measurement, engine, self.worker(engine).answer())
            measurement.difference = answer.get("difference", float("nan"))
            measurement.build_seconds = answer.get("build_seconds", float("nan"))
        runs = {}
        for engine, measurement in measured.items():
            if not measurement.failure:
                answer = self.alive(measurement, engine, self.worker(engine).ask(calibrate=BATCH_SECONDS))
                runs[engine] = answer.get("runs", 1)
        for number in range(rounds):
            first = number % len(self.engines)
            for engine in self.engines[first:] + self.engines[:first]:
                if not measured[engine].failure:
                    answer = self.alive(measured[engine], engine, self.worker(engine).ask(run=runs[engine]))
                    measured[engine].rounds += [answer["seconds"]] if answer else []
        return measured

    def alive(self, measurement: Measurement, engine: str, answer: dict[str, Any] | None) -> dict[str, Any]:
        """The answer; when there is none, buries the worker and notes why."""
        if answer is None:
            measurement.failure = self.workers.pop(engine).close()
        return answer or {}

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


def measure(
    program: str, names: Iterable[str], engines: list[str], rounds: int, threads: int, precision: str = "f32"
) -> Results:
    """Every workload on every engine; a line on stderr as each is done."""
    results: Results = {}
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(program, engines, threads, Path(folder), precision)
        try:
            for name in names:
                results[name] = harness.measure(name, rounds)
                print(summary(name, results[name]), file=sys.stderr, flush=True)
        finally:
            harness.close()
    return results


def summary(name: str, measured: dict[str, Measurement]) -> str:
    """A workload's medians in microseconds."""
    cells = (f"{engine} {m.failure[:80] or f'{m.median * 1e6:.1f}'}" for engine, m in measured.items())
    return f"{name:<24} {'  '.join(cells)}"

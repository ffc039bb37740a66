"""Ingot beside the other engines: `python -m benchmarks.side_by_side [--only REGEX] [--rounds N] [--engines a,b]`.

Each engine lives in a process of its own. Rounds are interleaved over the engines, in an order that rotates, and every
process but the one that is measured is stopped, because pools that spin would slow their neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROUNDS = 9
THREADS = 2
BATCH_SECONDS = 0.2
ENGINES = "eager,compile,onnxruntime,openvino,ingot"


class Worker:
    """A process of `program`, stopped except while it answers. Its log goes to the folder that it is told."""

    def __init__(
        self,
        engine: str,
        folder: Path,
        threads: int,
        program: str = "benchmarks.worker",
        precision: str = "f32",
        python: str = sys.executable,
    ) -> None:
        self.log = folder / f"{engine}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [python, "-m", program, engine, str(folder), str(threads), precision],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)}, cwd=Path(__file__).parents[1],
            )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        """The answer, or None when the process died of the request."""
        self.send(**request)
        return self.answer()

    def told(self, **request: Any) -> Any:
        """The answer; ends this program when the process died of the request."""
        return self.expect(self.ask(**request))

    def expect(self, answer: Any) -> Any:
        """An answer that is there; ends this program where it is None."""
        if answer is None:
            sys.exit(self.close())
        return answer

    def send(self, **request: Any) -> None:
        """Lets the process go on, with something to do."""
        self.signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """What the process says; then it is stopped. None when it died."""
        line = self.process.stdout.readline()
        if not line:
            return None
        self.signal(signal.SIGSTOP)
        return json.loads(line)

    def signal(self, number: signal.Signals) -> None:
        """To the process and the compilers it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def close(self) -> str:
        """Ends the process; gives the last line of its log."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "died without a word"


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
    """The workers: each is started when first needed, and again after it died."""

    def __init__(self, engines: list[str], threads: int, folder: Path, precision: str = "f32") -> None:
        self.engines, self.threads, self.folder, self.precision = engines, threads, folder, precision
        self.workers: dict[str, Worker] = {}

    def worker(self, engine: str) -> Worker:
        if engine not in self.workers:
            self.workers[engine] = Worker(engine, self.folder, self.threads, precision=self.precision)
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
            turn = number % len(self.engines)
            for engine in self.engines[turn:] + self.engines[:turn]:
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


def measure(names: Iterable[str], engines: list[str], rounds: int, threads: int, precision: str = "f32") -> Results:
    """Every workload on every engine; a line on stderr as each is done."""
    results: Results = {}
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(engines, threads, Path(folder), precision)
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


def options() -> argparse.ArgumentParser:
    """The options that this program shares with `python -m benchmarks`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="REGEX", help="workloads whose name it matches")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument(
        "--precision", choices=("f32", "bf16", "bf16amx", "int8"), default="f32", help="of those that have it"
    )
    return parser


def chosen(only: str) -> list[str]:
    """The names of the workloads that a pattern matches."""
    from benchmarks.workloads import WORKLOADS

    return [name for name in WORKLOADS if re.search(only, name)]


def main() -> None:
    """Measures and prints the table."""
    from benchmarks.report import side_by_side

    asked = options().parse_args()
    engines = asked.engines.split(",")
    results = measure(chosen(asked.only), engines, asked.rounds, asked.threads, asked.precision)
    print(side_by_side(results, engines, asked.precision))


if __name__ == "__main__":
    main()

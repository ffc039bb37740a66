"""Measure each workload and the language model, and compare bits."""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import page, report
from benchmarks.harness.report import verdict
from benchmarks.harness.rounds import BATCH_SECONDS
from benchmarks.harness.worker import Worker
from benchmarks.llm.engines import DECODE_TOKENS, GREEDY_TOKENS, LOGITS_PROMPT, PREFILLS
from benchmarks.llm.files import FOLDER, written
from benchmarks.models.workloads import QUANTIZED, WORKLOADS

PROGRAM, LLM_PROGRAM = "benchmarks.emitted.worker", "benchmarks.emitted.language_model"

ROUNDS = 15
LLM_ROUNDS = 5
MOST = 1.03  # the goal: of the session's time
PRECISIONS = ("f32", "bf16", "int8", "int4")  # of the language model
HEAD = ("workload", "precision", "session us", "C us", "C / session, minima", "medians", "bits", "at most 1.03")


@dataclass(frozen=True)
class Comparison:
    """Seconds of a run, a number for each round, of a session and of its C; whether their bits are the same."""

    name: str
    precision: str
    session: list[float]
    c: list[float]
    same: bool

    @property
    def minima(self) -> float:
        """C's least time over the session's."""
        return min(self.c) / min(self.session)

    def row(self) -> list[str]:
        """Of the table."""
        ratio = statistics.median(self.c) / statistics.median(self.session)
        cells = (f"{min(self.session) * 1e6:.1f}", f"{min(self.c) * 1e6:.1f}", f"{self.minima:.3f}", f"{ratio:.3f}")
        bits = "equal" if self.same else "**differ**"
        return [self.name, self.precision, *cells, bits, verdict(self.minima <= MOST)]


def workload(name: str, precision: str, rounds: int, threads: int) -> Comparison:
    """A workload of the other benchmarks."""
    times: dict[str, list[float]] = {"native": [], "emitted": []}
    with tempfile.TemporaryDirectory() as folder:
        workers = {each: Worker(each, Path(folder), threads, PROGRAM, precision) for each in times}
        try:
            same = all(worker.request(build=name)["same"] for worker in workers.values())
            runs = {each: worker.request(calibrate=BATCH_SECONDS)["runs"] for each, worker in workers.items()}
            for number in range(rounds):
                for each in sorted(times, reverse=bool(number % 2)):
                    times[each].append(workers[each].request(run=runs[each])["seconds"])
        finally:
            for worker in workers.values():
                worker.close()
    return Comparison(name, precision, times["native"], times["emitted"], same)


def language_model(precision: str, rounds: int, threads: int, folder: Path) -> Iterator[Comparison]:
    """The model of benchmarks/llm: a prompt's token, and a token after it. Bits: logits, and greedy tokens."""
    written(folder, precision, [])
    workers = {each: Worker(each, folder, threads, LLM_PROGRAM) for each in ("ingot", "emitted")}
    try:
        for worker in workers.values():
            worker.request(load=precision)
        outputs = [
            [worker.request(logits=LOGITS_PROMPT), worker.request(greedy=GREEDY_TOKENS)] for worker in workers.values()
        ]
        times: dict[str, dict[str, list[float]]] = {}
        for number in range(rounds):
            for each in sorted(workers, reverse=bool(number % 2)):
                asked = {f"prefill {n}": workers[each].request(prefill=n, seed=number) / n for n in PREFILLS}
                asked["decode"] = workers[each].request(decode=DECODE_TOKENS, seed=number)
                for name, seconds in asked.items():
                    times.setdefault(name, {}).setdefault(each, []).append(seconds)
    finally:
        for worker in workers.values():
            worker.close()
    for name, found in times.items():
        yield Comparison(
            f"language model, {name}", precision, found["ingot"], found["emitted"], outputs[0] == outputs[1]
        )


def measured(only: str, rounds: int, threads: int, folder: Path) -> Iterator[Comparison]:
    """All that a pattern matches, one after the other."""
    each = [(name, "f32") for name in WORKLOADS]
    each += [(name, precision) for precision in ("bf16", "int8") for name in QUANTIZED]
    for name, precision in each:
        if re.search(only, f"{name} {precision}"):
            yield workload(name, precision, rounds, threads)
    for precision in PRECISIONS:
        if re.search(only, f"language model {precision}"):
            yield from language_model(precision, min(rounds, LLM_ROUNDS), threads, folder)


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__, rounds=ROUNDS, threads=page.THREADS, only=True)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where language models are, or are written")
    asked = parser.parse_args()
    found = []
    for each in measured(asked.only, asked.rounds, asked.threads, asked.folder):
        found.append(each)
        print(*each.row(), sep=" | ", file=sys.stderr, flush=True)
    worst = max(found, key=lambda each: each.minima)
    words = f"Of the language model there are at most {LLM_ROUNDS} rounds. The most is {worst.minima:.3f}, of "
    words += f"{worst.name} in {worst.precision}."
    table = report.table(HEAD, [each.row() for each in found])
    page.publish(__package__, asked, "Emitted C compared with native", ["ingot", "eager"], words, table)


if __name__ == "__main__":
    main()

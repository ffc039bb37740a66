"""`make bench-emitted`: emitted C, compiled by `cc -O2` alone, beside the session that it was emitted from; writes
benchmarks/emitted.md. `--only REGEX`: those whose name and precision it matches, printed.

Each is in a process of its own that is stopped while the other is measured, rounds are interleaved, and outputs are
compared bit by bit before anything is timed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import llm, report
from benchmarks.goals import verdict
from benchmarks.llm_engines import PREFILLS
from benchmarks.side_by_side import BATCH_SECONDS, THREADS, Worker
from benchmarks.workloads import QUANTIZED, WORKLOADS

ROUNDS = 15
LLM_ROUNDS = 5
MOST = 1.03  # the goal: of the session's time
PRECISIONS = ("f32", "bf16", "int8", "int4")  # of the language model
HEAD = ("workload", "precision", "session us", "C us", "C / session, minima", "medians", "bits", "at most 1.03")


@dataclass(frozen=True)
class Beside:
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


def workload(name: str, precision: str, rounds: int, threads: int) -> Beside:
    """A workload of the other benchmarks."""
    times: dict[str, list[float]] = {"native": [], "emitted": []}
    with tempfile.TemporaryDirectory() as folder:
        program = "benchmarks.emitted_worker"
        workers = {each: Worker(each, Path(folder), threads, program, precision) for each in times}
        try:
            same = all(worker.told(build=name)["same"] for worker in workers.values())
            runs = {each: worker.told(calibrate=BATCH_SECONDS)["runs"] for each, worker in workers.items()}
            for number in range(rounds):
                for each in sorted(times, reverse=bool(number % 2)):
                    times[each].append(workers[each].told(run=runs[each])["seconds"])
        finally:
            for worker in workers.values():
                worker.close()
    return Beside(name, precision, times["native"], times["emitted"], same)


def language_model(precision: str, rounds: int, threads: int, folder: Path) -> Iterator[Beside]:
    """The model of benchmarks.llm: a prompt's token, and a token after it. Bits: logits, and greedy tokens."""
    llm.written(folder, precision, [])
    workers = {each: Worker(each, folder, threads, llm.PROGRAM) for each in ("ingot", "emitted")}
    try:
        for worker in workers.values():
            worker.told(load=precision)
        said = [
            [worker.told(logits=llm.LOGITS_PROMPT), worker.told(greedy=llm.GREEDY_TOKENS)]
            for worker in workers.values()
        ]
        times: dict[str, dict[str, list[float]]] = {}
        for number in range(rounds):
            for each in sorted(workers, reverse=bool(number % 2)):
                asked = {f"prefill {n}": workers[each].told(prefill=n, seed=number) / n for n in PREFILLS}
                asked["decode"] = workers[each].told(decode=llm.DECODE_TOKENS, seed=number)
                for name, seconds in asked.items():
                    times.setdefault(name, {}).setdefault(each, []).append(seconds)
    finally:
        for worker in workers.values():
            worker.close()
    for name, found in times.items():
        yield Beside(f"language model, {name}", precision, found["ingot"], found["emitted"], said[0] == said[1])


def measured(only: str, rounds: int, threads: int, folder: Path) -> Iterator[Beside]:
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
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--folder", type=Path, default=llm.FOLDER, help="where language models are, or are written")
    asked = parser.parse_args()
    found, start = [], time.time()
    for each in measured(asked.only, asked.rounds, asked.threads, asked.folder):
        found.append(each)
        print(*each.row(), sep=" | ", file=sys.stderr, flush=True)
    table = report.table(HEAD, [each.row() for each in found])
    if asked.only:
        print(table)
        return
    worst = max(found, key=lambda each: each.minima)
    rounds = f"{asked.rounds} rounds, {min(asked.rounds, LLM_ROUNDS)} of language models"
    text = f"""\
# Emitted C beside native

Written by `make bench-emitted`. {report.machine()}. {time.strftime("%Y-%m-%d")}, {rounds},
{asked.threads} threads, {(time.time() - start) / 60:.0f} minutes.

The least microseconds of one run: of a session on bound arrays, and of a call of the C that it was emitted as, compiled
by `cc -O2` without any other flag. Each is in a process of its own that is stopped while the other is measured; rounds
are interleaved. Bits are those of all outputs, in the same processes; of the language model, of its logits and
{llm.GREEDY_TOKENS} greedy tokens, where the time is that of a token. The most is {worst.minima:.3f}, of {worst.name} in
{worst.precision}.

{table}
"""
    path = Path(__file__).with_name("emitted.md")
    path.write_text(text)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

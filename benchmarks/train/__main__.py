"""Train each model on each engine, and compare their losses."""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import page
from benchmarks.harness.report import table, verdict
from benchmarks.harness.worker import Worker
from benchmarks.train.models import TRAININGS

PROGRAM = "benchmarks.train.worker"

ROUNDS = 7
BATCH_SECONDS = 1.0
READY_SECONDS = 2.0
ENGINES = ("eager", "compile", "ingot")
MIB = 2**20

Answer = dict[str, Any]


def measure(name: str, engines: list[str], rounds: int, threads: int) -> dict[str, Answer]:
    """The answer of each engine for one training, and the seconds of its rounds; or only a `failure`."""
    found: dict[str, Answer] = {}
    with tempfile.TemporaryDirectory() as folder:
        workers: dict[str, Worker] = {}
        try:
            for engine in engines:
                worker = Worker(engine, Path(folder), threads, PROGRAM)
                answer = worker.ask(build=name)
                if answer is None:
                    found[engine] = {"failure": worker.close()}
                    continue
                runs = worker.request(calibrate=BATCH_SECONDS)["runs"]
                workers[engine], found[engine] = worker, answer | {"runs": runs, "rounds": []}
            for number in range(rounds):
                first = number % max(1, len(workers))
                for engine in [*list(workers)[first:], *list(workers)[:first]]:
                    answer = found[engine]
                    answer["rounds"].append(workers[engine].request(run=answer["runs"])["seconds"])
        finally:
            for worker in workers.values():
                worker.close()
    return found


def cells(name: str, found: dict[str, Answer], engines: list[str]) -> list[str]:
    """The row of one training."""
    medians = {e: statistics.median(t["rounds"]) for e, t in found.items() if t.get("rounds")}
    others = [median for engine, median in medians.items() if engine != "ingot"]
    ratio = medians["ingot"] / min(others) if "ingot" in medians and others else math.nan
    training = TRAININGS[name]
    losses = {e: t["losses"] for e, t in found.items() if "losses" in t}
    exact = losses.get("eager", next(iter(losses.values()), []))
    difference = max(
        (abs(a - b) for each in losses.values() for a, b in zip(each, exact, strict=True)), default=math.nan
    )
    mine = found.get("ingot", {})
    planned, ready = mine.get("planned", math.nan) / MIB, mine.get("ready", math.nan)
    return [
        name,
        *(f"{medians[e] * 1e3:.1f}" if e in medians else "-" for e in engines),
        f"{ratio:.2f}", "**loss**" if ratio > 1 else "", f"{training.goal}", verdict(ratio <= training.goal),
        f"{planned:.0f} of {training.most} {verdict(planned <= training.most)}",
        ", ".join(f"{found[e]['peak'] / MIB:.0f}" if "peak" in found[e] else "-" for e in engines),
        f"{ready:.1f} of {READY_SECONDS:.0f} {verdict(ready <= READY_SECONDS)}",
        ", ".join(f"{found[e]['first']:.1f}" if "first" in found[e] else "-" for e in engines),
        ", ".join(f"{losses[e][0]:.5f} {losses[e][-1]:.5f}" if e in losses else "-" for e in engines),
        f"{difference:.1e}",
    ]  # fmt: skip


def report(results: dict[str, dict[str, Answer]], engines: list[str]) -> str:
    """The Markdown table, and below it what could not be trained."""
    listed = ", ".join(engines)
    head = ["training", *(f"{engine} ms" for engine in engines), "Ingot / best other", "", "goal", "", "planned MiB"]
    head += [f"peak MiB: {listed}", "ready s", f"first step s: {listed}", f"losses: {listed}", "largest difference"]
    text = table(head, [cells(name, found, engines) for name, found in results.items()])
    failures = [
        f"- {name}, {engine}: `{answer['failure']}`"
        for name, found in results.items()
        for engine, answer in found.items()
        if "failure" in answer
    ]
    return "\n\n".join([text, "Could not train:\n" + "\n".join(failures)] if failures else [text])


def main() -> None:
    """Measure and report, a line on stderr as each is done."""
    asked = page.options(__package__, rounds=ROUNDS, threads=page.THREADS, engines=ENGINES, only=True).parse_args()
    results = {}
    for name in page.chosen(TRAININGS, asked.only):
        results[name] = measure(name, asked.engines, asked.rounds, asked.threads)
        print(*cells(name, results[name], asked.engines), sep=" | ", file=sys.stderr, flush=True)
    page.publish(__package__, asked, "Training", asked.engines, report(results, asked.engines))


if __name__ == "__main__":
    main()

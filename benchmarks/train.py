"""`make bench-train`: Ingot's Trainer beside torch; writes benchmarks/train.md.

`python -m benchmarks.train [--only PIECE] [--rounds N] [--threads N] [--engines a,b]`. Each engine trains in a process
of its own, rounds are interleaved, the others are stopped meanwhile. With --only the table is printed, not written.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.goals import verdict
from benchmarks.report import machine, table
from benchmarks.side_by_side import THREADS, Worker
from benchmarks.train_models import TRAININGS

ROUNDS = 7
BATCH_SECONDS = 1.0
READY_SECONDS = 2.0
ENGINES = "eager,compile,ingot"
MIB = 2**20

_ABOUT = """A step is forward, backward and AdamW (fused, in torch), of the mean cross entropy, on one constant batch.
Modules are in eval mode: dropout does nothing, batch norm does not update its statistics. Medians in milliseconds,
each engine in a process of its own, rounds interleaved, the other engines stopped meanwhile; the ratio compares Ingot's
median with the faster of torch's two, and losses are marked. Ready: seconds from a module in memory until Ingot can run
a step. First step: seconds to the end of the first step, which touches its memory for the first time; if the host of a
virtual machine must allocate that memory, this may take as long as everything else. Planned: all bytes of Ingot's run,
MiB; peak: the largest memory of a process, including its libraries. Losses: the first and the fifth of each engine,
from the same weights on the same batches, and the largest difference from those of eager torch."""

Told = dict[str, Any]


def measure(name: str, engines: list[str], rounds: int, threads: int) -> dict[str, Told]:
    """What each engine said of one training, and the seconds of its rounds; or only a `failure`."""
    found: dict[str, Told] = {}
    with tempfile.TemporaryDirectory() as folder:
        workers: dict[str, Worker] = {}
        try:
            for engine in engines:
                worker = Worker(engine, Path(folder), threads, "benchmarks.train_worker")
                told = worker.ask(build=name)
                if told is None:
                    found[engine] = {"failure": worker.close()}
                    continue
                runs = worker.told(calibrate=BATCH_SECONDS)["runs"]
                workers[engine], found[engine] = worker, told | {"runs": runs, "rounds": []}
            for number in range(rounds):
                turn = number % max(1, len(workers))
                for engine in [*list(workers)[turn:], *list(workers)[:turn]]:
                    told = found[engine]
                    told["rounds"].append(workers[engine].told(run=told["runs"])["seconds"])
        finally:
            for worker in workers.values():
                worker.close()
    return found


def cells(name: str, found: dict[str, Told], engines: list[str]) -> list[str]:
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


def report(results: dict[str, dict[str, Told]], engines: list[str]) -> str:
    """The Markdown table, and below it what could not be trained."""
    listed = ", ".join(engines)
    head = ["training", *(f"{engine} ms" for engine in engines), "Ingot / best other", "", "goal", "", "planned MiB"]
    head += [f"peak MiB: {listed}", "ready s", f"first step s: {listed}", f"losses: {listed}", "largest difference"]
    text = table(head, [cells(name, found, engines) for name, found in results.items()])
    failures = [
        f"- {name}, {engine}: `{told['failure']}`"
        for name, found in results.items()
        for engine, told in found.items()
        if "failure" in told
    ]
    return "\n\n".join([text, "Could not train:\n" + "\n".join(failures)] if failures else [text])


def main() -> None:
    """Measures, a line on stderr as each is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="a piece of the names; prints the table")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--engines", default=ENGINES)
    asked = parser.parse_args()
    engines = asked.engines.split(",")
    results = {}
    for name in TRAININGS:
        if asked.only in name:
            results[name] = measure(name, engines, asked.rounds, asked.threads)
            print(*cells(name, results[name], engines), sep=" | ", file=sys.stderr, flush=True)
    versions = ", ".join(f"{each} {importlib.metadata.version(each)}" for each in ("ingot", "torch"))
    where = f"{machine()}. {versions}. {time.strftime('%Y-%m-%d')}, {asked.rounds} rounds, {asked.threads} threads."
    text = "\n\n".join(["# Training", where, _ABOUT, report(results, engines)]) + "\n"
    if asked.only:
        sys.stdout.write(text)
    else:
        (Path(__file__).parent / "train.md").write_text(text)


if __name__ == "__main__":
    main()

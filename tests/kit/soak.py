"""`python tests/kit/soak.py --count 10000 [--start S]`: the differential test over many seeds; `--seed N` repeats one.

Seeds run in processes of their own, so that a crash is a finding too. The exit code is 1 when a seed failed.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from multiprocessing.connection import Connection, wait

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from differential import Mismatch, check
from ingot.errors import IngotError
from ingot.ir.text import dump
from random_graphs import random_graph
from seeds import parse_seeds
from shrink import Case, shrink, smaller_graphs

# One seed of so many goes through a session and its saved form too, and through C.
SAVED_EVERY, EMITTED_EVERY = 10, 100
FAILURES = (
    AssertionError,
    ArithmeticError,
    AttributeError,
    IngotError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def failure(case: Case, seed: int) -> tuple[str, str] | None:
    """What is wrong with a case: its kind, the same for one cause however large the graph is, and a text."""
    try:
        check(*case, saved=seed % SAVED_EVERY == 0, emitted="" if seed % EMITTED_EVERY else "-O1")
    except Mismatch as mismatch:
        return mismatch.kind, str(mismatch)
    except FAILURES as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} in {os.path.basename(frame.filename)} {frame.name}: {frame.line}"
        return kind, "".join(traceback.format_exception(error)[-8:])
    return None


def run_seed(seed: int) -> tuple[str, str] | None:
    """What is wrong with a seed, if anything."""
    return failure(random_graph(seed), seed)


def report(seed: int) -> str:
    """For people: the shrunk graph of a failing seed, and how to repeat it. Raises no failure of the seed itself."""
    found = run_seed(seed)
    if found is None:
        return f"seed {seed}: all agree"
    case = shrink(random_graph(seed), smaller_graphs, lambda smaller: (failure(smaller, seed) or ("",))[0] == found[0])
    last = failure(case, seed)
    assert last is not None
    inputs = "".join(f"# {name} in {a.min(initial=0)}..{a.max(initial=0)}\n" for name, a in case[1].items())
    again = f"python tests/kit/soak.py --seed {seed}"
    return f"seed {seed}: {found[0]}\n{last[1].strip()}\n\n{dump(case[0])}{inputs}\n{again}\n"


def _work(seeds: list[int], results: Connection) -> None:
    for seed in seeds:
        results.send((seed, "started", ""))
        found = run_seed(seed)
        results.send((seed, "failed" if found else "passed", found[0] if found else ""))
    results.close()


class Worker:
    """A process that runs seeds and reports each; when it dies, another takes the seeds after the deadly one."""

    def __init__(self, seeds: list[int]):
        self.left = seeds
        self._begin()

    def _begin(self) -> None:
        self.results, theirs = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("spawn").Process(target=_work, args=(self.left, theirs))
        self.process.start()
        theirs.close()

    def next(self) -> tuple[int, str] | None:
        """(seed, what is wrong with it or "") of the next one that ended; None for news without a result."""
        try:
            seed, state, kind = self.results.recv()
        except EOFError:
            self.process.join()
            kind = f"crash, exit code {self.process.exitcode}"
            dead, self.left = self.left[0], self.left[1:]
            if self.left:
                self._begin()
            return dead, kind
        if state == "started":
            return None
        self.left = self.left[1:]
        return seed, kind


def soak(start: int, count: int, jobs: int) -> dict[int, str]:
    """Runs seeds; returns the failing ones and what is wrong with them."""
    failures: dict[int, str] = {}
    workers = [w for j in range(jobs) if (w := list(range(start + j, start + count, jobs)))]
    running = [Worker(seeds) for seeds in workers]
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("seeds", total=count)
        while running:
            for ready in wait([w.results for w in running]):
                worker = next(w for w in running if w.results is ready)
                ended = worker.next()
                if ended is None:
                    continue
                progress.advance(bar)
                if ended[1]:
                    failures[ended[0]] = ended[1]
                    progress.console.print(f"seed {ended[0]}: {ended[1]}", markup=False, highlight=False)
                if not worker.left:
                    running.remove(worker)
    return failures


def main() -> int:
    options = parse_seeds(__doc__, 10_000, one="shrink and print this seed only", parallel=True)
    os.environ.setdefault("INGOT_CHECK", "1")
    if options.seed is not None:
        text = report(options.seed)
        print(text)
        return int("all agree" not in text)
    failures = soak(options.start, options.count, options.jobs)
    kinds = sorted(set(failures.values()))
    print(f"{options.count} seeds from {options.start}: {len(failures)} failed")
    for kind in kinds:
        seeds = sorted(seed for seed, found in failures.items() if found == kind)
        print(f"{len(seeds)} x {kind}: seeds {', '.join(map(str, seeds[:8]))}")
    for kind in kinds[:5]:
        seed = min(seed for seed, found in failures.items() if found == kind)
        print(f"\n{report(seed) if not kind.startswith('crash') else f'python tests/kit/soak.py --seed {seed}'}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())

"""`python [-O] tests/onnx_survival.py --count 20000 [--start S] [--jobs J]`: mutants of ONNX models, loaded and run.

A mutant loads or is refused with a typed error, in little time and memory; what loads binds and runs with small dims,
or is refused the same way. Each batch of seeds is a forked child with a limit on its memory; one that dies or does not
answer is a finding too. `--seed N` repeats one here and raises. The exit code is 1 when there are findings.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable

import numpy as np

import ingot
from ingot.dim import bind
from ingot.errors import IngotError
from ingot.ir import Graph
from ingot.load.onnx import load_onnx
from onnx_mutations import mutant, originals

BATCH = 50
MEMORY_BYTES = 3 << 30  # beyond what the process has before
LOAD_SECONDS = 10
RUN_SECONDS = 20
MAX_FED_ELEMENTS = 1 << 16
# What is raised besides ends the child, which is a finding too.
FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, ImportError, IngotError, LookupError, MemoryError),
    *(NameError, OSError, RuntimeError, SystemError, TypeError, ValueError),
)


def feeds_of(graph: Graph, size: int) -> dict[str, np.ndarray] | None:
    """Small inputs, every symbol bound to `size`; None when they cannot be small."""
    feeds, symbols = {}, dict.fromkeys(graph.symbols, size)
    for name in graph.inputs:
        shape = [bind(dim, symbols) for dim in graph.type(name).shape]
        if (
            not all(isinstance(dim, int) and dim >= 0 for dim in shape)
            or np.prod(shape, dtype=float) > MAX_FED_ELEMENTS
        ):
            return None
        feeds[name] = np.ones(shape, graph.type(name).dtype.numpy)  # type: ignore[arg-type]
    return feeds


def load_and_run(seed: int, say: Callable[[str], object] = print) -> str:
    """What became of a mutant; raises what is not an error of Ingot. An alarm ends what takes too long."""
    say("loading")
    content = mutant(seed)
    signal.alarm(LOAD_SECONDS)
    try:
        graph = load_onnx(content)
    except IngotError:
        return "refused"
    graph.validate()
    outcome = "loaded"
    say("slow")  # unless it ends: a file may ask for much work, within the limits of its sizes
    for size in (1, 3):
        feeds = feeds_of(graph, size)
        if feeds is None:
            continue
        signal.alarm(RUN_SECONDS)
        with contextlib.suppress(IngotError):
            ingot.InferenceSession(graph, threads=1).run(None, feeds)
            outcome = "ran"
        if not graph.symbols:
            break
    return outcome


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))


def _judge(seeds: range, pipe: int) -> None:
    """In the child: lines `seed outcome`, of which the last one of a seed counts."""
    _limit_memory()
    # Warnings and tracebacks of mutants are no news.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for seed in seeds:

        def say(outcome: str, seed: int = seed) -> None:
            os.write(pipe, f"{seed} {outcome}\n".encode())

        try:
            outcome = load_and_run(seed, say)
        except FAILURES as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)} {frame.name}: {frame.line}"
            outcome = f"! {type(error).__name__} {str(error)[:120]!r} in {place}".replace("\n", " ")
        signal.alarm(0)
        say(outcome)


def batch(seeds: range) -> dict[int, str]:
    """The outcome of each seed, findings begin with `!`."""
    outcomes: dict[int, str] = {}
    while len(outcomes) < len(seeds):
        left = range(seeds.start + len(outcomes), seeds.stop)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _judge(left, writing)
            os._exit(0)
        os.close(writing)
        text = b""
        while select.select([reading], [], [], LOAD_SECONDS + 3 * RUN_SECONDS)[0]:
            piece = os.read(reading, 65536)
            if not piece:
                break
            text += piece
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        outcomes |= {int(line.split(" ", 1)[0]): line.split(" ", 1)[1] for line in text.decode().splitlines()}
        last = max(outcomes, default=seeds.start)
        state = outcomes.get(last, "starting")
        alarmed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        if state in ("starting", "loading") or (state == "slow" and not alarmed):
            outcomes[last] = f"! died while {state}, wait status {status}"
    return outcomes


def survive(start: int, count: int, jobs: int) -> dict[int, str]:
    """Outcomes of many seeds, by several processes."""
    originals()  # once for all children
    ingot.InferenceSession(load_onnx(originals()[0]), threads=1)
    starts = range(start, start + count, BATCH)
    pipes = []
    for job in range(jobs):
        reading, writing = os.pipe()
        if os.fork() == 0:
            with os.fdopen(writing, "w", encoding="utf-8") as out:
                for first in starts[job::jobs]:
                    found = batch(range(first, min(first + BATCH, start + count)))
                    out.writelines(f"{seed} {outcome}\n" for seed, outcome in found.items())
            os._exit(0)
        os.close(writing)
        pipes.append(reading)
    outcomes: dict[int, str] = {}
    for reading in pipes:
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                seed, outcome = line.rstrip("\n").split(" ", 1)
                outcomes[int(seed)] = outcome
        os.wait()
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="load and run this seed only, here")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    options = parser.parse_args()
    if options.seed is not None:
        _limit_memory()
        print(load_and_run(options.seed))
        return 0
    outcomes = survive(options.start, options.count, options.jobs)
    findings = {seed: outcome for seed, outcome in outcomes.items() if outcome.startswith("!")}
    for seed, outcome in sorted(findings.items()):
        print(f"seed {seed}: {outcome}")
    print("slow:", *(seed for seed, outcome in sorted(outcomes.items()) if outcome == "slow"))
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("refused", "loaded", "ran", "slow")}
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"{len(outcomes)} mutants from seed {options.start}: {told}, {len(findings)} findings")
    return int(bool(findings) or len(outcomes) < options.count)


if __name__ == "__main__":
    sys.exit(main())

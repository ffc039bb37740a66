"""Seeds of a fuzzer, each judged in a forked child with a limit on its memory: one that dies is a finding too.

A judge takes a seed and `say`, and returns what became of the seed, a word; a finding begins with `!`. It says a state
before each step that may take long, and takes the step within `limited`: the state is the outcome of a seed that
exceeds its limit.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import select
import signal
import traceback
from collections.abc import Callable, Iterator

from ingot.errors import IngotError

BATCH = 50
MEMORY_BYTES = 3 << 30  # beyond what the process has before
WAITING = 10  # wall seconds for each CPU second: a loaded machine gives a process a part of a core, or none for a while
SILENCE_SECONDS = 900  # after which a child is taken to hang in spite of its limits
# What is raised besides ends the child, which is a finding too.
FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, ImportError, IngotError, LookupError, MemoryError),
    *(NameError, OSError, RuntimeError, SystemError, TypeError, ValueError),
)

ENDINGS = (signal.SIGALRM, signal.SIGPROF)  # of `limited`

Say = Callable[[str], object]
Judge = Callable[[int, Say], str]


def limit_memory() -> None:
    """Limits the memory of this process from now on."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """End this process if the block takes so many CPU seconds, or WAITING times as many wall seconds."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(WAITING * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def _judge_all(seeds: range, judge: Judge, pipe: int) -> None:
    """In the child: lines `seed outcome`, of which the last one of a seed counts."""
    limit_memory()
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_DFL)  # pytest's own handler cannot end what hangs in C
    # Warnings and tracebacks of what is tried are no news.
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for seed in seeds:

        def say(outcome: str, seed: int = seed) -> None:
            os.write(pipe, f"{seed} {outcome}\n".encode())

        say("starting")
        try:
            outcome = judge(seed, say)
        except FAILURES as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)} {frame.name}: {frame.line}"
            outcome = f"! {type(error).__name__} {str(error)[:120]!r} in {place}".replace("\n", " ")
        say(f"= {outcome}")


def batch(seeds: range, judge: Judge) -> dict[int, str]:
    """The outcome of each seed, findings begin with `!`."""
    outcomes: dict[int, str] = {}
    while len(outcomes) < len(seeds):
        left = seeds[len(outcomes) :]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                _judge_all(left, judge, writing)
            finally:
                os._exit(0)
        os.close(writing)
        text = b""
        while select.select([reading], [], [], SILENCE_SECONDS)[0]:
            piece = os.read(reading, 65536)
            if not piece:
                break
            text += piece
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        states = dict(line.split(" ", 1) for line in text.decode().splitlines())
        for seed, state in (states or {str(left[0]): "starting"}).items():
            ended = state.startswith("= ")
            alarmed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in ENDINGS and state != "starting"
            died = f"! died while {state}, wait status {status}"
            outcomes[int(seed)] = state.removeprefix("= ") if ended else state if alarmed else died
    return outcomes


def judge_seeds(start: int, count: int, jobs: int, judge: Judge) -> dict[int, str]:
    """Outcomes of many seeds, by several processes."""
    starts = range(start, start + count, BATCH)
    pipes = []
    for job in range(jobs):
        reading, writing = os.pipe()
        if os.fork() == 0:
            with os.fdopen(writing, "w", encoding="utf-8") as out:
                for first in starts[job::jobs]:
                    found = batch(range(first, min(first + BATCH, start + count)), judge)
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

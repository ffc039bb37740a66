"""One target in a process of its own, guided by the branches that it takes: `python -m fuzz.one NAME FOLDER [FLAGS]`.

FOLDER holds what the process reads and writes: `corpus`, inputs to start from and those that take new branches;
`findings`, what the target must not do, one file for each, with its traceback; `counts`, how often it was called;
`words`, of the format. FLAGS are libFuzzer's. `--seeds` writes the inputs to start from, and does nothing else, as does
`--reduce`, which writes to `kept` the inputs that are worth to be kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

from forked import FAILURES, MEMORY_BYTES, Say, limited
from fuzz.targets import TARGETS, Target
from ingot.errors import IngotError

COUNTS = struct.Struct("5q")  # executions, accepted, refused, ended by a limit in use, wrong


class SlowError(BaseException):
    """An input took more CPU time than its target has for it."""


def _end(number: int, frame: object) -> None:
    raise SlowError


class Judge:
    """Calls a target, counts what becomes of inputs, and keeps the smallest input of each finding."""

    def __init__(self, target: Target, accept: Callable[[bytes], object], folder: Path):
        self._target, self._accept, self._findings = target, accept, folder / "findings"
        self._findings.mkdir(exist_ok=True)
        with open(folder / "counts", "r+b") as file:
            self._counts = mmap.mmap(file.fileno(), COUNTS.size)
        self._totals = [0] * 5
        signal.signal(signal.SIGPROF, _end)

    def __call__(self, content: bytes) -> None:
        kind: int = 1
        error: BaseException | None = None
        try:
            signal.setitimer(signal.ITIMER_PROF, self._target.seconds)
            try:
                self._accept(content)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        except IngotError:
            kind = 2
        except SlowError as slow:
            kind, error = (3, None) if self._target.is_limited else (4, slow)
        except FAILURES as failure:
            kind, error = 4, failure
        self._totals[0] += 1
        self._totals[kind] += 1
        COUNTS.pack_into(self._counts, 0, *self._totals)
        if error is not None:
            self._note(content, error)

    def _note(self, content: bytes, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [each for each in frames if "/ingot/" in each.filename] or [*frames]
        at = f"{type(error).__name__} in {os.path.basename(inside[-1].filename)} {inside[-1].name}: {inside[-1].line}"
        path = self._findings / hashlib.sha256(at.encode()).hexdigest()[:10]
        if path.exists() and path.stat().st_size <= len(content):
            return
        path.write_bytes(content)
        path.with_suffix(".txt").write_text(f"{at}\n{''.join(traceback.format_exception(error))}")


def accepted_by(target: Target) -> Callable[[bytes, Say], str]:
    """Return a judge of inputs, as `forked.batch` calls it."""
    accept = target.make()

    def judge(content: bytes, say: Say) -> str:
        say("ended" if target.is_limited else "! slow")
        try:
            with limited(target.seconds):
                accept(content)
        except IngotError:
            return "refused"
        return "accepted"

    return judge


def _mutator(target: Target) -> Callable[[bytes, int, int], bytes]:
    import atheris

    assert target.mutate is not None
    own = target.mutate

    def changed(content: bytes, most: int, seed: int) -> bytes:
        chance = Random(seed)
        if chance.random() < 0.5:
            with contextlib.suppress(*FAILURES):  # of an input that has lost its structure
                content = own(bytes(content), chance)[:most]
            if chance.random() < 0.5:
                return content
        return atheris.Mutate(content, most)  # another function than before `Fuzz`

    return changed


def reduce(target: Target, folder: Path) -> None:
    """Copy the smallest inputs that together take all branches of Ingot's, from `corpus` to `kept`."""
    accept, seen = target.make(), set[tuple[CodeType, int, int]]()
    signal.signal(signal.SIGPROF, _end)
    for path in sorted((folder / "corpus").iterdir(), key=lambda each: (each.stat().st_size, each.name)):
        content, arcs = path.read_bytes(), set[tuple[CodeType, int, int]]()
        signal.setitimer(signal.ITIMER_PROF, 10 * target.seconds)
        sys.settrace(_tracer(arcs))
        try:
            accept(content)
        except (*FAILURES, IngotError, SlowError):
            pass
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_PROF, 0)
        if not arcs <= seen:
            seen |= arcs
            (folder / "kept" / path.name).write_bytes(content)


def _tracer(arcs: set[tuple[CodeType, int, int]]) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that adds the pairs of lines of which one follows the other."""
    lines: dict[FrameType, int] = {}

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        arcs.add((frame.f_code, lines.get(frame, 0), frame.f_lineno))
        lines[frame] = frame.f_lineno
        if event == "return":
            del lines[frame]
        return follow

    return lambda frame, event, argument: follow if "/ingot/" in frame.f_code.co_filename else None


def main() -> None:
    name, folder, *flags = sys.argv[1:]
    target, where = TARGETS[name], Path(folder)
    if flags == ["--seeds"]:
        for content in target.seeds():
            (where / "corpus" / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content[: target.most])
        return
    if flags == ["--reduce"]:
        reduce(target, where)
        return
    import atheris

    with atheris.instrument_imports(include=list(target.packages)):
        accept = target.make()
    judge = Judge(target, accept, where)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    given: dict[str, Any] = {} if target.mutate is None else {"custom_mutator": _mutator(target)}
    atheris.Setup([sys.argv[0], *flags, f"-max_len={target.most}", str(where / "corpus")], judge, **given)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

"""Faults at the n-th call, for each n: allocations and calls of the system that fail, and the end of the process.

`LD_PRELOAD=faults.so python tests/kit/faults.py WORK KIND [--stride N] [--errno E] [--keep]` tries a work of WORKS
under faults of a kind, each in a forked child, and prints what was wrong; `library` compiles faults.so. The exit code
is 1 when something was. With --keep, the number of faults goes to the ledger.

A work ends well, or in a typed error. What it should write is whole or not there, what it should replace is as before
or replaced, and the same work succeeds afterwards.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forked import FAILURES
from fuzz import ledger
from ingot.errors import IngotError, IngotWarning
from places import KIT

KINDS = {"allocation": 1, "system": 2, "kill": 2}
ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EINTR)
Content = dict[str, bytes]


def library(folder: Path) -> Path:
    """Compile the library of faults."""
    path = folder / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-fno-builtin", "-o", path, KIT / "faults.c"], check=True)
    return path


@dataclass
class Work:
    """Something to do in a folder. do: returns what must have the same bits each time. written: the name of what it
    writes below the folder; both contents that it may have afterwards are known from runs without faults.
    """

    do: Callable[[], Any]
    written: str | None = None


def content_of(path: Path) -> Content | None:
    """The bytes of a file or of the files of a folder; None where there is none."""
    if path.is_file():
        return {"": path.read_bytes()}
    if not path.is_dir():
        return None
    return {each.relative_to(path).as_posix(): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


# -- works ------------------------------------------------------------------------------------------------------------


def _graph(seed: int = 0) -> Any:
    from ingot.ir.dtype import f32
    from ingot.ir.graph import Graph, TensorType

    rng = np.random.default_rng(seed)
    graph = Graph("net")
    graph.add_input("x", TensorType(f32, (3, 16)))
    for name, shape in (("w", (16, 24)), ("v", (24, 8))):
        graph.add_weight(name, rng.standard_normal(shape).astype(np.float32))
    hidden = graph.add("gelu", [graph.add("matmul", ["x", "w"]).output], approximate="erf").output
    graph.set_output("y", graph.add("softmax", [graph.add("matmul", [hidden, "v"]).output], axis=1).output)
    return graph


FEEDS = {"x": np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 16)}


def load(folder: Path) -> Work:
    """Load an ONNX file, compile it and run it."""
    from ingot import InferenceSession
    from ingot.emit.onnx import export_onnx

    export_onnx(_graph(), folder / "m.onnx")
    return Work(lambda: InferenceSession(folder / "m.onnx", threads=1, cache=False).run(None, FEEDS)[0].tobytes())


def cache(folder: Path) -> Work:
    """The same, writing an entry of the compile cache, and reading it the next time."""
    from ingot import InferenceSession
    from ingot.emit.onnx import export_onnx
    from ingot.session import compile_cache

    compile_cache.SETTLED_NANOSECONDS = 0
    export_onnx(_graph(), folder / "m.onnx")

    def do() -> list[bytes]:
        found = []
        for _ in range(2):
            session = InferenceSession(folder / "m.onnx", threads=1, cache=folder / "cache")
            found.append(session.run(None, FEEDS)[0].tobytes())
        return found

    return Work(do)


def save(folder: Path) -> Work:
    """Save a program over another one."""
    from ingot import InferenceSession

    sessions = [InferenceSession(_graph(seed), threads=1) for seed in (0, 1)]
    for session in sessions:
        session.run(None, FEEDS)
    sessions[0].save(folder / "program")

    def do() -> None:
        sessions[1].save(folder / "program")

    return Work(do, "program")


def read(folder: Path) -> Work:
    """Load a saved program and run it."""
    from ingot import InferenceSession

    session = InferenceSession(_graph(), threads=1)
    session.run(None, FEEDS)
    session.save(folder / "program")
    return Work(lambda: InferenceSession(folder / "program", threads=1).run(None, FEEDS)[0].tobytes())


def quantize(folder: Path) -> Work:
    """Quantize a folder of a language model."""
    from attacks.hostile_configs import write_llama
    from ingot.quantize import Plan, quantize_folder

    write_llama(folder / "llama", vocab_size=96)

    def do() -> None:
        shutil.rmtree(folder / "int8", ignore_errors=True)  # a free name is needed
        quantize_folder(folder / "llama", folder / "int8", Plan("int8"))

    return Work(do, "int8")


def train(folder: Path) -> Work:
    """Steps of training from a checkpoint, and another checkpoint over an earlier one."""
    import ingot

    batch = FEEDS["x"], np.array([0, 3, 7], np.int64)
    trainer = ingot.Trainer(_graph(), example_inputs=batch, optimizer=ingot.SGD(lr=0.1))
    trainer.step(*batch)
    trainer.save(folder / "first")
    trainer.step(*batch)
    trainer.save(folder / "checkpoint")

    def do() -> float:
        trainer.load(folder / "first")
        loss = [trainer.step(*batch) for _ in range(3)][-1]
        trainer.save(folder / "checkpoint")
        return loss

    return Work(do, "checkpoint")


WORKS: dict[str, Callable[[Path], Work]] = {
    "load": load, "cache": cache, "save": save, "read": read, "quantize": quantize, "train": train,
}  # fmt: skip


# -- faults -----------------------------------------------------------------------------------------------------------


class Trial:
    """A work under faults. Raises AssertionError without the library."""

    def __init__(self, name: str):
        self._make = WORKS[name]
        process = ctypes.PyDLL(None)
        assert hasattr(process, "fault_arm"), "LD_PRELOAD lacks the library of faults"
        self._arm, self._disarm = process.fault_arm, process.fault_disarm
        self._arm.argtypes, self._disarm.restype = [ctypes.c_int, ctypes.c_long, ctypes.c_int], ctypes.c_long
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # imports, and what is computed once
            work = self._make(Path(folder))
            self._right = work.do()
            self._last = None if work.written is None else content_of(Path(folder) / work.written)

    def run(self, kind: str, stride: int = 1, code: int = errno.ENOSPC) -> Iterator[str]:
        """Yield what became of each fault, until there are fewer calls than its number; what is wrong begins with !."""
        number = 1
        while True:
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                outcome = self._attempt(Path(folder), kind, number, code)
            if outcome == "over":
                return
            yield outcome if outcome[0] != "!" else f"! {kind} {number}: {outcome[2:]}"
            number += stride

    def _attempt(self, folder: Path, kind: str, number: int, code: int) -> str:
        """One fault, in a child; and the work once more, in another."""
        work = self._make(folder)
        before = None if work.written is None else content_of(folder / work.written)
        outcome = _in_child(lambda: self._struck(work, kind, number, 0 if kind == "kill" else code))
        if outcome == "over" or (outcome[0] == "!" and outcome != "! killed by SIGKILL"):
            return outcome
        if outcome[0] == "!" and kind != "kill":
            return outcome
        if work.written is not None and (now := content_of(folder / work.written)) not in (before, self._last):
            return f"! {work.written} is neither as before nor as it should be, it has {sorted(now or {})}"
        again = _in_child(lambda: self._whole(work))
        if again == "well" and work.written is not None and content_of(folder / work.written) != self._last:
            again = "! afterwards: another content"
        return again if again[0] == "!" else "killed" if kind == "kill" else outcome

    def _struck(self, work: Work, kind: str, number: int, code: int) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IngotWarning)
            self._arm(KINDS[kind], number, code)
            try:
                found = work.do()
            except IngotError as error:
                self._disarm()
                return type(error).__name__
            except FAILURES as error:
                self._disarm()
                frames = traceback.extract_tb(error.__traceback__)
                return f"! {type(error).__name__} in {frames[-1].filename}:{frames[-1].lineno}: {error}"
            calls = self._disarm()
        if calls < number:
            return "over"
        return "well" if found == self._right else "! another result"

    def _whole(self, work: Work) -> str:
        return "well" if work.do() == self._right else "! afterwards: another result"


def _in_child(judge: Callable[[], str]) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.write(writer, judge().encode()[:4000])
        except (*FAILURES, IngotError) as error:
            os.write(writer, f"! {type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    status = os.waitpid(child, 0)[1]
    return f"! killed by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--stride", type=int, default=1, help="try each so manieth call")
    parser.add_argument("--errno", type=int, default=errno.ENOSPC, help="of calls of the system that fail")
    parser.add_argument("--keep", action="store_true", help="add the number of faults to the ledger")
    options = parser.parse_args()
    outcomes = list(Trial(options.work).run(options.kind, options.stride, options.errno))
    wrong = [outcome for outcome in outcomes if outcome[0] == "!"]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    counts = dict(Counter(each for each in outcomes if each[0] != "!"))
    print(f"{options.work}, {options.kind}: {len(outcomes)} faults, {counts}")
    if options.keep and not wrong:
        ledger.faulted(options.work, options.kind, len(outcomes))
    return int(bool(wrong) or not outcomes)


if __name__ == "__main__":
    sys.exit(main())

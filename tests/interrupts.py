"""Ctrl-C between any two bytecodes of Ingot."""

import contextlib
import dis
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

import ingot

_ROOT = os.path.dirname(ingot.__file__) + os.sep


@dataclass(slots=True)
class Interrupt:
    """seen: bytecodes of Ingot before the interrupt, or in all. where: its file, line and function; "" if none came.
    error: it, with the frames that it went through, as an interactive interpreter keeps it.
    """

    seen: int = 0
    where: str = ""
    error: KeyboardInterrupt | None = None


@contextlib.contextmanager
def interrupted(at: int | None) -> Iterator[Interrupt]:
    """Raises KeyboardInterrupt before the `at`-th bytecode, from 0, that this thread runs in functions of Ingot which
    the block calls, and ends the block with it; None counts them only.

    CPython itself looks for signals only at entries, calls and jumps back: never between a `with` block and the exit
    that leaves it, where an interrupt would keep any lock locked. So none is raised there.
    """
    interrupt = Interrupt()

    def trace(frame: FrameType, event: str, _argument: Any) -> Callable[..., Any] | None:
        if event == "call":
            if not frame.f_code.co_filename.startswith(_ROOT):
                return None
            frame.f_trace_opcodes = True
        elif event == "opcode" and frame.f_lasti not in _exits(frame.f_code):
            if interrupt.seen == at:
                interrupt.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
                raise KeyboardInterrupt
            interrupt.seen += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield interrupt
    except KeyboardInterrupt as error:
        if not interrupt.where:
            raise
        interrupt.error = error
    finally:
        sys.settrace(before)


@cache
def _exits(code: CodeType) -> frozenset[int]:
    """Offsets of the bytecodes that lead out of `with` blocks: three times None and a call, or the way of an error."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    found: set[int] = set()
    for i, step in enumerate(steps):
        if step.opname == "WITH_EXCEPT_START":
            found |= {steps[i - 1].offset, step.offset}
        nones = [s.opname == "LOAD_CONST" and s.argval is None for s in steps[max(i - 3, 0) : i]]
        call = next((s for s in steps[i : i + 2] if s.opname == "CALL"), None)
        if len(nones) == 3 and all(nones) and call is not None and call.arg == 2:
            found |= {s.offset for s in (*steps[i - 3 : i], step, call)}
    return frozenset(found)

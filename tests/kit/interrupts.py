"""Ctrl-C, or memory that runs out, at any instruction of Ingot's.

The signal is set from C while an instruction of Ingot's waits to be executed, and CPython raises KeyboardInterrupt
where it then looks for signals: where a user's Ctrl-C may strike, and nowhere else. A MemoryError strikes there, too.
"""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ingot
from ingot.errors import ResourceError

INSIDE = str(Path(ingot.__file__).parent)
Place = tuple[CodeType, int]


def _in_c(name: str) -> Any:
    """A C function of CPython's as a trace function: it returns without executing a line of Python."""
    function = getattr(ctypes.PyDLL(None), name)
    function.argtypes, function.restype = [ctypes.py_object] * 3, None
    return function


_set_signal, _do_nothing = _in_c("PyErr_SetInterrupt"), _in_c("Py_IsInitialized")


def _traced(work: Callable[[], object], each: Callable[[FrameType, str, Any], Any]) -> None:
    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(INSIDE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return each

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)


def places(work: Callable[[], object]) -> list[Place]:
    """Every instruction of Ingot's that work executes, in the order in which they are first met."""
    found: dict[Place, None] = {}

    def each(frame: FrameType, event: str, argument: Any) -> None:
        if event == "opcode":
            found[frame.f_code, frame.f_lasti] = None

    _traced(work, each)
    return list(found)


def interrupt(
    work: Callable[[], object], place: Place, kind: type[BaseException] = KeyboardInterrupt
) -> BaseException | None:
    """Works, with a Ctrl-C or another error after an instruction is executed for the first time; None where it did not
    strike.

    What it raised holds the frames that it went through for as long as the caller holds it, as the last error of an
    interactive interpreter does.
    """

    def each(frame: FrameType, event: str, argument: Any) -> Any:
        if event != "opcode" or (frame.f_code, frame.f_lasti) != place:
            return None
        # Called for the next instruction of a caller, or for a call, a line of Python would be struck in their stead.
        sys.settrace(_do_nothing)
        caller = frame.f_back
        while caller is not None:
            if caller.f_trace is each:
                caller.f_trace = _set_signal
            caller = caller.f_back
        return _set_signal

    def strike(number: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        raise kind

    before = signal.signal(signal.SIGINT, strike)
    try:
        _traced(work, each)
    except (kind, ResourceError) as error:
        return error
    finally:
        signal.signal(signal.SIGINT, before)
        gc.enable()  # a few instructions of `uncollected` leave it off where they are struck
    return None

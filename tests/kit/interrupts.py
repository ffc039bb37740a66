"""Ctrl-C at any instruction of Ingot's.

The signal is set from C while an instruction of Ingot's waits to be executed, and CPython raises KeyboardInterrupt
where it then looks for signals: where a user's Ctrl-C may strike, and nowhere else.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ingot

INSIDE = str(Path(ingot.__file__).parent)
Place = tuple[CodeType, int]

# As a trace function: sets the signal, and returns to the instruction without executing a line of Python.
_set_signal = ctypes.PyDLL(None).PyErr_SetInterrupt
_set_signal.argtypes, _set_signal.restype = [ctypes.py_object] * 3, None


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


def interrupt(work: Callable[[], object], place: Place) -> KeyboardInterrupt | None:
    """Works, with a Ctrl-C after an instruction is executed for the first time; None where it did not strike.

    What it raised holds the frames that it went through for as long as the caller holds it, as the last error of an
    interactive interpreter does.
    """

    def each(frame: FrameType, event: str, argument: Any) -> Any:
        return _set_signal if event == "opcode" and (frame.f_code, frame.f_lasti) == place else None

    def strike(number: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, strike)
    try:
        _traced(work, each)
    except KeyboardInterrupt as error:
        return error
    finally:
        signal.signal(signal.SIGINT, before)
    return None

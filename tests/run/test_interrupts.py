"""Ctrl-C at instructions spread over load, compile, bind and run: sessions give the right bits afterwards."""

import subprocess
import sys
import threading
from typing import Any

import pytest

import session_interrupts
from interrupts import INSIDE, interrupt, places
from places import KIT

STRIDES = {"load": 211, "compile": 211, "run": 19, "bind": 29}


@pytest.mark.parametrize(
    ("stage", "model"), [(stage, model) for stage, models in session_interrupts.STAGES.items() for model in models]
)
def test_stage(stage: str, model: str) -> None:
    struck = list(session_interrupts.check(stage, model, STRIDES[stage]))
    assert len(struck) > 10 and any(struck)


WITH_A_LOCK = """
def inside():
    return 1

def outside():
    with lock:
        return inside()
"""


@pytest.mark.parametrize("stage", ["load", "compile"])
def test_memory_runs_out(stage: str) -> None:
    struck = list(session_interrupts.check(stage, "whole", 997, kind=MemoryError))
    assert len(struck) > 4 and any(struck)


def test_a_strike_falls_where_cpython_looks_for_signals() -> None:
    """As between the last instruction of a call and the one that gives a lock back, where it does not."""
    lock = threading.Lock()
    names: dict[str, Any] = {"lock": lock}
    exec(compile(WITH_A_LOCK, f"{INSIDE}/with_a_lock.py", "exec"), names)
    struck = 0
    for place in places(names["outside"]):
        struck += interrupt(names["outside"], place) is not None
        assert not lock.locked(), place
    assert struck


IMPORTS = """
import importlib
from interrupts import interrupt, places

def again():
    importlib.import_module("ingot.load.onnx")

def anew():
    for name in [name for name in sys.modules if name.partition(".")[0] == "ingot"]:
        del sys.modules[name]
    again()

found = [place for place in places(anew) if place[0].co_name == "<module>"]
struck = 0
for place in found[50 :: len(found) // 12]:
    struck += interrupt(anew, place) is not None
    again()
print(struck > 5)
"""


def test_an_import_that_was_interrupted_can_be_tried_again() -> None:
    start = f"import sys\nsys.path.append({str(KIT)!r})\n"
    result = subprocess.run([sys.executable, "-c", start + IMPORTS], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "True", result.stderr

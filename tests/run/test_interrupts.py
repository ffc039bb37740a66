"""Ctrl-C at instructions spread over load, compile, bind and run: sessions give the right bits afterwards."""

import subprocess
import sys

import pytest

import session_interrupts
from places import KIT

STRIDES = {"load": 211, "compile": 211, "run": 19, "bind": 29}


@pytest.mark.parametrize(
    ("stage", "model"), [(stage, model) for stage, models in session_interrupts.STAGES.items() for model in models]
)
def test_stage(stage: str, model: str) -> None:
    struck = list(session_interrupts.check(stage, model, STRIDES[stage]))
    assert len(struck) > 10 and any(struck)


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

"""Mutated ONNX models are refused with typed errors or run, in bounded memory, with and without asserts."""

import subprocess
import sys

import pytest

from places import KIT


@pytest.mark.parametrize(("flags", "start"), [((), 0), (("-O",), 1_000_000)], ids=["asserts", "optimised"])
def test_mutants(flags: tuple[str, ...], start: int) -> None:
    script = str(KIT / "onnx_survival.py")
    command = [sys.executable, *flags, script, "--count", "150", "--start", str(start), "--jobs", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "150 seeds" in result.stdout

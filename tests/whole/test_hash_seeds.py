"""Nothing depends on PYTHONHASHSEED, by which sets are ordered, or on addresses: plans, files, errors, tests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
KIT = TESTS / "kit"
SOME_TESTS = ("passes", "plan", "lower", "ir", "load/test_onnx_bindings.py", "run/test_growing.py")


def outputs(seeds: Sequence[int], *arguments: str) -> Iterator[str]:
    """What a Python program prints under each seed; two at a time."""
    for pair in (seeds[i : i + 2] for i in range(0, len(seeds), 2)):
        environments = [os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)} for seed in pair]
        command = [sys.executable, *arguments]
        running = [
            subprocess.Popen(command, env=each, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for each in environments
        ]
        for seed, process in zip(pair, running, strict=True):
            output, errors = process.communicate()
            assert process.returncode == 0, f"PYTHONHASHSEED={seed}: {output[-3000:]}{errors[-3000:]}"
            yield output


def assert_alike(seeds: Sequence[int], *options: str) -> None:
    first, *others = (json.loads(output) for output in outputs(seeds, str(KIT / "fingerprints.py"), *options))
    assert first
    for seed, other in zip(seeds[1:], others, strict=True):
        assert other.keys() == first.keys()
        for name, found in first.items():
            assert other[name] == found, f"{name}: another one for PYTHONHASHSEED={seed}"


def test_plans_are_alike() -> None:
    assert_alike((1, 2), "--count", "8")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_plans_and_files_are_alike() -> None:
    assert_alike(range(8), "--count", "100", "--packaged")


@pytest.mark.parametrize("name", SOME_TESTS)
def test_tests_exist(name: str) -> None:
    """Only the slow test below runs them: without this one, a moved folder is noticed late."""
    assert (TESTS / name).exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tests_pass() -> None:
    tests = [str(TESTS / name) for name in SOME_TESTS]
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow")
    assert all(" passed" in output for output in outputs(range(8), "-m", "pytest", *options, *tests))

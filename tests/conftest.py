"""What every test has: invariants checked at stage borders, and random numbers whose seed a failure shows."""

import gc
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

import chromium
import ingot.ops
from chromium import Chromium
from ingot.cli import main

assert ingot.ops  # the import registers every op

os.environ.setdefault("INGOT_CHECK", "1")
os.environ.pop("COLUMNS", None)  # pytest-xdist says 80; pipes have no width
os.unsetenv("COLUMNS")  # as does readline, where a process that is started alone sees it

# A shell starts what runs in the background with SIGINT ignored, and children inherit that: an interrupt that a test
# sends would never reach them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how loaded the machine is, and nothing about the code.
hypothesis.settings.register_profile(
    "ingot", hypothesis.settings(), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("ingot")


# Folders and files of long tests.
LONG = {"test_types.py", "training", "whole", "zoo"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long tests first: at the end of a run, one worker would wait for the other's.

    Where no adapter of WebGPU is there, one test stands for all that need one: its skip says why.
    """
    items.sort(key=lambda item: item.path.relative_to(Path(__file__).parent).parts[0] not in LONG)
    found = sys.modules.get("adapters")
    if found is None or found.NAMES or os.environ.get("CI"):
        return
    _, *rest = [item for item in items if "adapter" in getattr(item, "fixturenames", ())] or [None]
    if rest:
        config.hook.pytest_deselected(items=rest)
        items[:] = [item for item in items if item not in rest]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for all tests of a process. CI has it."""
    if chromium.PROGRAM is None and not os.environ.get("CI"):
        pytest.skip("chromium is not installed: web pages are not tried; .ci/run installs it")
    found = Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers; INGOT_SEED in the environment replaces the seed that the test's name gives."""
    seed = int(os.environ.get("INGOT_SEED") or zlib.crc32(request.node.name.encode()))
    print(f"seed {seed}: repeat with INGOT_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def call(capfd, monkeypatch):
    """Runs `ingot ARGUMENTS`: (exit code, stdout, stderr)."""
    monkeypatch.delenv("INGOT_ISA", raising=False)

    def run(*arguments) -> tuple[int, str, str]:
        code = 0
        try:
            main([str(a) for a in arguments])
        except SystemExit as end:
            code = end.code
        gc.unfreeze()  # as if the process had ended
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A model of each format that can be looked at; see `inspect_models`."""
    from inspect_models import write_models

    return write_models(tmp_path_factory.mktemp("models"))

"""Loading, caching, saving, quantizing and training while the n-th allocation or call of the system fails, for each n,
and while the process is killed there. `tests/kit/faults.py` says what must hold.
"""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults import ERRORS, WORKS, library
from places import KIT


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("faults"))


def expect_nothing_wrong(preload: Path, *arguments: object) -> None:
    environment = os.environ | {"LD_PRELOAD": str(preload), "INGOT_CHECK": "0"}
    command = [sys.executable, KIT / "faults.py", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("kind", ["allocation", "system"])
def test_some_faults_of_a_save(preload: Path, kind: str) -> None:
    expect_nothing_wrong(preload, "save", kind, "--stride", 9)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_any_allocation_may_fail(preload: Path, work: str) -> None:
    expect_nothing_wrong(preload, work, "allocation")


@pytest.mark.slow
@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("work", WORKS)
def test_any_call_of_the_system_may_fail(preload: Path, work: str, code: int) -> None:
    expect_nothing_wrong(preload, work, "system", "--errno", code)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_killed_at_any_call(preload: Path, work: str) -> None:
    expect_nothing_wrong(preload, work, "kill")

"""native/pool_stress.c under the thread sanitizer: `python tests/kit/pool_stress.py --rounds 20000 [SCENARIO...]`.

It needs no kernels: what runs programs is compiled beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from places import KIT

SOURCES = ("runtime/run.c", "runtime/pool.c", "runtime/lock.c")


def built(folder: Path) -> Path:
    """The program. Raises CalledProcessError."""
    csrc, program = Path(str(files("ingot") / "csrc")), folder / "pool_stress"
    sources = [KIT / "native" / "pool_stress.c", *(csrc / name for name in SOURCES)]
    words = ["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=thread", "-fvisibility=hidden"]
    subprocess.run([*words, f"-I{csrc}", *sources, "-pthread", "-ldl", "-o", program], check=True)
    return program


def run(program: Path, rounds: int, scenarios: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs scenarios, or all: a line is printed for each that is right; the code is not 0 where one is wrong."""
    environment = os.environ | {
        "POOL_STRESS_ROUNDS": str(rounds),
        "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0",
    }
    return subprocess.run([program, *scenarios], capture_output=True, text=True, env=environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("scenarios", nargs="*", default=["stopped"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = run(built(Path(folder)), options.rounds, options.scenarios)
    print(done.stdout + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

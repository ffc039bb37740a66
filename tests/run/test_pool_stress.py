"""Runs that another thread stops at any moment, while two programs share the pool; `make soak` goes longer."""

from pathlib import Path

from pool_stress import built, run


def test_the_thread_sanitizer_finds_nothing_in_runs_that_are_stopped(tmp_path: Path) -> None:
    done = run(built(tmp_path), 20, ["stopped"])
    assert (done.returncode, done.stdout) == (0, "stopped: ok\n"), done.stderr

"""Ctrl-C during a language model's work, at some instructions of each kind."""

from pathlib import Path

import pytest

from llm_interrupts import WORK, check_work

POINTS = 13


# An interrupt while a generator is closed because nobody holds it any more is printed and not raised, as by CPython.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", WORK)
def test_interrupts_lose_nothing(name: str, tmp_path: Path):
    check_work(name, tmp_path, POINTS)

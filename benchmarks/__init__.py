"""Measurements: each folder answers one question, and `python -m benchmarks QUESTION` runs it."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Some questions measure models of the tests.
sys.path += [str(ROOT / "tests" / name) for name in ("kit", "zoo")]

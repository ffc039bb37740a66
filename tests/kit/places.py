"""Paths of the repository, for tests in any folder."""

from pathlib import Path

KIT = Path(__file__).parent
ROOT = KIT.parents[1]

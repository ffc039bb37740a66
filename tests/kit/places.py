"""Where things are, whichever folder a test lies in."""

from pathlib import Path

KIT = Path(__file__).parent
ROOT = KIT.parents[1]

"""All targets by name."""

from fuzz.files import FILES
from fuzz.target import Target
from fuzz.texts import TEXTS

TARGETS: dict[str, Target] = FILES | TEXTS

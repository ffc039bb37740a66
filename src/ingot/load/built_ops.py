"""What rules make: for each foreign op, the plain ops that its rule made while its own tests ran.

An importer notes it where it calls a rule; `<importer>/built_ops.txt` keeps it, so that `ingot ops` loads no model. Ops
count even where the importer computes them at once, as ONNX's does with known integers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.resources import files

Made = dict[str, set[str]]  # foreign name -> ops; an empty set for a rule that passes its operand on

_recorded: ContextVar[Made | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Iterator[Made]:
    """Gives a table that fills while models are loaded in this context."""
    made: Made = {}
    token = _recorded.set(made)
    try:
        yield made
    finally:
        _recorded.reset(token)


def note(foreign: str, ops: Collection[str]) -> None:
    """Says what a rule has made of one call of a foreign op."""
    made = _recorded.get()
    if made is not None:
        made.setdefault(foreign, set()).update(ops)


def read_table(importer: str) -> Made:
    """The table of an importer, `aten` or `onnx`."""
    lines = (files("ingot") / "load" / importer / "built_ops.txt").read_text(encoding="utf-8").splitlines()
    parts = (line.rpartition(":") for line in lines)  # an ONNX domain ends with "::"
    return {foreign: set(ops.split()) for foreign, _, ops in parts}


def format_table(made: Mapping[str, Collection[str]]) -> str:
    """The text of a table: a line `foreign: op op` for each foreign op, in order of names."""
    return "".join(f"{foreign}: {' '.join(sorted(ops))}".rstrip() + "\n" for foreign, ops in sorted(made.items()))

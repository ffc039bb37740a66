"""Record, for each foreign op, the plain ops that its rule builds while the rule's own tests run.

An importer calls `note` where it calls a rule. `<importer>/built_ops.txt` stores the result, so that `ingot ops` loads
no model. Ops also count where the importer evaluates them at load time, as the ONNX importer does with known integers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.resources import files

BuiltOps = dict[str, set[str]]  # foreign name -> ops; an empty set for a rule that returns its operand

_recorded: ContextVar[BuiltOps | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Iterator[BuiltOps]:
    """Yield a table that is filled while models are loaded in this context."""
    built: BuiltOps = {}
    token = _recorded.set(built)
    try:
        yield built
    finally:
        _recorded.reset(token)


def note(foreign: str, ops: Collection[str]) -> None:
    """Record the ops that a rule has built for one call of a foreign op."""
    built = _recorded.get()
    if built is not None:
        built.setdefault(foreign, set()).update(ops)


def read_table(importer: str) -> BuiltOps:
    """Read the table of an importer, `aten` or `onnx`."""
    lines = (files("ingot") / "load" / importer / "built_ops.txt").read_text(encoding="utf-8").splitlines()
    parts = (line.rpartition(":") for line in lines)  # an ONNX domain ends with "::"
    return {foreign: set(ops.split()) for foreign, _, ops in parts}


def format_table(built: Mapping[str, Collection[str]]) -> str:
    """Format a table as text: one line `foreign: op op` for each foreign op, sorted by name."""
    return "".join(f"{foreign}: {' '.join(sorted(ops))}".rstrip() + "\n" for foreign, ops in sorted(built.items()))

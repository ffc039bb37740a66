"""Emit <prefix>_check.h: a check of the weights, and checks during a run if <PREFIX>_CHECK is defined.

A checked run verifies by a hash that a step writes only its results in the arena. Memory that no later step needs is
set to NaN, as is the whole arena before a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ingot.emit.interface import Entry, Interface
from ingot.emit.kernels import whole_source
from ingot.emit.project import filled

Span = tuple[int, int]  # the first byte, and one past the last


def check_header(face: Interface, hash: int) -> str:
    """Return the file. hash: of the bytes of weights.bin."""
    return filled(
        "check.h",
        name=face.prefix,
        hash=hash,
        # A freestanding program may have no string.h.
        hash_source=whole_source("runtime/hash.c").replace("memcpy(", "__builtin_memcpy(").rstrip(),
        entries=[_tables(entry) for entry in face.entries if entry.planned.live],
    )


def check_hooks(face: Interface) -> str:
    """Return the definition of CHECKED in <prefix>.c."""
    return f"""\
#if defined({face.macro}_CHECK)
#include "{face.prefix}_check.h"
#else
#define CHECKED(entry, step)
#endif
"""


def _tables(entry: Entry) -> dict[str, Any]:
    """Return the spans of an entry's steps, with an empty row before the first and after the last."""
    spans: list[Span] = [(0, 0)]
    rows = [(0, 0, 0, 0)]
    for index in range(len(entry.planned.steps)):
        written, dead = _joined(_spans(entry, _written(entry, index))), _dead(entry, index)
        rows.append((len(spans), len(written), len(spans) + len(written), len(dead)))
        spans += [*written, *dead]
    rows.append((0, 0, 0, 0))
    return {"name": entry.name, "spans": _braced(spans), "rows": _braced(rows)}


def _braced(rows: Iterable[tuple[int, ...]]) -> list[str]:
    return ["{" + ", ".join(map(str, row)) + "}" for row in rows]


def _dead(entry: Entry, index: int) -> list[Span]:
    """Return the spans that no step after this one needs."""
    live = entry.planned.live
    dead = _joined(_spans(entry, (id for id, (_, death) in live.items() if death == index)))
    needed = _joined(_spans(entry, (id for id, (birth, death) in live.items() if birth <= index < death)))
    return _without(dead, needed)


def _written(entry: Entry, index: int) -> set[str]:
    """Return the tensors of the arena that a step writes: its results and its scratch."""
    step, tensors = entry.planned.steps[index], entry.lowered.tensors
    scratch = {p.tensor for p in step.pointers if p.tensor in tensors and tensors[p.tensor].kind == "scratch"}
    return {view.tensor for view in step.writes} | scratch


def _spans(entry: Entry, ids: Iterable[str]) -> list[Span]:
    """Return the spans of tensors in the arena."""
    found = []
    for id in ids:
        if id in entry.planned.live:
            offset = entry.planned.addresses[id].offset
            found.append((offset, offset + entry.lowered.tensors[id].nbytes))
    return found


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans, in order."""
    joined: list[Span] = []
    for first, end in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((first, end))
    return joined


def _without(spans: list[Span], others: list[Span]) -> list[Span]:
    """Return the difference of spans; both are in order."""
    for low, high in others:
        spans = [
            part
            for first, end in spans
            for part in ((first, min(end, low)), (max(first, high), end))
            if part[0] < part[1]
        ]
    return spans

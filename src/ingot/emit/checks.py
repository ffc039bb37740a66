"""<prefix>_check.h: whether weights are a model's, and what a run checks of itself where <PREFIX>_CHECK is defined.

There a step writes what it makes and nothing else of the arena: the rest keeps its bytes, to the hash. What no later
step needs becomes NaN, as is all of the arena before a run.
"""

from __future__ import annotations

from collections.abc import Iterable

from ingot.emit.interface import Entry, Interface
from ingot.emit.kernels import whole_source

Span = tuple[int, int]  # the first byte, and one past the last


def check_header(face: Interface, hash: int) -> str:
    """The file. hash: of the bytes of weights.bin."""
    prefix, macro = face.prefix, face.macro
    return f"""\
/* {prefix}_check.h: emitted by Ingot: whether weights are the model's, and what a checked run watches. */
#ifndef {macro}_CHECK_H
#define {macro}_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "{prefix}.h"

{whole_source("hash.c")}
/* Whether these are the bytes of weights.bin. What a run makes of others is undefined. */
static inline int {prefix}_weights_fit(const void *weights, size_t nbytes) {{
  return nbytes == {macro}_WEIGHTS_BYTES && ingot_hash(weights, (int64_t)nbytes) == UINT64_C(0x{hash:016x});
}}

/* Some bytes of the arena. */
typedef struct {{ int64_t first, end; }} check_span;

/* A hash of all bytes of the arena but some, which are in order. */
static inline uint64_t check_others(const char *arena, int64_t nbytes, const check_span *some, size_t count) {{
  uint64_t others = 0;
  int64_t done = 0;
  for (size_t i = 0; i <= count; i++) {{
    const int64_t end = i < count ? some[i].first : nbytes;
    others = 31 * others + ingot_hash(arena + done, end - done);
    if (i < count) done = some[i].end;
  }}
  return others;
}}

/* Makes NaN, or -1, of what no other step needs. */
static inline void check_bury(char *arena, const check_span *dead, size_t count) {{
  for (size_t i = 0; i < count; i++) memset(arena + dead[i].first, 0xff, (size_t)(dead[i].end - dead[i].first));
}}

#endif
"""


def check_hooks(face: Interface) -> str:
    """What stands around the calls of kernels in <prefix>.c."""
    return f"""\
/* Before a step: the bytes of the arena that it may write; after it, those that no other needs. */
#if defined({face.macro}_CHECK)
#include "{face.prefix}_check.h"
#define CHECK_OTHERS() \\
  check_others(arena, (int64_t)sizeof call->state->arena, written, sizeof written / sizeof *written)
#define WRITES(...) \\
  const check_span written[] = {{__VA_ARGS__}}; \\
  const uint64_t others = CHECK_OTHERS();
#define WROTE(step, ...) \\
  const check_span dead[] = {{__VA_ARGS__}}; \\
  if (call->strayed == 0 && CHECK_OTHERS() != others) call->strayed = -1 - (step); \\
  check_bury(arena, dead, sizeof dead / sizeof *dead);
#else
#define WRITES(...)
#define WROTE(step, ...)
#endif
"""


def before_step(entry: Entry, index: int) -> str:
    """What a step may write."""
    return f"    WRITES({_rows(_joined(_places(entry, _written(entry, index))))})\n"


def after_step(entry: Entry, index: int) -> str:
    """What is dead after it."""
    live = entry.planned.live
    dead = _joined(_places(entry, (id for id, (_, death) in live.items() if death == index)))
    needed = _joined(_places(entry, (id for id, (birth, death) in live.items() if birth <= index < death)))
    return f"    WROTE({index}, {_rows(_without(dead, needed))})\n"


def _rows(spans: list[Span]) -> str:
    return ", ".join(f"{{{first}, {end}}}" for first, end in spans) or "{0, 0}"


def _written(entry: Entry, index: int) -> set[str]:
    """The tensors of the arena that a step writes: its results, and what it works in."""
    step, tensors = entry.planned.steps[index], entry.lowered.tensors
    scratch = {p.tensor for p in step.pointers if p.tensor in tensors and tensors[p.tensor].kind == "scratch"}
    return {view.tensor for view in step.writes} | scratch


def _places(entry: Entry, ids: Iterable[str]) -> list[Span]:
    """Where tensors lie, of those that the arena has."""
    found = []
    for id in ids:
        if id in entry.planned.live:
            offset = entry.planned.addresses[id].offset
            found.append((offset, offset + entry.lowered.tensors[id].nbytes))
    return found


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same bytes in order, each once."""
    joined: list[Span] = []
    for first, end in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((first, end))
    return joined


def _without(spans: list[Span], others: list[Span]) -> list[Span]:
    """The bytes of some spans that others do not have; both are in order."""
    for low, high in others:
        spans = [
            part
            for first, end in spans
            for part in ((first, min(end, low)), (max(first, high), end))
            if part[0] < part[1]
        ]
    return spans

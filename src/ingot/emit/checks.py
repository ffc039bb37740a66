"""Emit <prefix>_check.h: a check of the weights, and checks during a run if <PREFIX>_CHECK is defined.

A checked run verifies by a hash that a step writes only its results in the arena. Memory that no later step needs is
set to NaN, as is the whole arena before a run.
"""

from __future__ import annotations

from collections.abc import Iterable

from ingot.emit.interface import Entry, Interface, wrapped
from ingot.emit.kernels import whole_source

Span = tuple[int, int]  # the first byte, and one past the last


def check_header(face: Interface, hash: int) -> str:
    """Return the file. hash: of the bytes of weights.bin."""
    prefix, macro = face.prefix, face.macro
    return f"""\
/* {prefix}_check.h: emitted by Ingot: a check of the weights, and checks during a run. */
#ifndef {macro}_CHECK_H
#define {macro}_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "{prefix}.h"

#ifndef INGOT_HASH
#define INGOT_HASH
{_hash()}#endif

/* Whether these are the bytes of weights.bin. The results of a run with other bytes are undefined. */
static inline int {prefix}_weights_fit(const void *weights, size_t nbytes) {{
  return nbytes == {macro}_WEIGHTS_BYTES && ingot_hash(weights, (int64_t)nbytes) == UINT64_C(0x{hash:016x});
}}

#if defined({macro}_CHECK)
/* Some bytes of the arena. */
typedef struct {{ int64_t first, end; }} check_span;

/* The spans that a step may write, and those that no later step needs: consecutive rows of a table, in order. */
typedef struct {{ int64_t written, written_count, dead, dead_count; }} check_row;

/* A hash of all bytes of the arena except some spans, which are in order. */
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

/* After a step, or before the first, -1: checks that it wrote only its own spans, and computes the hash for the next
 * step. Dead spans are set to NaN, or -1, as is the whole arena before a run. */
static inline void check_step(char *arena, int64_t nbytes, const check_span *spans, const check_row *rows, int step,
                              uint64_t *others, int32_t *strayed) {{
  const check_row *row = rows + 1 + step;
  if (step < 0) memset(arena, 0xff, (size_t)nbytes);
  else if (check_others(arena, nbytes, spans + row->written, (size_t)row->written_count) != *others && *strayed == 0)
    *strayed = -1 - step;
  for (const check_span *dead = spans + row->dead; dead < spans + row->dead + row->dead_count; dead++)
    memset(arena + dead->first, 0xff, (size_t)(dead->end - dead->first));
  *others = check_others(arena, nbytes, spans + row[1].written, (size_t)row[1].written_count);
}}
#define CHECKED(entry, step) \\
  check_step(call->state->arena, (int64_t)sizeof call->state->arena, check_##entry##_spans, check_##entry##_rows, \\
             (int)(step), &call->others, &call->strayed);
{"".join(_tables(entry) for entry in face.entries if entry.planned.live)}#endif

#endif
"""


def _hash() -> str:
    """Return hash.c without string.h, which a freestanding program may not have."""
    return whole_source("runtime/hash.c").replace("memcpy(", "__builtin_memcpy(")


def check_hooks(face: Interface) -> str:
    """Return the definition of CHECKED in <prefix>.c."""
    return f"""\
#if defined({face.macro}_CHECK)
#include "{face.prefix}_check.h"
#else
#define CHECKED(entry, step)
#endif
"""


def _tables(entry: Entry) -> str:
    """Return the spans of an entry's steps, with an empty row before the first and after the last."""
    spans: list[Span] = [(0, 0)]
    rows = [(0, 0, 0, 0)]
    for index in range(len(entry.planned.steps)):
        written, dead = _joined(_spans(entry, _written(entry, index))), _dead(entry, index)
        rows.append((len(spans), len(written), len(spans) + len(written), len(dead)))
        spans += [*written, *dead]
    rows.append((0, 0, 0, 0))
    return f"""
static const check_span check_{entry.name}_spans[] = {{
{_braced(spans)}
}};
static const check_row check_{entry.name}_rows[] = {{
{_braced(rows)}
}};
"""


def _braced(rows: Iterable[tuple[int, ...]]) -> str:
    return wrapped(("{" + ", ".join(map(str, row)) + "}" for row in rows), ", ", "  ")


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

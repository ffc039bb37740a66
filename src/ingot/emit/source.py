"""Emit model.c: the kernels that a model uses, its steps, and the entry points."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ingot.emit.checks import check_hooks
from ingot.emit.dispatch import by_best, inclusions
from ingot.emit.interface import BAD_INDEX, BAD_SIZE, LINE_BYTES, STOPPED, Entry, Interface, comment, run_sizes, wrapped
from ingot.emit.kernels import kernel_source
from ingot.emit.platform import Platform
from ingot.emit.sizes import c_text, functions
from ingot.emit.steps import chosen, steps_text
from ingot.errors import InputError
from ingot.ir.dim import dim_of
from ingot.ir.dtype import f32


def source(face: Interface, platform: Platform) -> str:
    """Return the file, in reading order: argument structs, kernels, steps, entry points.

    Raises InputError for a prefix whose names collide with the kernels.
    """
    fault = {"ingot_fault"} if face.can_fail else set()
    steps = [step for entry in face.entries for step in entry.lowered.steps]
    constants = {name for s in steps for name in chosen(s)}
    companion = face.companion
    kernels, types = {s.kernel for s in steps}, {s.args_type for s in steps}
    quoted = kernel_source(
        {*kernels, *companion.kernels}, {*types, *fault, *companion.types}, constants, small=platform.freestanding
    )
    has_longs = face.can_fail or any(t.dtype is not f32 for e in face.entries for t in e.lowered.tensors.values())
    body, points = steps_text(face), _entry_points(face, quoted.features)
    counted = functions(body + points)
    for name in face.external:
        if re.search(rf"\b{name}\b", quoted.types + quoted.kernels):
            raise InputError(f"option prefix: the kernels define {name}, got {face.prefix!r}, expected another")
    pool, pool_source = (f"{face.prefix}_pool.{ending}" for ending in "hc") if face.threads > 1 else ("", "")
    included = f'#include "{pool}"\n\n' if pool else "\n"
    included += "#include <stdatomic.h>\n" if _ends(face) else ""
    hooks = f"\n{check_hooks(face)}" if face.arena_bytes else ""
    return f"""\
/* {face.prefix}.c: emitted by Ingot. `cc -O2 -c {face.prefix}.c` builds it.
 * It needs {platform.needs}{pool_source and f" and {pool_source}"}, and allocates nothing.
 *
 * In reading order: argument structs, kernels, the model's steps, the entry point. Kernels and steps are compiled once
 * per instruction set: at its end this file includes itself, each time with another ISA defined. The results are the
 * same bits on every instruction set, so multiplications and additions must not be contracted. */
#ifndef ISA

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic ignored "-Wpass-failed" /* a loop that is not unrolled */
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "{face.prefix}.h"
{included}{platform.opening(face.macro)}
/* Argument structs of the kernels; sizes and strides are in elements. All before #else is the same in every set. */

{platform.code(quoted.types, has_longs)}
{_memory(face)}{hooks}{counted and f"{chr(10)}{counted}"}
#else

/* Kernels. If ISA is avx2, K(relu_f32) is relu_f32_avx2; the same holds for every name in this list. */

{platform.code(quoted.kernels, has_longs)}
{body}{"".join(map(_alone, companion.kernels))}
#endif

#ifndef ISA

{inclusions(face.prefix, quoted.features)}
{points}{"".join(_called_alone(name, quoted.features) for name in companion.kernels)}
{companion.functions}#endif
"""


def _memory(face: Interface) -> str:
    """Return the struct in the caller's memory, and the argument of a run's steps."""
    regions = {"arena": face.arena_bytes, "kept": face.kept_bytes}
    rows = "".join(f"  _Alignas({LINE_BYTES}) char {name}[{size}];\n" for name, size in regions.items() if size)
    about = " arena: the working memory of a run." if face.arena_bytes else ""
    about += " kept: state that lives from run to run." if face.kept_bytes else ""
    entry = "  int entry;\n" if len(face.entries) > 1 else ""
    fault = "  ingot_fault fault;\n" if face.can_fail else ""
    stop = "  const volatile int *stop;\n" if face.can_stop else ""
    ended = "  _Atomic int64_t ended; /* the step before which thread 0 ended the run */\n" if _ends(face) else ""
    return f"""\
{comment(f"The memory that a caller provides.{about}", "")}
struct {face.prefix}_state {{
  _Alignas({LINE_BYTES}) const char *weights;
  int32_t threads;
{stop}{rows}}};

/* A run. */
typedef struct {{
{entry}  struct {face.prefix}_state *state;
  const void *inputs, *outputs;
  uint64_t others; /* in a checked run, a hash of memory that the next step must not write */
  int32_t strayed; /* and the step that did write there: -1 - its number */
{fault}{ended}}} run_call;
{_end(face) if ended else ""}"""


def _ends(face: Interface) -> bool:
    """Return whether threads must agree that a run ends early."""
    return face.can_stop and face.threads > 1


def _end(face: Interface) -> str:
    return f"""
/* Waits for all threads of a run; returns whether the run ends here. Only thread 0 reads `stop`, before the barrier,
 * after which all threads see its decision. Thread 0 may be ahead: a decision at a later step ends no earlier one. */
static inline int ends_at(run_call *call, pool_member *member, int64_t step) {{
  if (member->thread == 0 && *call->state->stop) atomic_store_explicit(&call->ended, step, memory_order_relaxed);
  {face.prefix}_pool_barrier(member);
  return atomic_load_explicit(&call->ended, memory_order_relaxed) <= step;
}}
"""


def _alone(kernel: str) -> str:
    """Return a kernel that no step calls, for a caller outside of the sets."""
    return f"""
static __attribute__((noinline)) void K(alone_{kernel})(const void *s) {{ K({kernel})(s, 0, 1); }}
"""


def _entry_points(face: Interface, sets: Mapping[str, tuple[str, ...]]) -> str:
    """Return the functions that a caller calls."""
    prefix, macro = face.prefix, face.macro
    threads, declared, called = "(void)threads;", "void (*body)(run_call *call)", "body(call);"
    if face.threads > 1:
        threads = f"state->threads = threads < 1 ? 1 : threads < {macro}_THREADS ? threads : {macro}_THREADS;"
        declared, called = "pool_body body", f"{prefix}_pool_run(body, call, most);"
    kept = "  memset(state->kept, 0, sizeof state->kept);\n" if face.kept_bytes else ""
    kept += _begun(face) if face.beginnings else ""
    watched = "  state->stop = &never;\n" if face.can_stop else ""
    alone = ""
    if face.threads > 1 and face.arena_bytes:
        alone = f"#if defined({macro}_CHECK)\n  most = 1;\n#endif\n"
    entries = "".join(f"\n{_entry_point(face, number, entry)}" for number, entry in enumerate(face.entries))
    stopped = f"*call->state->stop ? {STOPPED} : " if face.can_stop else ""
    return f"""\
size_t {prefix}_weights_bytes(void) {{ return {macro}_WEIGHTS_BYTES; }}
size_t {prefix}_state_bytes(void) {{ return sizeof({prefix}_state); }}
{_watched(face) if face.can_stop else ""}
{prefix}_state *{prefix}_init(void *memory, const void *weights, int threads) {{
  {prefix}_state *const state = memory;
  state->weights = weights;
  {threads}
{watched}{kept}  return state;
}}

/* Runs the steps of the best instruction set that this CPU has. */
static int run(run_call *call{", int32_t most" if face.threads > 1 else ""}) {{
{by_best(declared, "steps", sets, f"{alone}  {called}")}\
  return {f"call->fault.code ? {BAD_INDEX} : " if face.can_fail else ""}{stopped}call->strayed;
}}
{entries}"""


def _begun(face: Interface) -> str:
    """Return statements that copy the initial values of states from the weights."""
    rows = (f"{{{each.kept}, {each.stored}, {each.data.nbytes}}}" for each in face.beginnings)
    return f"""\
  static const struct {{ size_t to, from, bytes; }} begun[] = {{
{wrapped(rows, ", ", "    ")}
  }};
  for (size_t i = 0; i < sizeof begun / sizeof *begun; i++)
    memcpy(state->kept + begun[i].to, state->weights + begun[i].from, begun[i].bytes);
"""


def _watched(face: Interface) -> str:
    return f"""
static const volatile int never;

void {face.prefix}_watch({face.prefix}_state *state, const volatile int *stop) {{ state->stop = stop ? stop : &never; }}
"""


def _called_alone(kernel: str, sets: Mapping[str, tuple[str, ...]]) -> str:
    """Return a function that calls a kernel that no step calls."""
    name = f"alone_{kernel}"
    return f"""
static void {name}(const void *s) {{
{by_best("void (*body)(const void *s)", name, sets, "  body(s);")}}}
"""


def _entry_point(face: Interface, number: int, entry: Entry) -> str:
    fields = ["state", "inputs", "outputs"]
    call = ", ".join(f".{name} = {name}" for name in fields)
    if len(face.entries) > 1:
        call = f".entry = {number}, {call}"
    if _ends(face):
        call += ", .ended = INT64_MAX"
    most = ""
    if face.threads > 1:
        most = ", state->threads"
        if entry.threads < face.threads:
            most = f", state->threads < {entry.threads} ? state->threads : {entry.threads}"
    return f"""\
{face.signature(entry)} {{
{_measured(entry)}  run_call call = {{{call}}};
  return run(&call{most});
}}
"""


def _measured(entry: Entry) -> str:
    """Return statements that check the range of sizes, and set the dims of the outputs."""
    symbols = run_sizes(entry)
    text = "".join(
        f"  if ({symbols[size.symbol]} < {size.least} || {symbols[size.symbol]} > {size.most}) return {BAD_SIZE};\n"
        for size in entry.sizes
    )
    for port in entry.outputs:
        for axis, dim in enumerate(port.tensor.shape if port.dims else ()):
            text += f"  outputs->{port.dims}[{axis}] = {c_text(dim_of(dim), symbols)};\n"
    return text

"""model.c: the kernels that a model uses, its steps, and the entry point."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ingot import abi
from ingot.dim import AtMost, dim_of, divides
from ingot.emit.checks import check_hooks
from ingot.emit.interface import BAD_SIZE, C_TYPES, LINE_BYTES, Entry, Interface, declared, dims, wrapped
from ingot.emit.kernels import FEATURES, kernel_source
from ingot.emit.platform import Platform
from ingot.emit.sizes import Sizes, c_text, functions
from ingot.errors import InputError
from ingot.lower.lowered import FAULT, Field, Lowered, Pointer, Step, Tensor
from ingot.lower.view import View
from ingot.plan import Plan

# Fields whose numbers have names in abi.h.
_NAMED = {
    "activation": "INGOT_ACT_", "mask_kind": "INGOT_MASK_", "code": "INGOT_STRIP_OP_", "merge": "INGOT_MERGE_",
    "from": "INGOT_DTYPE_", "to": "INGOT_DTYPE_", "rounding": "INGOT_ROUND_",
}  # fmt: skip


def source(face: Interface, platform: Platform) -> str:
    """The file, in reading order: argument structs, kernels, steps, entry points.

    Raises InputError for a prefix whose names the kernels have.
    """
    fault = {"ingot_fault"} if face.can_fail else set()
    steps = [step for entry in face.entries for step in entry.lowered.steps]
    constants = {name for s in steps for name in chosen(s)}
    quoted = kernel_source({s.kernel for s in steps}, {s.args_type for s in steps} | fault, constants)
    for name in face.external:
        if re.search(rf"\b{name}\b", quoted.types + quoted.kernels):
            raise InputError(f"option prefix: the model's own C has {name}, got {face.prefix!r}, expected another")
    pool = f'#include "{face.prefix}_pool.h"\n' if face.threads > 1 else ""
    run, entry_points = _steps(face), _entry_points(face, quoted.features)
    counted = functions(run + entry_points)
    hooks = f"\n{check_hooks(face)}" if face.arena_bytes else ""
    return f"""\
/* {face.prefix}.c: emitted by Ingot. `cc -O2 -c {face.prefix}.c` builds it.
 * It needs {platform.needs}, and allocates nothing.
 *
 * In reading order: argument structs, kernels, the model's steps, the entry point. Kernels and steps are compiled once
 * per instruction set: at its end this file includes itself, each time with another ISA defined. The results are the
 * same bits on every instruction set, so multiplications and additions must not be contracted. */
#ifndef ISA

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "{face.prefix}.h"
{pool}
{platform.opening(face.macro)}
/* Argument structs of the kernels; sizes and strides are in elements. What is above #else is the same on every set. */

{quoted.types}
{_memory(face)}{hooks}{counted and f"{chr(10)}{counted}"}
#else

/* Kernels. Where ISA is avx2, K(relu_f32) is relu_f32_avx2; so is every name in this list. */

{platform.code(quoted.kernels)}
{run}
#endif

#ifndef ISA

{inclusions(face.prefix, quoted.features)}
{entry_points}
#endif
"""


def _memory(face: Interface) -> str:
    """The struct that a caller gives memory for, and what the steps of a run are given."""
    regions = {"arena": face.arena_bytes, "kept": face.kept_bytes}
    rows = "".join(f"  _Alignas({LINE_BYTES}) char {name}[{size}];\n" for name, size in regions.items() if size)
    about = " arena: what a run works in, whatever it holds." if face.arena_bytes else ""
    about += " kept: what it leaves to the next one." if face.kept_bytes else ""
    entry = "  int entry;\n" if len(face.entries) > 1 else ""
    fault = "  ingot_fault fault;\n" if face.can_fail else ""
    return f"""\
/* The memory that a caller gives.{about} */
struct {face.prefix}_state {{
  _Alignas({LINE_BYTES}) const char *weights;
  int32_t threads;
{rows}}};

/* A run. */
typedef struct {{
{entry}  struct {face.prefix}_state *state;
  const void *inputs, *outputs;
  uint64_t others; /* in a checked run, a hash of what the next step may not write */
  int32_t strayed; /* and the step that did: -1 - its number */
{fault}}} run_call;
"""


def chosen(step: Step) -> Iterator[str]:
    """The constants that choose what a kernel does: the ops of a strip program, the activation of an epilogue."""
    for field, prefix in _NAMED.items():
        value = step.fields.get(field, ())
        numbers = value if isinstance(value, tuple) else (value,)
        yield from (abi.constant_names(prefix)[number] for number in numbers if isinstance(number, int))


def _used(lowered: Lowered) -> list[Tensor]:
    """The tensors that some step points to, in the order of their numbers."""
    ids = {pointer.tensor for step in lowered.steps for pointer in step.pointers}
    return [tensor for id, tensor in lowered.tensors.items() if id in ids]


def _steps(face: Interface) -> str:
    """The steps of each entry, and what chooses between them."""
    about = "A kernel computes part 0 of 1: all of it, or of a turn."
    if face.threads > 1:
        about = "Each thread computes its part of a step, thread 0 alone what is not worth more of them."
    text = comment(
        f"The model's steps. {about} noinline keeps the arithmetic between the changes of floating-point mode around"
        " the call.",
        "",
    )
    if len(face.entries) == 1:
        return f"{text}\n{_entry_steps(face, face.entries[0], 'steps')}"
    bodies = "\n".join(_entry_steps(face, entry, f"{entry.name}_steps") for entry in face.entries)
    calls, given = (_OPENED, "call, member") if face.threads > 1 else ("", "call")
    for number, entry in enumerate(face.entries):
        calls += f"  if (call->entry == {number}) K({entry.name}_steps)({given});\n"
    return f"{text}\n{bodies}\nstatic {_function(face, 'steps')} {{\n{calls}}}\n"


_OPENED = "  run_call *const call = given;\n"


def _function(face: Interface, name: str) -> str:
    """How steps are declared: those of several threads are what a region of the pool runs."""
    parameters = "void *given, pool_member *member" if face.threads > 1 else "run_call *call"
    return f"__attribute__((noinline)) void K({name})({parameters})"


def _entry_steps(face: Interface, entry: Entry, name: str) -> str:
    lowered, planned = entry.lowered, entry.planned
    used, sizes = _used(lowered), Sizes(lowered)
    weights = [t for t in used if t.kind == "weight"]
    arena = [t for t in used if t.kind in ("activation", "scratch")]
    kept = [t for t in used if t.kind in ("state", "update")]
    blocks = [
        _opening(face, entry, bool(used) or entry.can_fail),
        _ports(face, entry, used, len(sizes) > 0),
        _commented(sizes.declared(_said(entry))),
        _pointers("Weights.", "weights", weights, planned),
        _pointers("The arena: tensors that are not needed at the same time share it.", "arena", arena, planned)
        + (f"  CHECKED({entry.name}, -1)\n" if planned.live else ""),
        _pointers("What a run leaves to the next one.", "kept", kept, planned),
        *(_step(face, entry, index, step, sizes) for index, step in enumerate(planned.steps)),
    ]
    body = "\n".join(filter(None, blocks))
    return f"static {_function(face, name)} {{\n{body}}}\n"


def _opening(face: Interface, entry: Entry, has_call: bool) -> str:
    """What steps are given, as they name it. has_call: whether they use the call."""
    if face.threads == 1:
        return "" if has_call else "  (void)call;\n"
    text = _OPENED if has_call else "  (void)given;\n"
    place = ["thread = member->thread"] if entry.planned.steps else []
    place += ["threads = member->threads"] if entry.threads > 1 else []
    return text + (f"  const int32_t {', '.join(place)};\n" if place else "  (void)member;\n")


def _ports(face: Interface, entry: Entry, used: list[Tensor], has_sizes: bool) -> str:
    """The inputs and outputs, by the names that the steps have for them. has_sizes: whether inputs say any."""
    rows = []
    for title, struct, ports in (
        ("inputs", face.inputs(entry), entry.inputs),
        ("outputs", face.outputs(entry), entry.outputs),
    ):
        named = [port for port in ports if port.tensor in used]
        if named or (has_sizes and title == "inputs"):
            rows.append((f"  const {struct} *const {title} = call->{title};", ""))
        for port in named:
            pointer = declared(port.tensor, port.tensor.id).replace("*", "*const ")
            rows.append((f"  {pointer} = {title}->{port.identifier};", dims(port.tensor)))
    return _commented(rows)


def _pointers(title: str, home: str, tensors: list[Tensor], planned: Plan) -> str:
    """Tensors of a region that has a place in the state: home, whose name it gets here."""
    if not tensors:
        return ""
    const = "const " if home == "weights" else ""
    rows = []
    for tensor in tensors:
        offset = planned.addresses[tensor.id].offset
        about = dims(tensor)
        if tensor.recipe is not None and tensor.recipe.layout != "raw":
            about += f", {'rows' if tensor.recipe.transposed else 'columns'} in panels of {tensor.recipe.panels.panel}"
            about += " of both halves" if tensor.recipe.layout == "gate_panels" else ""
        if tensor.id in planned.live:
            birth, death = planned.live[tensor.id]
            about += f", step {birth}" if birth == death else f", steps {birth} to {death}"
        pointer = declared(tensor, tensor.id).replace("*", "*const ")
        rows.append((f"  {pointer} = ({const}void *)({home} + {offset});", about))
    return f"  /* {title} */\n  {const}char *const {home} = call->state->{home};\n{_commented(rows)}"


def _commented(rows: list[tuple[str, str]]) -> str:
    """Lines of code with comments behind them, one below the other."""
    width = max((len(code) for code, about in rows if about), default=0)
    return "".join(f"{code:{width}} /* {about} */\n" if about else f"{code}\n" for code, about in rows)


def _said(entry: Entry) -> dict[str, str]:
    """The C of each symbol that a run says."""
    return {size.symbol: f"inputs->{size.identifier}" for size in entry.sizes}


def _step(face: Interface, entry: Entry, index: int, step: Step, sizes: Sizes) -> str:
    operands = ", ".join(map(operand, step.reads))
    results = ", ".join(map(operand, step.writes))
    given = {name: value for name, value in step.fields.items() if not is_zero(value)}
    named = (
        f".{field.name} = {_field(entry.lowered, field, given[field.name], sizes)}"
        for field in abi.structs()[step.args_type]
        if field.name in given
    )
    fields = [word for field in named for word in field.split(", ")]
    checked = f" CHECKED({entry.name}, {index})" if entry.planned.live else ""
    barrier = f"  {face.prefix}_pool_barrier(member);\n" if face.threads > 1 and entry.planned.barriers[index] else ""
    return f"""\
{comment(f"{index}: {results} from {operands}", "  ")}
{barrier}  {_guard(face, entry, step)}{{
    const {step.args_type} s = {{
{wrapped(fields, ", ", " " * 8)}
    }};
{_calls(face, entry, step)}
  }}{checked}
"""


def _guard(face: Interface, entry: Entry, step: Step) -> str:
    """The threads that have a part of a step; those that none of its turns waits for."""
    if face.threads == 1 or (step.parts > 1 and (step.turns > 1 or step.parts == entry.threads)):
        return ""
    return f"if (thread < {step.parts}) " if step.parts > 1 else "if (thread == 0) "


def _calls(face: Interface, entry: Entry, step: Step) -> str:
    """The calls of a step's kernel. A run with fewer threads than were planned for cuts it into fewer parts."""
    kernel = f"K({step.kernel})"
    turns = f"    for (int32_t turn = 0; turn < {step.turns}; turn++) "
    if step.parts == 1:
        return f"    {kernel}(&s, 0, 1);" if step.turns == 1 else f"{turns}{kernel}(&s, turn, 1);"
    parts = "threads" if step.parts == entry.threads else f"threads < {step.parts} ? threads : {step.parts}"
    if step.turns == 1:
        return f"    {kernel}(&s, thread, {parts});"
    return f"""\
    const int32_t parts = {parts};
{turns}{{
      if (turn > 0) {face.prefix}_pool_barrier(member);
      if (thread < parts) {kernel}(&s, turn * parts + thread, parts);
    }}"""


def operand(view: View) -> str:
    """A view in a comment."""
    return f"{view.tensor}[{', '.join(str(dim_of(dim)) for dim in view.shape)}]"


def comment(text: str, indent: str) -> str:
    """A comment in lines of a readable length."""
    lines = wrapped(text.split(" "), " ", f"{indent} * ")
    return f"{indent}/* {lines[len(indent) + 3 :]} */"


def is_zero(value: Field) -> bool:
    """Whether a field may be left out, which makes it all zero bits."""
    if isinstance(value, float):
        return value == 0 and math.copysign(1, value) > 0
    if isinstance(value, tuple):
        return all(map(is_zero, value))
    return value is None or value == 0


def _field(lowered: Lowered, field: abi.Field, value: Field, sizes: Sizes) -> str:
    match value:
        case Pointer():
            return _pointer(lowered, field, value, sizes)
        case tuple():
            return "{" + ", ".join(_field(lowered, field, element, sizes) for element in value) + "}"
        case AtMost():
            return sizes.text(value)
    return field_text(field.name, value)


def field_text(name: str, value: Field) -> str:
    """A number in a field of a struct, as C has it."""
    match value:
        case float():
            return float_text(value)
        case int() if name in _NAMED:
            return abi.constant_names(_NAMED[name])[value]
        case int() if value == -(2**63):
            return "-9223372036854775807 - 1"  # C has no literal of it
    return str(value)


def _pointer(lowered: Lowered, field: abi.Field, pointer: Pointer, sizes: Sizes) -> str:
    if pointer.tensor == FAULT:
        return "&call->fault"
    tensor, offset = lowered.tensors[pointer.tensor], pointer.byte_offset
    size = -(-tensor.dtype.bits // 8)
    assert divides(size, offset), f"{pointer} lies between elements"
    elements = sizes.text(offset, size) if isinstance(offset, AtMost) else offset // size
    place = f"{pointer.tensor} + {elements}" if elements else pointer.tensor
    if field.type in ("void", C_TYPES[tensor.dtype.name]):
        return place
    # A kernel whose elements are pairs, or whatever a format has, takes them under its own name.
    untyped = "const void *" if tensor.kind in ("input", "weight") else "void *"
    return f"({untyped})({place})" if elements else f"({untyped}){place}"


def float_text(value: float) -> str:
    """The shortest decimal that is this float."""
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if np.isnan(rounded):
        return "NAN"
    if np.isinf(rounded):
        return "INFINITY" if rounded > 0 else "-INFINITY"
    return f"{rounded!s}f"


def inclusions(prefix: str, sets: Mapping[str, tuple[str, ...]]) -> str:
    """The inclusions of the file by itself: NEON's on AArch64, plain C elsewhere, sets of features on x86-64 beside."""
    others = "".join(included(prefix, isa, features) for isa, features in sets.items() if features)
    return f"""\
#if defined(__aarch64__)
{included(prefix, "neon", ())}#else
{included(prefix, "scalar", ())}#endif

#if defined(__x86_64__)
{others}#endif
"""


def included(prefix: str, isa: str, features: tuple[str, ...]) -> str:
    """The inclusion of the file by itself for one instruction set, which is also each that its name begins with."""
    defined = [f"ISA_{base}" for base in FEATURES if isa.startswith(base)]
    lines = [
        f"#define ISA {isa}",
        *(f"#define {name} 1" for name in defined),
        f'#include "{prefix}.c"',
        *(f"#undef {name}" for name in ("ISA", *defined)),
    ]
    text = "".join(f"{line}\n" for line in lines)
    if features:
        target = ",".join(features)
        text = f"""\
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("{target}"))), \\
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("{target}")
#endif
{text}#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
"""
    return text


def _entry_points(face: Interface, sets: Mapping[str, tuple[str, ...]]) -> str:
    """What a caller calls."""
    prefix, macro = face.prefix, face.macro
    threads, type, called = "(void)threads;", "void (*steps)(run_call *call)", "steps(call)"
    if face.threads > 1:
        threads = f"state->threads = threads < 1 ? 1 : threads < {macro}_THREADS ? threads : {macro}_THREADS;"
        type, called = "pool_body steps", f"{prefix}_pool_run(steps, call, most)"
    kept = "  memset(state->kept, 0, sizeof state->kept);\n" if face.kept_bytes else ""
    alone = ""
    if face.threads > 1 and face.arena_bytes:
        alone = f"#if defined({macro}_CHECK)\n  most = 1;\n#endif\n"
    entries = "".join(f"\n{_entry_point(face, number, entry)}" for number, entry in enumerate(face.entries))
    others = [isa for isa, features in sets.items() if features]
    tests = "\n  else ".join(f"if ({supported(sets[isa])})\n    steps = steps_{isa};" for isa in reversed(others))
    return f"""\
size_t {prefix}_weights_bytes(void) {{ return {macro}_WEIGHTS_BYTES; }}
size_t {prefix}_state_bytes(void) {{ return sizeof({prefix}_state); }}

{prefix}_state *{prefix}_init(void *memory, const void *weights, int threads) {{
  {prefix}_state *const state = memory;
  state->weights = weights;
  {threads}
{kept}  return state;
}}

/* Runs the steps of the best instruction set that this CPU has. */
static int run(run_call *call{", int32_t most" if face.threads > 1 else ""}) {{
#if defined(__aarch64__)
  {type} = steps_neon;
#else
  {type} = steps_scalar;
#endif
#if defined(__x86_64__)
  /* The host may have set another rounding, or denormals to zero: the bits of a result must not depend on it. */
  const unsigned host_mode = _mm_getcsr();
  _mm_setcsr(_MM_MASK_MASK);
  __builtin_cpu_init();
  {tests}
#endif
{alone}  {called};
#if defined(__x86_64__)
  _mm_setcsr(host_mode);
#endif
  return {"call->fault.code ? call->fault.code : " if face.can_fail else ""}call->strayed;
}}
{entries}"""


def _entry_point(face: Interface, number: int, entry: Entry) -> str:
    fields = ["state", "inputs", "outputs"]
    call = ", ".join(f".{name} = {name}" for name in fields)
    if len(face.entries) > 1:
        call = f".entry = {number}, {call}"
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
    """Refuses sizes that the model was not made for, and tells the dims of the outputs."""
    symbols = _said(entry)
    text = "".join(
        f"  if ({symbols[size.symbol]} < {size.least} || {symbols[size.symbol]} > {size.most}) return {BAD_SIZE};\n"
        for size in entry.sizes
    )
    for port in entry.outputs:
        for axis, dim in enumerate(port.tensor.shape if port.dims else ()):
            text += f"  outputs->{port.dims}[{axis}] = {c_text(dim_of(dim), symbols)};\n"
    return text


def supported(features: Iterable[str]) -> str:
    """The C of whether this CPU has some features. Every CPU with AVX2 has F16C, which clang 14 cannot ask for."""
    tests = [f'__builtin_cpu_supports("{feature}")' for feature in features if feature != "f16c"]
    return wrapped(tests, " && ", " " * 6).lstrip()

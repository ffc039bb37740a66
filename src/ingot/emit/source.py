"""model.c: the kernels that a model uses, its steps, and the entry point."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ingot import abi
from ingot.emit.interface import C_TYPES, Interface, declared, dims, wrapped
from ingot.emit.kernels import FEATURES, kernel_source
from ingot.errors import InputError
from ingot.lower.lowered import FAULT, Field, Lowered, Pointer, Step, Tensor
from ingot.lower.view import View
from ingot.plan import Plan

# Fields whose numbers have names in abi.h.
_NAMED = {
    "activation": "INGOT_ACT_", "mask_kind": "INGOT_MASK_", "code": "INGOT_STRIP_OP_", "merge": "INGOT_MERGE_",
    "from": "INGOT_DTYPE_", "to": "INGOT_DTYPE_", "rounding": "INGOT_ROUND_",
}  # fmt: skip


def source(face: Interface, lowered: Lowered, planned: Plan) -> str:
    """The file, in reading order: argument structs, kernels, steps, entry point.

    Raises InputError for a prefix whose names the kernels have.
    """
    fault = {"ingot_fault"} if face.can_fail else set()
    steps = lowered.steps
    chosen = {name for s in steps for name in _chosen(s)}
    quoted = kernel_source({s.kernel for s in steps}, {s.args_type for s in steps} | fault, chosen)
    if re.search(rf"\b{face.prefix}_run\b", quoted.types + quoted.kernels):
        raise InputError(
            f"option prefix: the model's own C has {face.prefix}_run, got {face.prefix!r}, expected another"
        )
    return f"""\
/* {face.prefix}.c: emitted by Ingot. `cc -O2 -c {face.prefix}.c` builds it; it needs only libc and libm, and allocates
 * nothing.
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

#include <math.h>
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Argument structs of the kernels; sizes and strides are in elements. */

{quoted.types}
#else

/* Kernels. Where ISA is avx2, K(relu_f32) is relu_f32_avx2; so is every name in this list. */

{quoted.kernels}
{_steps(face, lowered, planned)}
#endif

#ifndef ISA

{"".join(_included(face.prefix, isa, features) for isa, features in quoted.features.items())}
{_entry(face, lowered, quoted.features)}
#endif
"""


def _chosen(step: Step) -> Iterator[str]:
    """The constants that choose what a kernel does: the ops of a strip program, the activation of an epilogue."""
    for field, prefix in _NAMED.items():
        value = step.fields.get(field, ())
        numbers = value if isinstance(value, tuple) else (value,)
        yield from (abi.constant_names(prefix)[number] for number in numbers if isinstance(number, int))


def _used(lowered: Lowered) -> list[Tensor]:
    """The tensors that some step points to, in the order of their numbers."""
    ids = {pointer.tensor for step in lowered.steps for pointer in step.pointers}
    return [tensor for id, tensor in lowered.tensors.items() if id in ids]


def _arguments(face: Interface, lowered: Lowered) -> dict[str, str]:
    """What the steps are given: how it is declared there -> what the entry point passes."""
    used = _used(lowered)
    kinds = {tensor.kind for tensor in used}
    ports = [port.tensor for port in face.ports if port.tensor in used]
    arguments = {"const char *weights": "weights"} if "weight" in kinds else {}
    arguments |= {"char *arena": "arena"} if kinds & {"activation", "scratch"} else {}
    arguments |= {declared(tensor, tensor.id): tensor.id for tensor in ports}
    return arguments | ({"ingot_fault *fault": "&fault"} if face.can_fail else {})


def _steps(face: Interface, lowered: Lowered, planned: Plan) -> str:
    used = _used(lowered)
    weights = [t for t in used if t.kind == "weight"]
    arena = [t for t in used if t.kind in ("activation", "scratch")]
    parameters = wrapped(_arguments(face, lowered), ", ", " " * 4)
    blocks = [
        _pointers("Weights.", weights, planned),
        _pointers("The arena: tensors that are not needed at the same time share it.", arena, planned),
        *(_step(lowered, index, step) for index, step in enumerate(planned.steps)),
    ]
    body = "\n".join(filter(None, blocks))
    return f"""\
/* The model's steps. A kernel computes part 0 of 1: all of it, or of a turn. noinline keeps the arithmetic between the
 * changes of floating-point mode around the call. */
static __attribute__((noinline)) void K(steps)(
{parameters or "    void"}) {{
{body}}}
"""


def _pointers(title: str, tensors: list[Tensor], planned: Plan) -> str:
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
        where = f"(const void *)(weights + {offset})" if tensor.kind == "weight" else f"(void *)(arena + {offset})"
        rows.append((f"  {declared(tensor, tensor.id).replace('*', '*const ')} = {where};", about))
    width = max((len(code) for code, _ in rows), default=0)
    return f"  /* {title} */\n" + "".join(f"{code:{width}} /* {about} */\n" for code, about in rows) if rows else ""


def _step(lowered: Lowered, index: int, step: Step) -> str:
    operands = ", ".join(map(_operand, step.reads))
    results = ", ".join(map(_operand, step.writes))
    given = {name: value for name, value in step.fields.items() if not _is_zero(value)}
    named = (
        f".{field.name} = {_field(lowered, field, given[field.name])}"
        for field in abi.structs()[step.args_type]
        if field.name in given
    )
    fields = [word for field in named for word in field.split(", ")]
    return f"""\
{_comment(f"{index}: {results} from {operands}", "  ")}
  {{
    const {step.args_type} s = {{
{wrapped(fields, ", ", " " * 8)}
    }};
{_calls(step)}
  }}
"""


def _calls(step: Step) -> str:
    if step.turns == 1:
        return f"    K({step.kernel})(&s, 0, 1);"
    return f"    for (int32_t turn = 0; turn < {step.turns}; turn++) K({step.kernel})(&s, turn, 1);"


def _operand(view: View) -> str:
    return f"{view.tensor}[{', '.join(map(str, view.shape))}]"


def _comment(text: str, indent: str) -> str:
    lines = wrapped(text.split(" "), " ", f"{indent} * ")
    return f"{indent}/* {lines[len(indent) + 3 :]} */"


def _is_zero(value: Field) -> bool:
    """Whether a field may be left out, which makes it all zero bits."""
    if isinstance(value, float):
        return value == 0 and math.copysign(1, value) > 0
    if isinstance(value, tuple):
        return all(map(_is_zero, value))
    return value is None or value == 0


def _field(lowered: Lowered, field: abi.Field, value: Field) -> str:
    match value:
        case Pointer():
            return _pointer(lowered, field, value)
        case tuple():
            return "{" + ", ".join(_field(lowered, field, element) for element in value) + "}"
        case float():
            return _float(value)
        case int() if field.name in _NAMED:
            return abi.constant_names(_NAMED[field.name])[value]
        case int() if value == -(2**63):
            return "-9223372036854775807 - 1"  # C has no literal of it
    return str(value)


def _pointer(lowered: Lowered, field: abi.Field, pointer: Pointer) -> str:
    if pointer.tensor == FAULT:
        return "fault"
    tensor = lowered.tensors[pointer.tensor]
    elements, rest = divmod(pointer.byte_offset, -(-tensor.dtype.bits // 8))
    assert rest == 0, f"{pointer} lies between elements"
    place = f"{pointer.tensor} + {elements}" if elements else pointer.tensor
    if field.type in ("void", C_TYPES[tensor.dtype.name]):
        return place
    # A kernel whose elements are pairs, or whatever a format has, takes them under its own name.
    untyped = "const void *" if tensor.kind in ("input", "weight") else "void *"
    return f"({untyped})({place})" if elements else f"({untyped}){place}"


def _float(value: float) -> str:
    """The shortest decimal that is this float."""
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if np.isnan(rounded):
        return "NAN"
    if np.isinf(rounded):
        return "INFINITY" if rounded > 0 else "-INFINITY"
    return f"{rounded!s}f"


def _included(prefix: str, isa: str, features: tuple[str, ...]) -> str:
    """The inclusion of the file by itself for one instruction set, which is also each that its name begins with."""
    defined = [f"ISA_{base}" for base in FEATURES if isa.startswith(base)]
    lines = [
        f"#define ISA {isa}",
        *(f"#define {name} 1" for name in defined),
        f'#include "{prefix}.c"',
        *(f"#undef {name}" for name in ("ISA", *defined)),
    ]
    text = "".join(f"{line}\n" for line in lines)
    if not features:
        return text
    target = ",".join(features)
    return f"""
#if defined(__x86_64__)
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
#endif
"""


def _entry(face: Interface, lowered: Lowered, sets: Mapping[str, tuple[str, ...]]) -> str:
    arguments = _arguments(face, lowered).values()
    given = ["weights", "arena", *(port.tensor.id for port in face.ports)]
    unused = "".join(f"  (void){name};\n" for name in given if name not in arguments)
    fault = "  ingot_fault fault = {0};\n" if face.can_fail else ""
    *others, least = [(isa, _call(isa, arguments)) for isa in reversed(sets)]
    tests = "\n  else ".join(f"if ({_supported(sets[isa])})\n{call}" for isa, call in others)
    return f"""\
{face.signature(lambda port: (port.tensor.id, port.identifier))} {{
{fault}{unused}#if defined(__x86_64__)
  /* The host may have set another rounding, or denormals to zero: the bits of a result must not depend on it. */
  const unsigned host_mode = _mm_getcsr();
  _mm_setcsr(_MM_MASK_MASK);
  __builtin_cpu_init();
  {tests}
  else
{least[1]}
  _mm_setcsr(host_mode);
#else
  {least[1].lstrip()}
#endif
  return {"fault.code" if fault else "0"};
}}
"""


def _supported(features: Iterable[str]) -> str:
    tests = [f'__builtin_cpu_supports("{feature}")' for feature in features]
    return wrapped(tests, " && ", " " * 6).lstrip()


def _call(isa: str, arguments: Iterable[str]) -> str:
    return wrapped([f"steps_{isa}({', '.join(arguments)});"], "", " " * 4)

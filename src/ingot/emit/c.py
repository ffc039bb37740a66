"""A model as plain C: model.c, model.h, main.c, weights.bin and layout.json, from the same Plan that native runs.

No name of the source model reaches the C: tensors are t17 there, and layout.json says what t17 was.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from ingot import abi
from ingot.compile import Compiled, compile_mode
from ingot.config import debug
from ingot.dim import given
from ingot.dtype import NARROW
from ingot.emit.kernels import ISAS, kernel_source
from ingot.errors import InputError, UnsupportedError
from ingot.files import make_folder, written
from ingot.ir import Graph
from ingot.lower import Target
from ingot.lower.lowered import FAULT, Field, Lowered, Pointer, Step, Tensor
from ingot.lower.recipe import Recipe
from ingot.lower.view import View
from ingot.plan import Plan, layout

LINE = 110

_C_TYPES = {
    "f32": "float", "f64": "double", "i64": "int64_t", "i32": "int32_t", "i16": "int16_t", "i8": "int8_t",
    "u64": "uint64_t", "u32": "uint32_t", "u16": "uint16_t", "u8": "uint8_t", "bool": "uint8_t",
    "f16": "uint16_t", "bf16": "uint16_t", **dict.fromkeys((dtype.name for dtype in NARROW), "uint8_t"),
}  # fmt: skip

# Fields whose numbers have names in abi.h.
_NAMED = {
    "activation": "INGOT_ACT_", "mask_kind": "INGOT_MASK_", "code": "INGOT_STRIP_OP_", "merge": "INGOT_MERGE_",
    "from": "INGOT_DTYPE_", "to": "INGOT_DTYPE_", "rounding": "INGOT_ROUND_",
}  # fmt: skip

_FEATURES = {"avx2": ("avx2", "fma"), "avx512": ("avx512f", "avx512dq", "avx512bw", "avx512vl", "avx2", "fma")}


class WeightSource(Protocol):
    """What has the bytes of weights, such as a session's `weights`."""

    def array(self, recipe: Recipe) -> np.ndarray:
        """The bytes of a recipe as a flat array."""


def emit(graph: Graph, weights: WeightSource, folder: str | os.PathLike[str]) -> list[str]:
    """Writes a static graph as C into a folder; returns the paths.

    Raises UnsupportedError when part of the model has no kernel, or it takes a branch at a run or keeps state,
    InputError when dims have no values, OutputError when the folder cannot be written.
    """
    if graph.symbols:
        raise InputError(f"emit: dims have no values, got none, expected {given(graph.symbols)}")
    if graph.states:
        raise UnsupportedError(refusals(graph, None)[0])
    compiled = compile_mode(graph, Target("scalar", threads=1))  # kernels and places depend on no instruction set
    if refused := refusals(graph, compiled):
        raise UnsupportedError(refused[0])
    return _write(*compiled.native, weights, os.fspath(folder))


def refusals(graph: Graph, compiled: Compiled | None) -> list[str]:
    """Why a graph cannot be emitted; with its program, all reasons."""
    found = []
    if graph.states:
        found.append(f"emit: the model keeps state, got {', '.join(graph.states)}, expected none")
    if compiled is not None and compiled.fallback:
        found.append(f"emit: no kernel, got {', '.join(compiled.fallback)}, expected one for each node")
    if compiled is not None and compiled.external:
        named = ", ".join(choice.candidates[-1][0] for choice in compiled.external)
        found.append(f"emit: kernels of shared libraries, got {named}, expected Ingot's own")
    if compiled is not None and compiled.choosing:
        named = ", ".join(compiled.choosing)
        found.append(f"emit: a run chooses between programs, got {named}, expected one program")
    return found


def _write(lowered: Lowered, planned: Plan, weights: WeightSource, folder: str) -> list[str]:
    texts = {
        "model.h": header(lowered, planned),
        "model.c": model(lowered, planned),
        "main.c": main(lowered),
        "layout.json": json.dumps(layout(lowered, planned), indent=1) + "\n",
    }
    if debug() >= 4:
        print(texts["model.c"], file=sys.stderr)
    make_folder(folder)
    with written(os.path.join(folder, "weights.bin")) as file:
        for id, tensor in lowered.tensors.items():
            if tensor.recipe is not None:
                file.seek(planned.addresses[id].offset)
                file.write(np.ascontiguousarray(weights.array(tensor.recipe)).view(np.uint8).data)
        file.truncate(planned.regions.get("weights", 0))
    for name, text in texts.items():
        with written(os.path.join(folder, name)) as file:
            file.write(text.encode())
    return [os.path.join(folder, name) for name in (*texts, "weights.bin")]


# -- what the model has -----------------------------------------------------------------------------------------


def _inputs(lowered: Lowered) -> list[Tensor]:
    return [lowered.tensors[view.tensor] for view in lowered.inputs.values()]


def _outputs(lowered: Lowered) -> list[Tensor]:
    return [lowered.tensors[view.tensor] for view in lowered.outputs.values()]


def _used(lowered: Lowered) -> list[Tensor]:
    """The tensors that some step points to, in the order of their numbers."""
    ids = {pointer.tensor for step in lowered.steps for pointer in step.pointers}
    return [tensor for id, tensor in lowered.tensors.items() if id in ids]


def _can_fail(lowered: Lowered) -> bool:
    return any(pointer.tensor == FAULT for step in lowered.steps for pointer in step.pointers)


def _dims(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _declared(tensor: Tensor) -> str:
    """The C of a pointer to a tensor."""
    const = "const " if tensor.kind in ("input", "weight") else ""
    return f"{const}{_C_TYPES[tensor.dtype.name]} *{tensor.id}"


def _signature(lowered: Lowered) -> str:
    tensors = [*_inputs(lowered), *_outputs(lowered)]
    shaped = [f"{_declared(t)}{',' if t is not tensors[-1] else ''} /* {_dims(t)} */" for t in tensors]
    return "int model_run(" + ("\n" + " " * 14).join(["const void *weights, void *arena,", *shaped]) + ")"


# -- model.h ----------------------------------------------------------------------------------------------------


def header(lowered: Lowered, planned: Plan) -> str:
    """model.h."""
    result = "Returns 0."
    if _can_fail(lowered):
        result = "Returns 0, or 1 when an index lay\n * outside its table; the outputs are then meaningless."
    return f"""\
/* model.h: emitted by Ingot. layout.json says which tensor of the source model each t<n> is. */
#ifndef MODEL_H
#define MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define MODEL_WEIGHTS_BYTES {planned.regions.get("weights", 0)} /* the size of weights.bin */
#define MODEL_ARENA_BYTES {planned.arena_bytes}

/* Runs the model once, on this thread. weights: the bytes of weights.bin. arena: memory to work in, whatever it holds;
 * both 64-byte aligned. Calls with arenas of their own may run at the same time. {result} */
{_signature(lowered)};

#ifdef __cplusplus
}}
#endif

#endif
"""


# -- model.c ----------------------------------------------------------------------------------------------------


def model(lowered: Lowered, planned: Plan) -> str:
    """model.c, in reading order: argument structs, kernels, steps, entry point."""
    fault = {"ingot_fault"} if _can_fail(lowered) else set()
    steps = lowered.steps
    chosen = {name for s in steps for name in _chosen(s)}
    source = kernel_source({s.kernel for s in steps}, {s.args_type for s in steps} | fault, chosen)
    return f"""\
/* model.c: emitted by Ingot. `cc -O2 -c model.c` builds it; it needs only libc and libm, and allocates nothing.
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

#include "model.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Argument structs of the kernels; sizes and strides are in elements. */

{source.types}
#else

/* Kernels. Where ISA is avx2, K(relu_f32) is relu_f32_avx2; so is every name in this list. */

{source.kernels}
{_steps(lowered, planned)}
#endif

#ifndef ISA

{"".join(_included(isa) for isa in ISAS)}
{_entry(lowered)}
#endif
"""


def _chosen(step: Step) -> Iterator[str]:
    """The constants that choose what a kernel does: the ops of a strip program, the activation of an epilogue."""
    for field, prefix in _NAMED.items():
        value = step.fields.get(field, ())
        numbers = value if isinstance(value, tuple) else (value,)
        yield from (abi.constant_names(prefix)[number] for number in numbers if isinstance(number, int))


def _arguments(lowered: Lowered) -> dict[str, str]:
    """What the steps are given: how it is declared there -> what model_run passes."""
    used = _used(lowered)
    kinds = {tensor.kind for tensor in used}
    ports = [t for t in (*_inputs(lowered), *_outputs(lowered)) if t in used]
    arguments = {"const char *weights": "weights"} if "weight" in kinds else {}
    arguments |= {"char *arena": "arena"} if kinds & {"activation", "scratch"} else {}
    arguments |= {_declared(tensor): tensor.id for tensor in ports}
    return arguments | ({"ingot_fault *fault": "&fault"} if _can_fail(lowered) else {})


def _steps(lowered: Lowered, planned: Plan) -> str:
    used = _used(lowered)
    weights = [t for t in used if t.kind == "weight"]
    arena = [t for t in used if t.kind in ("activation", "scratch")]
    parameters = _wrapped(_arguments(lowered), ", ", " " * 4)
    blocks = [
        _pointers("Weights.", weights, planned),
        _pointers("The arena: tensors that are not needed at the same time share it.", arena, planned),
        *(_step(lowered, index, step) for index, step in enumerate(planned.steps)),
    ]
    body = "\n".join(filter(None, blocks))
    return f"""\
/* The model's steps. A kernel computes part 0 of 1: all of it, or of a turn. noinline keeps the arithmetic between the
 * changes of floating-point mode around the call. */
static __attribute__((noinline)) void K(model_steps)(
{parameters or "    void"}) {{
{body}}}
"""


def _pointers(title: str, tensors: list[Tensor], planned: Plan) -> str:
    rows = []
    for tensor in tensors:
        offset = planned.addresses[tensor.id].offset
        about = _dims(tensor)
        if tensor.recipe is not None and tensor.recipe.layout != "raw":
            about += f", {'rows' if tensor.recipe.transposed else 'columns'} in panels of {tensor.recipe.panels.panel}"
            about += " of both halves" if tensor.recipe.layout == "gate_panels" else ""
        if tensor.id in planned.live:
            birth, death = planned.live[tensor.id]
            about += f", step {birth}" if birth == death else f", steps {birth} to {death}"
        where = f"(const void *)(weights + {offset})" if tensor.kind == "weight" else f"(void *)(arena + {offset})"
        rows.append((f"  {_declared(tensor).replace('*', '*const ')} = {where};", about))
    width = max((len(code) for code, _ in rows), default=0)
    return f"  /* {title} */\n" + "".join(f"{code:{width}} /* {about} */\n" for code, about in rows) if rows else ""


def _step(lowered: Lowered, index: int, step: Step) -> str:
    operands = ", ".join(map(_operand, step.reads))
    results = ", ".join(map(_operand, step.writes))
    given = {name: _field(lowered, name, value) for name, value in step.fields.items() if not _is_zero(value)}
    named = (f".{field.name} = {given[field.name]}" for field in abi.structs()[step.args_type] if field.name in given)
    fields = [word for field in named for word in field.split(", ")]
    return f"""\
{_comment(f"{index}: {results} from {operands}", "  ")}
  {{
    const {step.args_type} s = {{
{_wrapped(fields, ", ", " " * 8)}
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


def _wrapped(items: Iterable[str], separator: str, indent: str) -> str:
    """Items joined, in lines of a readable length."""
    lines = [""]
    for item in items:
        if lines[-1] and len(indent + lines[-1] + separator + item) > LINE:
            lines[-1] += separator.rstrip()
            lines.append(item)
        else:
            lines[-1] += (separator if lines[-1] else "") + item
    return "\n".join(indent + line for line in lines if line)


def _comment(text: str, indent: str) -> str:
    lines = _wrapped(text.split(" "), " ", f"{indent} * ")
    return f"{indent}/* {lines[len(indent) + 3 :]} */"


def _is_zero(value: Field) -> bool:
    """Whether a field may be left out, which makes it all zero bits."""
    if isinstance(value, float):
        return value == 0 and math.copysign(1, value) > 0
    if isinstance(value, tuple):
        return all(map(_is_zero, value))
    return value is None or value == 0


def _field(lowered: Lowered, name: str, value: Field) -> str:
    match value:
        case Pointer():
            return _pointer(lowered, value)
        case tuple():
            return "{" + ", ".join(_field(lowered, name, element) for element in value) + "}"
        case float():
            return _float(value)
        case int() if name in _NAMED:
            return abi.constant_names(_NAMED[name])[value]
        case int() if value == -(2**63):
            return "-9223372036854775807 - 1"  # C has no literal of it
    return str(value)


def _pointer(lowered: Lowered, pointer: Pointer) -> str:
    if pointer.tensor == FAULT:
        return "fault"
    elements, rest = divmod(pointer.byte_offset, lowered.tensors[pointer.tensor].dtype.itemsize)
    assert rest == 0, f"{pointer} lies between elements"
    return f"{pointer.tensor} + {elements}" if elements else pointer.tensor


def _float(value: float) -> str:
    """The shortest decimal that is this float."""
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if np.isnan(rounded):
        return "NAN"
    if np.isinf(rounded):
        return "INFINITY" if rounded > 0 else "-INFINITY"
    return f"{rounded!s}f"


def _included(isa: str) -> str:
    """The inclusion of the file by itself for one instruction set."""
    text = f"""\
#define ISA {isa}
#define ISA_{isa} 1
#include "model.c"
#undef ISA
#undef ISA_{isa}
"""
    if isa not in _FEATURES:
        return text
    features = ",".join(_FEATURES[isa])
    return f"""
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("{features}"))), \\
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("{features}")
#endif
{text}#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
"""


def _entry(lowered: Lowered) -> str:
    arguments = _arguments(lowered).values()
    given = ["weights", "arena", *(t.id for t in (*_inputs(lowered), *_outputs(lowered)))]
    unused = "".join(f"  (void){name};\n" for name in given if name not in arguments)
    fault = "  ingot_fault fault = {0};\n" if _can_fail(lowered) else ""
    return f"""\
{_signature(lowered)} {{
{fault}{unused}#if defined(__x86_64__)
  /* The host may have set another rounding, or denormals to zero: the bits of a result must not depend on it. */
  const unsigned host_mode = _mm_getcsr();
  _mm_setcsr(_MM_MASK_MASK);
  __builtin_cpu_init();
  if ({_supported("avx512")})
{_call("avx512", arguments)}
  else if ({_supported("avx2")})
{_call("avx2", arguments)}
  else
{_call("scalar", arguments)}
  _mm_setcsr(host_mode);
#else
  {_call("scalar", arguments).lstrip()}
#endif
  return {"fault.code" if fault else "0"};
}}
"""


def _supported(isa: str) -> str:
    tests = [f'__builtin_cpu_supports("{feature}")' for feature in _FEATURES[isa]]
    return _wrapped(tests, " && ", " " * 6).lstrip()


def _call(isa: str, arguments: Iterable[str]) -> str:
    return _wrapped([f"model_steps_{isa}({', '.join(arguments)});"], "", " " * 4)


# -- main.c -----------------------------------------------------------------------------------------------------


def main(lowered: Lowered) -> str:
    """main.c: a program that reads the weights and raw inputs from files and writes raw outputs."""
    inputs, outputs = _inputs(lowered), _outputs(lowered)
    made = "".join(
        f"  {_C_TYPES[t.dtype.name]} *{t.id} = allocate({t.nbytes}); /* {_dims(t)} */\n" for t in (*inputs, *outputs)
    )
    read = "".join(f"  read_file(argv[{i}], {t.id}, {t.nbytes});\n" for i, t in enumerate(inputs, 2))
    wrote = "".join(f"  write_file(argv[{i}], {t.id}, {t.nbytes});\n" for i, t in enumerate(outputs, 2 + len(inputs)))
    freed = "".join(f"  free({name});\n" for name in ("weights", "arena", *(t.id for t in (*inputs, *outputs))))
    files = ["weights.bin", *(f"{t.id}.in" for t in inputs), *(f"{t.id}.out" for t in outputs)]
    call = f"model_run({', '.join(['weights', 'arena', *(t.id for t in (*inputs, *outputs))])})"
    run = f"  {call};\n"
    if _can_fail(lowered):
        run = f"""\
  if ({call}) {{
    fprintf(stderr, "an index in the inputs lies outside its table\\n");
    return 65;
  }}
"""
    return f"""\
/* main.c: emitted by Ingot; runs the model once, on files of raw elements:
 *   cc -O2 model.c main.c -lm -o model
{_wrapped(["./model", *files], " ", " *   ")} */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

static void *allocate(size_t bytes) {{
  void *memory = aligned_alloc(64, bytes / 64 * 64 + 64);
  if (!memory) {{
    fprintf(stderr, "no memory, %zu bytes wanted\\n", bytes);
    exit(75);
  }}
  return memory;
}}

static void read_file(const char *path, void *to, size_t bytes) {{
  FILE *file = fopen(path, "rb");
  if (!file || fread(to, 1, bytes, file) != bytes || fgetc(file) != EOF) {{
    fprintf(stderr, "%s: cannot be read, expected %zu bytes\\n", path, bytes);
    exit(65);
  }}
  fclose(file);
}}

static void write_file(const char *path, const void *from, size_t bytes) {{
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(from, 1, bytes, file) != bytes || fclose(file)) {{
    fprintf(stderr, "%s: cannot be written\\n", path);
    exit(74);
  }}
}}

int main(int argc, char **argv) {{
  if (argc != {1 + len(files)}) {{
    fprintf(stderr, "usage: %s and {len(files)} files, in the order that main.c says\\n", argv[0]);
    return 2;
  }}
  void *weights = allocate(MODEL_WEIGHTS_BYTES), *arena = allocate(MODEL_ARENA_BYTES);
{made}
  read_file(argv[1], weights, MODEL_WEIGHTS_BYTES);
{read}{run}{wrote}
{freed}  return 0;
}}
"""

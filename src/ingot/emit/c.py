"""A model as plain C: model.c, model.h, main.c, weights.bin and layout.json, from the same Plan that native runs.

No name of the source model reaches the C: tensors are t17 there, and layout.json says what t17 was.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator

import numpy as np

from ingot.config import debug
from ingot.emit.kernels import ISAS, abi_types, kernels
from ingot.errors import UnsupportedError
from ingot.files import make_folder
from ingot.ir import Graph
from ingot.lower import Target, lower, segments
from ingot.lower.lowered import FAULT, Field, Lowered, Pointer, Step, Tensor
from ingot.lower.weights import WeightStore
from ingot.plan import Plan, layout, plan
from ingot.verify import verify

_C_TYPES = {
    "f32": "float", "f64": "double", "i64": "int64_t", "i32": "int32_t", "i16": "int16_t", "i8": "int8_t",
    "u64": "uint64_t", "u32": "uint32_t", "u16": "uint16_t", "u8": "uint8_t", "bool": "uint8_t",
    "f16": "uint16_t", "bf16": "uint16_t",
}  # fmt: skip


def emit(graph: Graph, weights: WeightStore, folder: str | os.PathLike[str]) -> list[str]:
    """Writes a static graph as C into a folder; returns the paths.

    Raises UnsupportedError when part of the model has no kernel.
    """
    target = Target("scalar", threads=1)
    parts = segments(graph.copy(), target)
    missing = [f"{n.op.name} {n.outputs[0]!r}" for part in parts if not part.native for n in part.graph.nodes]
    if missing:
        raise UnsupportedError(f"emit: no kernel, got {', '.join(missing)}, expected one for each node")
    (part,) = parts
    lowered = lower(part.graph, target)
    planned = plan(lowered)
    verify(lowered, planned)
    return _write(part.graph, lowered, planned, weights, os.fspath(folder))


def _write(graph: Graph, lowered: Lowered, planned: Plan, weights: WeightStore, folder: str) -> list[str]:
    make_folder(folder)
    texts = {
        "model.h": header(lowered, planned),
        "model.c": model(lowered, planned),
        "main.c": main(lowered, planned),
        "layout.json": json.dumps(layout(lowered, planned), indent=1),
    }
    if debug() >= 4:
        print(texts["model.c"], file=sys.stderr)
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    with open(os.path.join(folder, "weights.bin"), "wb") as blob:
        for id, tensor in lowered.tensors.items():
            if tensor.recipe is not None:
                blob.seek(planned.addresses[id].offset)
                blob.write(np.ascontiguousarray(weights.array(graph, tensor.recipe)).view(np.uint8).data)
        blob.truncate(planned.regions.get("weights", 0))
    return [os.path.join(folder, name) for name in (*texts, "weights.bin")]


def _shape(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _ports(lowered: Lowered) -> tuple[list[Tensor], list[Tensor]]:
    inputs = [lowered.tensors[view.tensor] for view in lowered.inputs.values()]
    return inputs, [lowered.tensors[view.tensor] for view in lowered.outputs.values()]


def _arena_bytes(planned: Plan) -> int:
    return max(64, planned.arena_bytes)


def _signature(lowered: Lowered) -> str:
    inputs, outputs = _ports(lowered)
    parameters = ["const void *weights", "void *arena"]
    parameters += [f"const {_C_TYPES[t.dtype.name]} *{t.id} /* {_shape(t)} */" for t in inputs]
    parameters += [f"{_C_TYPES[t.dtype.name]} *{t.id} /* {_shape(t)} */" for t in outputs]
    return f"int model_run({', '.join(parameters)})"


def header(lowered: Lowered, planned: Plan) -> str:
    """model.h."""
    return f"""\
/* model.h: emitted by Ingot. layout.json says which tensor of the source model each t<n> is. */
#ifndef MODEL_H
#define MODEL_H

#include <stdint.h>

#define MODEL_WEIGHTS_BYTES {planned.regions.get("weights", 0)} /* of weights.bin */
#define MODEL_ARENA_BYTES {_arena_bytes(planned)}

/* Runs the model once, on this thread. weights: the bytes of weights.bin. arena: MODEL_ARENA_BYTES of scratch memory;
 * both 64-byte aligned. Calls with arenas of their own may run at the same time.
 * Returns 0, or 1 when an index in the inputs lies outside its table (the outputs are then meaningless). */
{_signature(lowered)};

#endif
"""


def model(lowered: Lowered, planned: Plan) -> str:
    """model.c, in reading order: argument structs, kernels per instruction set, dispatch, the steps."""
    used = {step.kernel for step in lowered.steps}
    types = {step.args_type for step in lowered.steps} | {"ingot_fault"}
    sets = "\n".join(_titled(f"Kernels: {isa}", kernels(used, isa)) for isa in ISAS)
    steps = "\n".join(_step(lowered, planned, i, step) for i, step in enumerate(lowered.steps))
    return f"""\
/* model.c: emitted by Ingot. `cc -O2 -c model.c` builds it; it needs only libc and libm and allocates nothing.
 *
 * In reading order: argument structs, the kernels once per instruction set, their choice at run time, the model's
 * steps. The results are the same bits on every instruction set, so multiply and add must not be contracted. */
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

{_titled("Argument structs: sizes and strides in elements", abi_types(types))}
{sets}
{_titled("Dispatch", _dispatch(sorted(used)))}
{
        _titled(
            "The model",
            f'''{_signature(lowered)} {{
  ingot_fault fault = {{0}};
  const kernel_set *k = kernel_choice();
  const char *const w = weights;
  char *const a = arena;
  (void)w, (void)a, (void)k;
{steps}
  return fault.code;
}}
''',
        )
    }"""


def _titled(title: str, text: str) -> str:
    return f"/* {title} */\n\n{text}"


def _dispatch(names: list[str]) -> str:
    fields = "".join(f"  void (*{name})(const void *, int32_t, int32_t);\n" for name in names)

    def row(isa: str) -> str:
        return "{" + ", ".join(f"{name}_{isa}" for name in names) + "}"

    return f"""\
typedef struct {{
{fields or "  char none;"}
}} kernel_set;

static const kernel_set *kernel_choice(void) {{
#if defined(__x86_64__)
  static const kernel_set avx512 = {row("avx512")}, avx2 = {row("avx2")};
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return &avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2;
#endif
  static const kernel_set scalar = {row("scalar")};
  return &scalar;
}}
"""


def _step(lowered: Lowered, planned: Plan, index: int, step: Step) -> str:
    given = {name: value for name, value in step.fields.items() if value is not None}
    fields = [f".{name} = {_field(lowered, planned, value)}" for name, value in given.items()]
    if any(isinstance(v, Pointer) and v.tensor == FAULT for v in step.fields.values()):
        fields.append(f".step = {index}")
    reads = ", ".join(f"{v.tensor}{list(v.shape)}" for v in step.reads)
    writes = ", ".join(f"{v.tensor}{list(v.shape)}" for v in step.writes)
    lines = "".join(f"        {line}\n" for line in _wrapped(fields))
    return (
        f"  {{ /* {index}: {writes} from {reads} */\n"
        f"    const {step.args_type} s = {{\n{lines}    }};\n"
        f"    k->{step.kernel}(&s, 0, 1);\n  }}"
    )


def _wrapped(fields: list[str]) -> Iterator[str]:
    line = ""
    for field in fields:
        if line and len(line) + len(field) > 100:
            yield line
            line = ""
        line += f"{field}, "
    if line:
        yield line


def _field(lowered: Lowered, planned: Plan, value: Field) -> str:
    match value:
        case Pointer():
            return _pointer(lowered, planned, value)
        case tuple():
            return "{" + ", ".join(map(str, value)) + "}" if value else "{0}"
        case float():
            return _float(value)
    return str(value)


def _pointer(lowered: Lowered, planned: Plan, pointer: Pointer) -> str:
    if pointer.tensor == FAULT:
        return "&fault"
    tensor, address = lowered.tensors[pointer.tensor], planned.addresses[pointer.tensor]
    if tensor.kind in ("input", "output"):
        const = "const " if tensor.kind == "input" else ""
        return f"(void *)((({const}char *){tensor.id}) + {pointer.byte_offset})"
    base = "w" if address.region == "weights" else "a"
    offset = address.offset + pointer.byte_offset
    return f"(void *)({base} + {offset})"


def _float(value: float) -> str:
    """Exact: hexadecimal."""
    rounded = float(np.float32(value))
    if math.isnan(rounded):
        return "NAN"
    if math.isinf(rounded):
        return "INFINITY" if rounded > 0 else "-INFINITY"
    return f"{rounded.hex()}f"


def main(lowered: Lowered, planned: Plan) -> str:
    """main.c: a program that reads the weights and raw inputs from files and writes raw outputs."""
    inputs, outputs = _ports(lowered)
    buffers = "".join(
        f"static _Alignas(64) {_C_TYPES[t.dtype.name]} {t.id}[{max(1, t.nbytes // t.dtype.itemsize)}];"
        f" /* {_shape(t)} */\n"
        for t in (*inputs, *outputs)
    )
    reads = "".join(f"  read_file(argv[{i + 2}], {t.id}, {t.nbytes});\n" for i, t in enumerate(inputs))
    writes = "".join(f"  write_file(argv[{i + 2 + len(inputs)}], {t.id}, {t.nbytes});\n" for i, t in enumerate(outputs))
    arguments = ", ".join(["weights", "arena", *(t.id for t in (*inputs, *outputs))])
    usage = " ".join(["WEIGHTS", *(f"IN_{t.id}" for t in inputs), *(f"OUT_{t.id}" for t in outputs)])
    return f"""\
/* main.c: emitted by Ingot; an example of use. Files hold raw little-endian elements.
 * cc -O2 model.c main.c -lm -o model && ./model {usage} */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

static _Alignas(64) char weights[MODEL_WEIGHTS_BYTES + 1];
static _Alignas(64) char arena[MODEL_ARENA_BYTES];
{buffers}
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
  if (argc != {2 + len(inputs) + len(outputs)}) {{
    fprintf(stderr, "usage: %s {usage}\\n", argv[0]);
    return 2;
  }}
  read_file(argv[1], weights, MODEL_WEIGHTS_BYTES);
{reads}  const int fault = model_run({arguments});
  if (fault) {{
    fprintf(stderr, "an index in the inputs lies outside its table\\n");
    return 65;
  }}
{writes}  return 0;
}}
"""

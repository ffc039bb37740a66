"""A model as plain C, from the same Plan that native runs: its source, its weights, a program around it, a test vector.

Nothing of the source model reaches the C but names of inputs and outputs, made identifiers; other tensors are t17
there, and layout.json says what t17 was.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ingot.compile import Compiled, Mode, compile_mode
from ingot.config import debug
from ingot.dim import given
from ingot.emit.interface import LINE_BYTES, RUN, Entry, Interface, Port, declared, dims, interface
from ingot.emit.pool import pool
from ingot.emit.program import VECTOR, cmake_lists, main, makefile
from ingot.emit.source import source
from ingot.errors import InputError, UnsupportedError
from ingot.files import make_folder, written
from ingot.ir import Graph
from ingot.lower import Target
from ingot.lower.recipe import Recipe
from ingot.plan import layout
from ingot.precision import F32, Precision


class WeightSource(Protocol):
    """What has the bytes of weights, such as a session's `weights`."""

    def array(self, recipe: Recipe) -> np.ndarray:
        """The bytes of a recipe as a flat array."""


@dataclass(frozen=True, slots=True)
class Vector:
    """Inputs and the outputs that native makes of them, each by its name in the graph."""

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def emit(
    graph: Graph,
    weights: WeightSource,
    folder: str | os.PathLike[str],
    *,
    prefix: str = "model",
    precision: Precision = F32,
    threads: int = 1,
    vector: Vector | None = None,
) -> list[str]:
    """Writes a static graph as C into a folder; returns the paths.

    prefix: of everything that a linker sees, of the source files and of the program. threads: the most that a run can
    use; with 1, no pool is written. vector: what `make check` runs.

    Raises UnsupportedError when part of the model has no kernel, or it takes a branch at a run,
    InputError when dims have no values or C cannot have the prefix, OutputError when the folder cannot be written.
    """
    if graph.symbols:
        raise InputError(f"emit: dims have no values, got none, expected {given(graph.symbols)}")
    # Kernels and places depend on no instruction set. Those without dot products have their bits in other ways.
    rounded = () if precision.rows is None else (precision.rows,)
    target = Target("scalar", threads=threads, rounded=rounded)
    compiled = compile_mode(graph, target, Mode(precision=precision))
    if refused := refusals(compiled):
        raise UnsupportedError(refused[0])
    face = interface({RUN: compiled.native}, prefix)
    has_vector = vector is not None
    programs = {
        "main.c": main(face),
        "Makefile": makefile(face, has_vector),
        "CMakeLists.txt": cmake_lists(face, has_vector),
    }
    return _write(os.fspath(folder), face, programs, _arrays(face.entries[0], vector), weights)


def emit_entries(
    entries: Mapping[str, Compiled],
    weights: WeightSource,
    folder: str | os.PathLike[str],
    *,
    prefix: str = "model",
) -> list[str]:
    """Writes modes of one graph, compiled with one placement, as C with a function for each, by its name; returns the
    paths. They share weights and states; a program around them is the caller's.

    Raises UnsupportedError, InputError and OutputError as `emit`.
    """
    for compiled in entries.values():
        if refused := refusals(compiled):
            raise UnsupportedError(refused[0])
    face = interface({name: compiled.native for name, compiled in entries.items()}, prefix)
    return _write(os.fspath(folder), face, {}, {}, weights)


def refusals(compiled: Compiled) -> list[str]:
    """Why a program cannot be emitted."""
    found = []
    if compiled.fallback:
        found.append(f"emit: no kernel, got {', '.join(compiled.fallback)}, expected one for each node")
    if compiled.external:
        named = ", ".join(choice.candidates[-1][0] for choice in compiled.external)
        found.append(f"emit: kernels of shared libraries, got {named}, expected Ingot's own")
    if compiled.choosing:
        named = ", ".join(compiled.choosing)
        found.append(f"emit: a run chooses between programs, got {named}, expected one program")
    return found


def _write(
    folder: str,
    face: Interface,
    programs: Mapping[str, str],
    arrays: Mapping[str, bytes],
    weights: WeightSource,
) -> list[str]:
    """Writes the model, programs around it, arrays and weights; returns the paths."""
    texts = {f"{face.prefix}.h": header(face), f"{face.prefix}.c": source(face), **pool(face), **programs}
    texts["layout.json"] = json.dumps(_layout(face), indent=1) + "\n"
    if debug() >= 4:
        print(texts[f"{face.prefix}.c"], file=sys.stderr)
    files = {**{name: text.encode() for name, text in texts.items()}, **arrays}
    for name, content in files.items():
        path = os.path.join(folder, name)
        make_folder(os.path.dirname(path))
        with written(path) as file:
            file.write(content)
    _write_weights(os.path.join(folder, "weights.bin"), face, weights)
    return [os.path.join(folder, name) for name in (*files, "weights.bin")]


def _layout(face: Interface) -> dict[str, Any]:
    """layout.json: of each entry under its name, if there are several."""
    found = {}
    for entry in face.entries:
        found[entry.name] = {
            kind: {port.identifier: port.tensor.name for port in ports}
            for kind, ports in (("inputs", entry.inputs), ("outputs", entry.outputs))
        } | layout(entry.lowered, entry.planned)
    return found if len(found) > 1 else found[face.entries[0].name]


def _arrays(entry: Entry, vector: Vector | None) -> dict[str, bytes]:
    """The .npy files of a test vector."""
    files: dict[str, bytes] = {}
    for ports, arrays in ((entry.inputs, vector.inputs), (entry.outputs, vector.outputs)) if vector else ():
        for port in ports:
            file = io.BytesIO()
            np.save(file, np.asarray(arrays[port.tensor.name], order="C"), allow_pickle=False)
            files[os.path.join(VECTOR, f"{port.identifier}.npy")] = file.getvalue()
    return files


def _write_weights(path: str, face: Interface, weights: WeightSource) -> None:
    with written(path) as file:
        for entry in face.entries:
            for id, tensor in entry.lowered.tensors.items():
                if tensor.recipe is not None:
                    file.seek(entry.planned.addresses[id].offset)
                    file.write(np.ascontiguousarray(weights.array(tensor.recipe)).view(np.uint8).data)
        file.truncate(face.weights_bytes)


def header(face: Interface) -> str:
    """model.h."""
    prefix, macro = face.prefix, face.macro
    kept = "; nothing is kept from an earlier run" if face.kept_bytes else ""
    entries = "".join(f"\n{_declaration(face, entry)}" for entry in face.entries)
    return f"""\
/* {prefix}.h: emitted by Ingot. layout.json says which names the source model has for inputs and outputs. */
#ifndef {macro}_H
#define {macro}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {macro}_WEIGHTS_BYTES {face.weights_bytes} /* the size of weights.bin */
#define {macro}_STATE_BYTES {face.state_bytes}
#define {macro}_THREADS {face.threads} /* the most that a run can use */

/* The same, for whoever links without this file. */
size_t {prefix}_weights_bytes(void);
size_t {prefix}_state_bytes(void);

/* What runs work in{" and keep" if face.kept_bytes else ""}. Runs on states of their own may go on at the same time. */
typedef struct {prefix}_state {prefix}_state;

/* Makes a state of memory of {prefix}_state_bytes(){kept}. weights: the bytes of weights.bin, which stay there for as
 * long as runs go on; both {LINE_BYTES}-byte aligned. threads: the most that a run uses, the caller's among them. */
{prefix}_state *{prefix}_init(void *memory, const void *weights, int threads);
{entries}
#ifdef __cplusplus
}}
#endif

#endif
"""


def _declaration(face: Interface, entry: Entry) -> str:
    """An entry's structs and function."""
    result = "Returns 0."
    if entry.can_fail:
        result = "Returns 0, or 1 when an index lay outside its\n * table; the outputs are then meaningless."
    return f"""\
typedef struct {{
{_members(entry.inputs, "inputs")}}} {face.inputs(entry)};

typedef struct {{
{_members(entry.outputs, "outputs")}}} {face.outputs(entry)};

/* Runs the model once, on rows of elements one behind the other. {result} */
{face.signature(entry)};
"""


def _members(ports: Sequence[Port], kind: str) -> str:
    rows = [f"  {declared(port.tensor, port.identifier)}; /* {dims(port.tensor)} */\n" for port in ports]
    return "".join(rows) or f"  void *none; /* the model has no {kind} */\n"

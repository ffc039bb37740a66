"""A model as plain C, from the same Plan that native runs: its source, its weights, a program around it, a test vector.

Nothing of the source model reaches the C but names of inputs and outputs, made identifiers; other tensors are t17
there, and layout.json says what t17 was.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ingot.compile import Compiled, Mode, compile_mode
from ingot.config import debug
from ingot.dim import given
from ingot.emit.interface import Interface, interface
from ingot.emit.program import VECTOR, main, makefile
from ingot.emit.source import source
from ingot.errors import InputError, UnsupportedError
from ingot.files import make_folder, written
from ingot.ir import Graph
from ingot.lower import Target
from ingot.lower.lowered import Lowered
from ingot.lower.recipe import Recipe
from ingot.plan import Plan, layout
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
    vector: Vector | None = None,
) -> list[str]:
    """Writes a static graph as C into a folder; returns the paths.

    prefix: of everything that a linker sees, of the source files and of the program. vector: what `make check` runs.

    Raises UnsupportedError when part of the model has no kernel, or it takes a branch at a run or keeps state,
    InputError when dims have no values or C cannot have the prefix, OutputError when the folder cannot be written.
    """
    if graph.symbols:
        raise InputError(f"emit: dims have no values, got none, expected {given(graph.symbols)}")
    if graph.states:
        raise UnsupportedError(refusals(graph, None)[0])
    # Kernels and places depend on no instruction set. Those without dot products have their bits in other ways.
    rounded = () if precision.rows is None else (precision.rows,)
    target = Target("scalar", threads=1, rounded=rounded)
    compiled = compile_mode(graph, target, Mode(precision=precision))
    if refused := refusals(graph, compiled):
        raise UnsupportedError(refused[0])
    lowered, planned = compiled.native
    face = interface(lowered, prefix)
    files = {name: text.encode() for name, text in _texts(face, lowered, planned, vector is not None).items()}
    if debug() >= 4:
        print(files[f"{prefix}.c"].decode(), file=sys.stderr)
    _write(os.fspath(folder), files | _arrays(face, vector))
    _write_weights(os.path.join(folder, "weights.bin"), lowered, planned, weights)
    return [os.path.join(folder, name) for name in (*files, *_arrays(face, vector), "weights.bin")]


def refusals(graph: Graph, compiled: Compiled | None) -> list[str]:
    """Why a graph cannot be emitted; with its program, all reasons."""
    found = []
    if graph.states:
        found.append(f"emit: the model keeps state, got {', '.join(graph.states)}, expected none")
    if compiled is None:
        return found
    if compiled.fallback:
        found.append(f"emit: no kernel, got {', '.join(compiled.fallback)}, expected one for each node")
    if compiled.external:
        named = ", ".join(choice.candidates[-1][0] for choice in compiled.external)
        found.append(f"emit: kernels of shared libraries, got {named}, expected Ingot's own")
    if compiled.choosing:
        named = ", ".join(compiled.choosing)
        found.append(f"emit: a run chooses between programs, got {named}, expected one program")
    return found


def _texts(face: Interface, lowered: Lowered, planned: Plan, has_vector: bool) -> dict[str, str]:
    named = {
        kind: {port.identifier: port.tensor.name for port in ports}
        for kind, ports in (("inputs", face.inputs), ("outputs", face.outputs))
    }
    return {
        f"{face.prefix}.h": header(face, planned),
        f"{face.prefix}.c": source(face, lowered, planned),
        "main.c": main(face),
        "Makefile": makefile(face, has_vector),
        "layout.json": json.dumps(named | layout(lowered, planned), indent=1) + "\n",
    }


def _arrays(face: Interface, vector: Vector | None) -> dict[str, bytes]:
    """The .npy files of a test vector."""
    files: dict[str, bytes] = {}
    for ports, arrays in ((face.inputs, vector.inputs), (face.outputs, vector.outputs)) if vector else ():
        for port in ports:
            file = io.BytesIO()
            np.save(file, np.asarray(arrays[port.tensor.name], order="C"), allow_pickle=False)
            files[os.path.join(VECTOR, f"{port.identifier}.npy")] = file.getvalue()
    return files


def _write(folder: str, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = os.path.join(folder, name)
        make_folder(os.path.dirname(path))
        with written(path) as file:
            file.write(content)


def _write_weights(path: str, lowered: Lowered, planned: Plan, weights: WeightSource) -> None:
    with written(path) as file:
        for id, tensor in lowered.tensors.items():
            if tensor.recipe is not None:
                file.seek(planned.addresses[id].offset)
                file.write(np.ascontiguousarray(weights.array(tensor.recipe)).view(np.uint8).data)
        file.truncate(planned.regions.get("weights", 0))


def header(face: Interface, planned: Plan) -> str:
    """model.h."""
    result = "Returns 0."
    if face.can_fail:
        result = "Returns 0, or 1 when an index lay\n * outside its table; the outputs are then meaningless."
    return f"""\
/* {face.prefix}.h: emitted by Ingot. layout.json says which names the source model has for inputs and outputs. */
#ifndef {face.macro}_H
#define {face.macro}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {face.macro}_WEIGHTS_BYTES {planned.regions.get("weights", 0)} /* the size of weights.bin */
#define {face.macro}_ARENA_BYTES {planned.arena_bytes}

/* Runs the model once, on this thread. weights: the bytes of weights.bin. arena: memory to work in, whatever it holds;
 * both 64-byte aligned. Calls with arenas of their own may run at the same time. {result} */
{face.signature(lambda port: (port.identifier, ""))};

#ifdef __cplusplus
}}
#endif

#endif
"""

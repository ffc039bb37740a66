"""Emit a model as plain C from the plan of native execution: source, weights, a command-line program, a test vector.

The C contains nothing of the source model except tensor names, as identifiers; layout.json maps them to the originals.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.compile import Compiled, Mode, compile_at_most, compile_mode
from ingot.emit.branches import is_joinable
from ingot.emit.checks import check_header
from ingot.emit.freestanding import check, library_project
from ingot.emit.interface import (
    BAD_INDEX,
    BAD_SIZE,
    LINE_BYTES,
    NO_COMPANION,
    PREFIX,
    RUN,
    STOPPED,
    Companion,
    Entry,
    Interface,
    Port,
    comment,
    declared,
    dims,
    interface,
)
from ingot.emit.kernels import check_precision
from ingot.emit.layout import Memory, layout_constants, memory
from ingot.emit.platform import Platform
from ingot.emit.pool import pool
from ingot.emit.program import VECTOR, main, project
from ingot.emit.project import SHARED, filled, project_files
from ingot.emit.source import source
from ingot.emit.weights import WeightSource, check_byte_order, write_binary, write_source
from ingot.errors import InputError, UnsupportedError, some
from ingot.ir.dim import AtMost, given
from ingot.ir.graph import Graph
from ingot.lower import Target
from ingot.passes.precision import F32, Precision
from ingot.plan.memory import layout
from ingot.support.config import debug
from ingot.support.files import make_folder, written
from ingot.support.folders import MANIFEST, filled_folder

HOSTED = Platform()


@dataclass(frozen=True, slots=True)
class Vector:
    """Inputs, and the outputs of native execution for them, by their names in the graph."""

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


class Emission(list[str]):
    """The paths that were written. memory: the memory that the model needs."""

    def __init__(self, paths: Iterable[str], memory: Memory):
        super().__init__(paths)
        self.memory = memory


def emit(
    graph: Graph,
    weights: WeightSource,
    folder: str | os.PathLike[str],
    *,
    prefix: str = PREFIX,
    precision: Precision = F32,
    threads: int = 1,
    limits: Mapping[str, int] = {},
    vector: Vector | None = None,
    platform: Platform = HOSTED,
    force: bool = False,
) -> Emission:
    """Write a graph as C into a folder; return the paths.

    prefix: of all external symbols, source files and the program. threads: the most that a run can use; with 1, no
    thread pool is written. limits: the largest size of each of the graph's symbols, whose sizes a run then passes.
    vector: the test vector of `make check`, or of `<prefix>_check` on a freestanding platform. force: replace existing
    files of these names that are not from an earlier emission of this prefix.

    Raises UnsupportedError when part of the model or a possible branch has no kernel, when weights cannot have the
    platform's byte order, or when no single program serves all sizes up to the limits; InputError when dims have
    neither values nor limits, the prefix is no C name, or the platform has no threads; OutputError when the folder
    cannot be written, or has such files.
    """
    if open_dims := [symbol for symbol in graph.symbols if symbol not in limits]:
        raise InputError(f"emit: dims have no values, got none, expected {given(open_dims)}")
    if platform.freestanding and threads > 1:
        raise InputError(f"option threads: a freestanding platform has none, got {threads}, expected 1")
    check_precision(precision)
    # Kernels and addresses depend on no instruction set. Sets without dot products compute the same bits.
    rounded = () if precision.rows is None else (precision.rows,)
    target = Target("scalar", threads=threads, rounded=rounded)
    sizes = {symbol: AtMost(most, symbol) for symbol, most in limits.items()}
    compile = compile_at_most if limits else compile_mode
    compiled = compile(graph, target, Mode(sizes=sizes, precision=precision))
    if refused := refusals(compiled):
        raise UnsupportedError(refused[0])
    face = interface({RUN: compiled}, prefix, initial=_initial([compiled]))
    has_vector = vector is not None
    programs: dict[str, str | bytes]
    if platform.freestanding:
        programs = {**project_files(library_project(face, has_vector))}
        if vector:
            programs[face.file("check.c")] = check(face, vector.inputs, vector.outputs, platform)
    else:
        programs = {
            face.file("main.c"): main(face, platform),
            **project_files(project(face, has_vector)),
            **_arrays(face, vector, platform),
        }
    return _write(os.fspath(folder), face, platform, programs, weights, force=force)


def emit_entries(
    entries: Mapping[str, Compiled],
    weights: WeightSource,
    folder: str | os.PathLike[str],
    *,
    prefix: str = PREFIX,
    can_stop: bool = False,
    companion: Companion = NO_COMPANION,
    initial: Mapping[str, np.ndarray] = {},
    programs: Callable[[Interface], Mapping[str, str | bytes]] = lambda face: {},
    platform: Platform = HOSTED,
    force: bool = False,
) -> Emission:
    """Write modes of one graph, compiled with one placement, as C with one entry function each; return the paths.

    The entries share weights and states. can_stop: whether a run can be stopped early. initial: initial values of
    states that replace those of the graphs. programs: further files, by name. force: as for `emit`.

    Raises UnsupportedError, InputError and OutputError as `emit`.
    """
    for compiled in entries.values():
        if refused := refusals(compiled):
            raise UnsupportedError(refused[0])
    begun = {**_initial(entries.values()), **initial}
    face = interface(entries, prefix, can_stop=can_stop, companion=companion, initial=begun)
    return _write(os.fspath(folder), face, platform, programs(face), weights, force=force)


def refusals(compiled: Compiled) -> list[str]:
    """Return the reasons why a program cannot be emitted."""
    found = []
    if compiled.fallback:
        found.append(f"emit: no kernel, got {some(compiled.fallback)}, expected one for each node")
    if compiled.external:
        named = some([choice.candidates[-1][0] for choice in compiled.external])
        found.append(f"emit: kernels of shared libraries, got {named}, expected Ingot's own")
    if compiled.choosing and not is_joinable(compiled):
        named = some(compiled.choosing)
        expected = "no branches in a graph with states" if compiled.graph.states else "native branches of known shapes"
        found.append(f"emit: a run chooses between programs, got {named}, expected {expected}")
    if without := [name for name, data in compiled.graph.initial.items() if data is None]:
        found.append(f"emit: states have no data, got {some(without)}, expected initial values")
    return found


def _initial(compiled: Iterable[Compiled]) -> dict[str, np.ndarray]:
    """Return the initial values of the states of programs, by name."""
    return {name: data for each in compiled for name, data in each.graph.initial.items() if data is not None}


def _write(
    folder: str,
    face: Interface,
    platform: Platform,
    programs: Mapping[str, str | bytes],
    weights: WeightSource,
    *,
    force: bool,
) -> Emission:
    """Write the model, programs around it and weights; return the paths."""
    for entry in face.entries:
        check_byte_order(entry.lowered, platform)
    model = source(face, platform)
    kind = "weights.c" if platform.freestanding else "weights.bin"
    stored, checking = face.file(kind), f"{face.prefix}_check.h"
    own: dict[str, str | bytes] = {f"{face.prefix}.c": model, **pool(face)}
    plain = {name.removeprefix(f"{face.prefix}-") for name in (*programs, stored)}
    if used := {*own, f"{face.prefix}.h", checking} & plain:
        raise InputError(f"option prefix: {min(used)} is another file here, got {face.prefix!r}, expected another")
    layout = json.dumps(_layout(face), indent=1) + "\n"
    files = {**own, **programs, face.file("layout.json"): layout}
    files[f"{face.prefix}.h"] = header(face, platform, face.file("check.c") in programs)
    if debug() >= 4:
        print(model, file=sys.stderr)
    write = write_source if platform.freestanding else write_binary
    names = [*files, checking, stored]
    with filled_folder(folder, f"C: {face.prefix}", names, shared=SHARED, force=force):
        hash = write(os.path.join(folder, stored), face, weights, platform)
        files[checking] = check_header(face, hash)
        for name, content in files.items():
            path = os.path.join(folder, name)
            make_folder(os.path.dirname(path))
            with written(path) as file:
                file.write(content.encode() if isinstance(content, str) else content)
    return Emission((os.path.join(folder, name) for name in (*names, MANIFEST)), memory(face))


def _layout(face: Interface) -> dict[str, Any]:
    """Return layout.json: of each entry by its name, if there are several."""
    found = {}
    for entry in face.entries:
        found[entry.name] = {
            kind: {port.identifier: port.tensor.name for port in ports}
            for kind, ports in (("inputs", entry.inputs), ("outputs", entry.outputs))
        } | layout(entry.lowered, entry.planned)
        for row in found[entry.name]["tensors"]:
            row["identifier"] = entry.names[row["id"]]
        if entry.sizes:
            found[entry.name]["sizes"] = {
                size.identifier: {"name": size.symbol, "least": size.least, "most": size.most} for size in entry.sizes
            }
    return found if len(found) > 1 else found[face.entries[0].name]


def _arrays(face: Interface, vector: Vector | None, platform: Platform) -> dict[str, bytes]:
    """Return the .npy files of a test vector."""
    files: dict[str, bytes] = {}
    entry = face.entries[0]
    for ports, arrays in ((entry.inputs, vector.inputs), (entry.outputs, vector.outputs)) if vector else ():
        for port in ports:
            file = io.BytesIO()
            np.save(file, platform.ordered(arrays[port.tensor.name]), allow_pickle=False)
            files[os.path.join(face.file(VECTOR), f"{port.identifier}.npy")] = file.getvalue()
    return files


def header(face: Interface, platform: Platform, has_check: bool) -> str:
    """Return model.h."""
    stored = f"{face.prefix}_weights" if platform.freestanding else face.file("weights.bin")
    kept = "; nothing of an earlier run remains" if face.kept_bytes else ""
    init = (
        f"Initialises a state in memory of {face.prefix}_state_bytes(){kept}. weights: the bytes of {stored}, which "
        f"must outlive all runs; both are {LINE_BYTES}-byte aligned. threads: the most that a run uses, including the "
        "caller's."
    )
    return filled(
        "model.h",
        name=face.prefix,
        layout=face.file("layout.json"),
        weights=stored,
        freestanding=platform.freestanding,
        face=face,
        init=comment(init, ""),
        entries=[_declaration(face, entry) for entry in face.entries],
        has_check=has_check,
        constants=layout_constants(face),
    )


def _declaration(face: Interface, entry: Entry) -> dict[str, Any]:
    """Return the members of an entry's structs, and the comment above its function."""
    codes = ["Returns 0"]
    if entry.can_fail:
        codes.append(f"{BAD_INDEX} when an index was outside its table; the outputs are then undefined")
    if entry.sizes:
        codes.append(f"{BAD_SIZE} when a size is out of range; then nothing was computed")
    if face.can_stop:
        codes.append(f"{STOPPED} when it was stopped; the outputs are then incomplete")
    sizes = [f"int64_t {size.identifier}; /* {size.least} to {size.most} */" for size in entry.sizes]
    about = f"Runs the model once; all tensors are dense and row-major. {', or '.join(codes)}."
    return {
        "own": entry,
        "inputs": _members(entry.inputs, "inputs", sizes),
        "outputs": _members(entry.outputs, "outputs"),
        "about": comment(about, ""),
    }


def _members(ports: Sequence[Port], kind: str, sizes: Sequence[str] = ()) -> list[str]:
    """Return the members of a struct: pointers, then sizes, then dims that a run sets."""
    rows = [f"{declared(port.tensor, port.identifier)}; /* {dims(port.tensor)} */" for port in ports]
    run_dims = [
        f"int64_t {port.dims}[{len(port.tensor.shape)}]; /* of {port.identifier}: set by a run */"
        for port in ports
        if port.dims
    ]
    return [*rows, *sizes, *run_dims] or [f"void *none; /* the model has no {kind} */"]

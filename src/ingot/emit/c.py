"""A model as plain C, from the same Plan that native runs: its source, its weights, a program around it, a test vector.

Nothing of the source model reaches the C but names of tensors, made identifiers; layout.json says what each was.
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
from ingot.emit.project import SHARED, project_files
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
    """Inputs and the outputs that native makes of them, each by its name in the graph."""

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


class Emission(list[str]):
    """The paths that were written. memory: what the model takes."""

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
    """Writes a graph as C into a folder; returns the paths.

    prefix: of everything that a linker sees, of the source files and of the program. threads: the most that a run can
    use; with 1, no pool is written. limits: of each of the graph's symbols, which a run then says. vector: what `make
    check` runs, or, where there is no system, `<prefix>_check`. force: replace files of these names that are there and
    that are not of an earlier emission of this prefix.

    Raises UnsupportedError when part of the model has no kernel, or a branch that a run may take has none, or its
    weights have one byte order, or there is no one program for all sizes up to the limits, InputError when dims have
    neither values nor limits, C cannot have the prefix or the platform no threads, OutputError when the folder cannot
    be written, or holds such files.
    """
    if open_dims := [symbol for symbol in graph.symbols if symbol not in limits]:
        raise InputError(f"emit: dims have no values, got none, expected {given(open_dims)}")
    if platform.freestanding and threads > 1:
        raise InputError(f"option threads: there is no system to start them, got {threads}, expected 1")
    check_precision(precision)
    # Kernels and places depend on no instruction set. Those without dot products have their bits in other ways.
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
    """Writes modes of one graph, compiled with one placement, as C with a function for each, by its name; returns the
    paths. They share weights and states.

    can_stop: whether a run can be told to end early. initial: what states begin with, in the place of what their graphs
    say. programs: files around the model, by name. force: as for `emit`.

    Raises UnsupportedError, InputError and OutputError as `emit`.
    """
    for compiled in entries.values():
        if refused := refusals(compiled):
            raise UnsupportedError(refused[0])
    begun = {**_initial(entries.values()), **initial}
    face = interface(entries, prefix, can_stop=can_stop, companion=companion, initial=begun)
    return _write(os.fspath(folder), face, platform, programs(face), weights, force=force)


def refusals(compiled: Compiled) -> list[str]:
    """Why a program cannot be emitted."""
    found = []
    if compiled.fallback:
        found.append(f"emit: no kernel, got {some(compiled.fallback)}, expected one for each node")
    if compiled.external:
        named = some([choice.candidates[-1][0] for choice in compiled.external])
        found.append(f"emit: kernels of shared libraries, got {named}, expected Ingot's own")
    if compiled.choosing and not is_joinable(compiled):
        named = some(compiled.choosing)
        expected = "none beside states" if compiled.graph.states else "native branches of known shapes"
        found.append(f"emit: a run chooses between programs, got {named}, expected {expected}")
    if without := [name for name, data in compiled.graph.initial.items() if data is None]:
        found.append(f"emit: states have no data, got {some(without)}, expected what they begin with")
    return found


def _initial(compiled: Iterable[Compiled]) -> dict[str, np.ndarray]:
    """What the states of programs begin with, by name."""
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
    if taken := {*own, f"{face.prefix}.h", checking} & plain:
        raise InputError(f"option prefix: {min(taken)} is another file here, got {face.prefix!r}, expected another")
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
    """layout.json: of each entry under its name, if there are several."""
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
    """The .npy files of a test vector."""
    files: dict[str, bytes] = {}
    entry = face.entries[0]
    for ports, arrays in ((entry.inputs, vector.inputs), (entry.outputs, vector.outputs)) if vector else ():
        for port in ports:
            file = io.BytesIO()
            np.save(file, platform.ordered(arrays[port.tensor.name]), allow_pickle=False)
            files[os.path.join(face.file(VECTOR), f"{port.identifier}.npy")] = file.getvalue()
    return files


def header(face: Interface, platform: Platform, has_check: bool) -> str:
    """model.h."""
    prefix, macro = face.prefix, face.macro
    stored, entries = face.file("weights.bin"), "".join(f"\n{_declaration(face, entry)}" for entry in face.entries)
    if platform.freestanding:
        stored = f"{prefix}_weights"
        entries = f"""
/* The weights; the linker puts them where constants are. */
extern const uint32_t {stored}[];
{entries}"""
    kept = "; nothing is kept from an earlier run" if face.kept_bytes else ""
    init = (
        f"Makes a state of memory of {prefix}_state_bytes(){kept}. weights: the bytes of {stored}, which stay there "
        f"for as long as runs go on; both {LINE_BYTES}-byte aligned. threads: the most that a run uses, the caller's "
        "among them."
    )
    entries += face.companion.header
    if has_check:
        entries += f"""
/* Runs the model on a test vector. Returns how many elements of its outputs have other bits than they must have. */
long {prefix}_check(void);
"""
    entries += layout_constants(face)
    return f"""\
/* {prefix}.h: emitted by Ingot. {face.file("layout.json")} has the names of the source model. */
#ifndef {macro}_H
#define {macro}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {macro}_WEIGHTS_BYTES {face.weights_bytes} /* the size of {stored} */
#define {macro}_STATE_BYTES {face.state_bytes}
#define {macro}_THREADS {face.threads} /* the most that a run can use */

/* The same, for whoever links without this file. */
size_t {prefix}_weights_bytes(void);
size_t {prefix}_state_bytes(void);

/* What runs work in{" and keep" if face.kept_bytes else ""}. Runs on states of their own may go on at the same time. */
typedef struct {prefix}_state {prefix}_state;

{comment(init, "")}
{prefix}_state *{prefix}_init(void *memory, const void *weights, int threads);
{_watched(prefix) if face.can_stop else ""}{entries}
#ifdef __cplusplus
}}
#endif

#endif
"""


def _watched(prefix: str) -> str:
    return f"""
/* Has runs on a state end early once *stop is not 0; until then, and for NULL, they do not. */
void {prefix}_watch({prefix}_state *state, const volatile int *stop);
"""


def _declaration(face: Interface, entry: Entry) -> str:
    """An entry's structs and function."""
    codes = ["Returns 0"]
    if entry.can_fail:
        codes.append(f"{BAD_INDEX} when an index lay outside its table; the outputs are then meaningless")
    if entry.sizes:
        codes.append(f"{BAD_SIZE} when a size is none that it was made for; then it has done nothing")
    if face.can_stop:
        codes.append(f"{STOPPED} when it was stopped; what it was to write is then half written")
    sizes = "".join(f"  int64_t {size.identifier}; /* {size.least} to {size.most} */\n" for size in entry.sizes)
    about = f"Runs the model once, on rows of elements one behind the other. {', or '.join(codes)}."
    return f"""\
typedef struct {{
{_members(entry.inputs, "inputs", sizes)}}} {face.inputs(entry)};

typedef struct {{
{_members(entry.outputs, "outputs")}}} {face.outputs(entry)};

{comment(about, "")}
{face.signature(entry)};
"""


def _members(ports: Sequence[Port], kind: str, sizes: str = "") -> str:
    """Pointers, then what else there is: sizes, and dims that a run tells."""
    rows = [f"  {declared(port.tensor, port.identifier)}; /* {dims(port.tensor)} */\n" for port in ports]
    told = [
        f"  int64_t {port.dims}[{len(port.tensor.shape)}]; /* of {port.identifier}: set by a run */\n"
        for port in ports
        if port.dims
    ]
    return "".join([*rows, sizes, *told]) or f"  void *none; /* the model has no {kind} */\n"

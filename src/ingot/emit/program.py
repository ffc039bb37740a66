"""The facts of main.c, a command-line program that runs an emitted model on files, and its build."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.emit.interface import Entry, Interface, Port, Size, dims, is_sized, wrapped
from ingot.emit.platform import Platform
from ingot.emit.project import Project, filled, library_headers, library_sources
from ingot.emit.sizes import c_text, functions
from ingot.ir.dim import Atom, Expr, dim_of
from ingot.ir.dtype import DTYPES

VECTOR = "test"  # the folder of the test vector: inputs and expected outputs

# The bits of infinity; larger bits are NaN.
INFINITIES = {"f64": "0x7ff0000000000000", "f32": "0x7f800000", "f16": "0x7c00", "bf16": "0x7f80"}
_SHORT = 60  # letters that fit behind what is declared, in one line
_KINDS = {"f64": "d", "f32": "f"} | {dtype.name: dtype.kind for dtype in DTYPES.values() if dtype.kind in "iu"}


def project(face: Interface, has_vector: bool) -> Project:
    """Return the build of a program around a model; with a test vector `make check` runs it."""
    headers, weights = library_headers(face), face.file("weights.bin")
    check = f"--weights {{folder}}/{weights} --check {{folder}}/{face.file(VECTOR)}" if has_vector else ""
    programs = {face.prefix: [face.file("main.c")]}
    return Project(face, library_sources(face), headers, headers[:2], programs, [weights], check)


def main(face: Interface, platform: Platform) -> str:
    """Return main.c for the only entry."""
    (entry,) = face.entries
    shapes = [
        f"shape_port(&ports[{i}], (const int64_t[]){{{_dims(entry, port)}}}, {len(port.tensor.shape)});"
        for i, port in enumerate(entry.inputs)
        if is_sized(port.tensor)
    ]
    return filled(
        "main.c",
        name=face.prefix,
        file=face.file("main.c"),
        weights=face.file("weights.bin"),
        inputs=len(entry.inputs),
        rows=[_row(port, platform) for port in entry.ports],
        given=_initialiser(entry.inputs, 0, entry.sizes),
        received=_initialiser(entry.outputs, len(entry.inputs)),
        const=face.const(entry),
        sizes=[f'{{"{size.identifier}", {size.least}, {size.most}, -1}}' for size in entry.sizes],
        given_axes=_given_axes(entry),
        functions=functions("".join(shapes)),
        input_shapes=shapes,
        output_shapes=[
            f"shape_port(&ports[{len(entry.inputs) + i}], outputs.{port.dims}, {len(port.tensor.shape)});"
            for i, port in enumerate(entry.outputs)
            if port.dims
        ],
    )


def _initialiser(ports: Sequence[Port], first: int, sizes: Sequence[Size] = ()) -> str:
    """Return the initialiser of the struct of inputs, with sizes, or of outputs."""
    rows = [f".{port.identifier} = ports[{first + i}].data" for i, port in enumerate(ports)]
    rows += [f".{size.identifier} = sizes[{i}].value" for i, size in enumerate(sizes)]
    text = ", ".join(rows or [".none = NULL"])
    return f"{{{text}}}" if len(text) < _SHORT else f"{{\n{wrapped(rows, ', ', ' ' * 6)}\n  }}"


def _row(port: Port, platform: Platform) -> str:
    """Return a port's line in the table of main.c."""
    tensor = port.tensor
    shape = tuple(int(dim) for dim in tensor.shape)  # the largest; a run sets the actual one
    descr = np.lib.format.dtype_to_descr(platform.dtype(tensor.dtype.numpy))
    kind = _KINDS.get(tensor.dtype.name, " ")
    words = [f'"{word}"' for word in (port.identifier, dims(tensor), descr, shape)]
    words += [f"'{kind}'", str(tensor.nbytes // tensor.dtype.itemsize), str(tensor.dtype.itemsize)]
    words += [INFINITIES.get(tensor.dtype.name, "0"), "NULL", "NULL"]
    return "  {" + wrapped(words, ", ", "   ").lstrip() + "},"


def _dims(entry: Entry, port: Port) -> str:
    """Return the dims of an input in a run."""
    symbols = {size.symbol: f"sizes[{i}].value" for i, size in enumerate(entry.sizes)}
    return ", ".join(c_text(dim_of(dim), symbols) for dim in port.tensor.shape)


def _given_axes(entry: Entry) -> list[str]:
    """Return a row for each axis of an input that is size * factor + offset, from which a run learns the size."""
    order = {size.symbol: i for i, size in enumerate(entry.sizes)}
    rows = []
    for i, port in enumerate(entry.inputs):
        for axis, dim in enumerate(map(dim_of, port.tensor.shape)):
            terms = dict(dim.terms) if isinstance(dim, Expr) else {}
            offset = terms.pop((), 0)
            match [*terms.items()]:
                case [((Atom(name, ()),), factor)]:
                    rows.append(f"{{{i}, {axis}, {order[name]}, {factor}, {offset}}}")
    return rows

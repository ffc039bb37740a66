"""Files of a model for a freestanding target, without an operating system: a test vector as C, and a library build."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingot.emit.interface import Interface, Port, dims, wrapped
from ingot.emit.platform import Platform
from ingot.emit.program import INFINITIES
from ingot.emit.project import Project, filled, library_headers, library_sources
from ingot.emit.sizes import sizes_from_shapes
from ingot.emit.weights import words


def library_project(face: Interface, has_vector: bool) -> Project:
    """Return the build of a library for the target of $(CC)."""
    sources = [*library_sources(face), face.file("weights.c"), *([face.file("check.c")] if has_vector else [])]
    headers = library_headers(face)
    return Project(face, sources, headers, headers[:2], freestanding=True)


def check(
    face: Interface, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], platform: Platform
) -> str:
    """Return check.c: a function that runs the model on a test vector."""
    (entry,) = face.entries
    arrays = [_words(port, inputs[port.tensor.name], platform) for port in entry.inputs]
    arrays += [_words(port, outputs[port.tensor.name], platform) for port in entry.outputs]
    given = [f".{port.identifier} = (const void *){port.identifier}" for port in entry.inputs]
    sizes = sizes_from_shapes([port.tensor for port in entry.inputs], inputs)
    given += [f".{size.identifier} = {sizes[size.symbol]}" for size in entry.sizes]
    received = [f".{port.identifier} = (void *)got_{port.identifier}" for port in entry.outputs]
    results = [
        {
            "name": port.identifier,
            "bytes": max(1, port.tensor.nbytes),
            "size": outputs[port.tensor.name].size,
            "itemsize": port.tensor.dtype.itemsize,
            "infinity": INFINITIES.get(port.tensor.dtype.name, "0"),
        }
        for port in entry.outputs
    ]
    return filled(
        "check.c",
        name=face.prefix,
        file=face.file("check.c"),
        face=face,
        entry=entry,
        arrays=arrays,
        outputs=results,
        given=wrapped(given or [".none = 0"], ", ", " " * 6),
        received=wrapped(received, ", ", " " * 6),
        little=platform.byte_order == "little",
    )


def _words(port: Port, array: np.ndarray, platform: Platform) -> str:
    content = platform.ordered(array).reshape(-1).view(np.uint8)
    content = content if content.size else np.zeros(1, np.uint8)
    declared = f"static _Alignas(64) const uint32_t {port.identifier}"
    return f"/* {dims(port.tensor)} */\n{words(content, declared, platform)}"

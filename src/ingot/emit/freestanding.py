"""Files of a model for a freestanding target, without an operating system: a test vector as C, and a library build."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingot.emit.interface import Interface, Port, dims, wrapped
from ingot.emit.platform import Platform
from ingot.emit.program import INFINITIES
from ingot.emit.project import Project, library_headers, library_sources
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
    buffers = [f"static _Alignas(64) char {_got(port)}[{max(1, port.tensor.nbytes)}];" for port in entry.outputs]
    given = [f".{port.identifier} = (const void *){port.identifier}" for port in entry.inputs]
    sizes = sizes_from_shapes([port.tensor for port in entry.inputs], inputs)
    given += [f".{size.identifier} = {sizes[size.symbol]}" for size in entry.sizes]
    received = [f".{port.identifier} = (void *){_got(port)}" for port in entry.outputs]
    compared = "".join(
        f"  count += differences({_got(port)}, {port.identifier}, {outputs[port.tensor.name].size},"
        f" {port.tensor.dtype.itemsize}, {INFINITIES.get(port.tensor.dtype.name, '0')});\n"
        for port in entry.outputs
    )
    return f"""\
/* {face.file("check.c")}: emitted by Ingot: inputs, and the outputs that the model must compute. */
#include "{face.prefix}.h"

{"".join(arrays)}
{chr(10).join(buffers)}
static _Alignas(64) char memory[{face.macro}_STATE_BYTES];

/* The bits of an element. */
static uint64_t element(const unsigned char *data, int size) {{
  uint64_t bits = 0;
  for (int i = 0; i < size; i++) bits |= (uint64_t)data[i] << 8 * {_byte_position(platform)};
  return bits;
}}

/* How many elements differ; two NaN, whose bits are above those of infinity, count as equal. */
static long differences(const void *got, const void *expected, long count, int size, uint64_t infinity) {{
  const uint64_t magnitude = ((uint64_t)1 << (8 * size - 1)) - 1;
  long different = 0;
  for (long i = 0; i < count; i++) {{
    const uint64_t a = element((const unsigned char *)got + i * size, size);
    const uint64_t b = element((const unsigned char *)expected + i * size, size);
    different += a != b && !(infinity && (a & magnitude) > infinity && (b & magnitude) > infinity);
  }}
  return different;
}}

long {face.prefix}_check(void) {{
  const {face.inputs(entry)} inputs = {{
{wrapped(given or [".none = 0"], ", ", " " * 6)}
  }};
  {face.const(entry)}{face.outputs(entry)} outputs = {{
{wrapped(received, ", ", " " * 6)}
  }};
  {face.prefix}_state *const state = {face.prefix}_init(memory, {face.prefix}_weights, 1);
  long count = {face.function(entry)}(state, &inputs, &outputs);
{compared}  return count;
}}
"""


def _byte_position(platform: Platform) -> str:
    return "i" if platform.byte_order == "little" else "(size - 1 - i)"


def _got(port: Port) -> str:
    return f"got_{port.identifier}"


def _words(port: Port, array: np.ndarray, platform: Platform) -> str:
    content = platform.ordered(array).reshape(-1).view(np.uint8)
    content = content if content.size else np.zeros(1, np.uint8)
    declared = f"static _Alignas(64) const uint32_t {port.identifier}"
    return f"/* {dims(port.tensor)} */\n{words(content, declared, platform)}"

"""Write a model's weights: weights.bin, or weights.c for a freestanding platform."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ingot.emit.interface import Interface, wrapped
from ingot.emit.platform import Platform
from ingot.errors import UnsupportedError, some
from ingot.lower.lowered import Lowered
from ingot.lower.packed_weight import PackedWeight
from ingot.support.files import written

_WORD = 4  # bytes of a word of weights.c


class WeightSource(Protocol):
    """A source of the bytes of weights, such as a session's `weights`."""

    def array(self, packed_weight: PackedWeight) -> np.ndarray:
        """Return the bytes of a packed weight as a flat array."""

    def hash(self, array: np.ndarray) -> int:
        """Return `ingot_hash` of an array's bytes."""


def check_byte_order(lowered: Lowered, platform: Platform) -> None:
    """Raise UnsupportedError for quantized weights on a big-endian platform."""
    packed_weights = ((tensor.name, tensor.packed_weight) for tensor in lowered.tensors.values())
    coded = [
        name
        for name, packed_weight in packed_weights
        if packed_weight and packed_weight.format and packed_weight.format.is_quantized
    ]
    if platform.byte_order != "little" and coded:
        raise UnsupportedError(
            f"emit: quantized weights are little-endian, got {some(coded)} for a"
            f" {platform.byte_order}-endian machine, expected weights of one dtype each"
        )


def write_binary(path: str, face: Interface, weights: WeightSource, platform: Platform) -> int:
    """Write weights.bin; return its hash."""
    with written(path) as file:
        for offset, array in _placed(face, weights, platform):
            file.seek(offset)
            file.write(array.data)
        file.truncate(face.weights_bytes)
    return weights.hash(np.memmap(path, np.uint8, "r") if face.weights_bytes else np.empty(0, np.uint8))


def write_source(path: str, face: Interface, weights: WeightSource, platform: Platform) -> int:
    """Write weights.c; return the hash of its bytes."""
    whole = np.zeros(max(face.weights_bytes, _WORD), np.uint8)
    for offset, array in _placed(face, weights, platform):
        whole[offset : offset + array.size] = array
    with written(path) as file:
        file.write(
            f"""\
/* {os.path.basename(path)}: emitted by Ingot: the weights, as words of a {platform.byte_order}-endian machine.
 * A linker may leave them in read-only memory. */
#include "{face.prefix}.h"

{words(whole, f"_Alignas(64) const uint32_t {face.prefix}_weights", platform)}""".encode()
        )
    return weights.hash(whole[: face.weights_bytes])


def words(content: np.ndarray, declared: str, platform: Platform) -> str:
    """Return the definition of an array of words with these bytes, zero-padded."""
    padded = np.concatenate([content, np.zeros(-content.size % _WORD, np.uint8)])
    numbers = padded.view(platform.dtype(np.dtype(np.uint32)))
    rows = wrapped((f"0x{number:08x}" for number in numbers.tolist()), ", ", "  ")
    return f"{declared}[{numbers.size}] = {{\n{rows}\n}};\n"


def _placed(face: Interface, weights: WeightSource, platform: Platform) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the offset and bytes of each weight, once if entries share it, and of the initial values of states."""
    placed = {
        entry.planned.addresses[id].offset: tensor
        for entry in face.entries
        for id, tensor in entry.lowered.tensors.items()
        if tensor.packed_weight is not None
    }
    for offset, tensor in sorted(placed.items()):
        assert tensor.packed_weight is not None
        content = np.ascontiguousarray(weights.array(tensor.packed_weight)).reshape(-1).view(np.uint8)
        yield offset, _ordered(content, max(tensor.dtype.bits // 8, 1), platform)
    for begun in face.beginnings:
        content = np.ascontiguousarray(begun.data).reshape(-1).view(np.uint8)
        yield begun.stored, _ordered(content, begun.data.itemsize, platform)


def _ordered(content: np.ndarray, itemsize: int, platform: Platform) -> np.ndarray:
    """Return bytes of elements in the platform's order."""
    if platform.byte_order == "little":
        return content
    return content.view(f"u{itemsize}").byteswap().view(np.uint8)

"""What the bytes of a model's weights hold: which model it is, and whether its numbers are numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingot.load.hf.folder import Folder
from ingot.support.files import release

_SAMPLE_BYTES = 4096

# Bits of a float's exponent: all set for an infinity or NaN, which has a fraction besides.
_EXPONENTS = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F80_0000, "f64": 0x7FF0_0000_0000_0000}


def fingerprint(folder: Folder) -> str:
    """64 hexadecimal digits that name a model: its configuration, a template of its own, and each weight's name, dtype,
    shape and a sample.

    The sample is the first, middle and last 4 KiB of a weight, so that three pages of each are read and not gigabytes.
    Training, merging and converting change every matrix nearly everywhere; what changes a single row may go unnoticed.
    """
    digest = hashlib.sha256(json.dumps(folder.config, sort_keys=True).encode())
    if folder.own_template is not None:
        digest.update(folder.own_template[0].encode())
    for name in sorted(folder.tensors):
        tensor = folder.tensors[name]
        digest.update(json.dumps([name, tensor.dtype.name, tensor.shape]).encode())
        stored = np.frombuffer(tensor.content, np.uint8, tensor.nbytes, tensor.offset)
        last = max(0, stored.size - _SAMPLE_BYTES)
        for start in sorted({0, last // 2, last}):
            sample = stored[start : start + _SAMPLE_BYTES]
            digest.update(sample.tobytes())
            release(sample)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """A weight with elements that are no finite numbers, and how many."""

    name: str
    nans: int
    infinities: int

    def __str__(self) -> str:
        return f"weight {self.name!r} holds {self.nans} NaN and {self.infinities} infinite elements"


def nonfinite_tensors(folder: Folder) -> Iterator[Nonfinite]:
    """The weights that hold NaN or infinities, as they are found; reads every byte, some megabytes at a time."""
    for name, tensor in folder.tensors.items():
        exponent = _EXPONENTS.get(tensor.dtype.name)
        if exponent is None:
            continue
        bits = np.dtype(f"u{tensor.dtype.itemsize}")
        magnitude = np.array((1 << 8 * tensor.dtype.itemsize - 1) - 1, bits)
        nans = infinities = 0
        for piece in tensor.pieces():
            magnitudes = piece.view(bits) & magnitude
            nans += int(np.count_nonzero(magnitudes > exponent))
            infinities += int(np.count_nonzero(magnitudes == exponent))
        if nans or infinities:
            yield Nonfinite(name, nans, infinities)

"""Inspect the bytes of a model's weights: its fingerprint, and its non-finite elements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingot.load.hf.folder import Folder
from ingot.support.files import release

_SAMPLE_BYTES = 4096

# The bits of infinity; those of a NaN are more. Floats of 8 bits have one NaN, and no infinity.
_INFINITIES = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F80_0000, "f64": 0x7FF0_0000_0000_0000}
_NANS = {"f8e4m3fn": 0x7F}


def fingerprint(folder: Folder) -> str:
    """Return 64 hexadecimal digits that identify a model: a hash of its configuration, its own template if any, and
    each weight's name, dtype, shape and sampled bytes.

    The sample is the first, middle and last 4 KiB of a weight, so that only three pages of each are read. Training,
    merging and converting change nearly all elements of every matrix; a change of a single row may go unnoticed.
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
    """A weight with non-finite elements, and their counts."""

    name: str
    nans: int
    infinities: int

    def __str__(self) -> str:
        return f"weight {self.name!r} holds {self.nans} NaN and {self.infinities} infinite elements"


def nonfinite_tensors(folder: Folder) -> Iterator[Nonfinite]:
    """Yield the weights that contain NaN or infinities; reads every byte, some megabytes at a time."""
    for name, tensor in folder.tensors.items():
        infinity, nan = _INFINITIES.get(tensor.dtype.name), _NANS.get(tensor.dtype.name)
        if infinity is None and nan is None:
            continue
        bits = np.dtype(f"u{tensor.dtype.itemsize}")
        magnitude = np.array((1 << 8 * tensor.dtype.itemsize - 1) - 1, bits)
        nans = infinities = 0
        for piece in tensor.pieces():
            magnitudes = piece.view(bits) & magnitude
            if infinity is None:
                nans += int(np.count_nonzero(magnitudes == nan))
            else:
                nans += int(np.count_nonzero(magnitudes > infinity))
                infinities += int(np.count_nonzero(magnitudes == infinity))
        if nans or infinities:
            yield Nonfinite(name, nans, infinities)

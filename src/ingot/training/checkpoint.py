"""Checkpoints: all states of a training graph in a safetensors file, with a digest of the graph."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping

import numpy as np

from ingot.errors import LoadError
from ingot.ir.graph import Graph
from ingot.ir.text import dump
from ingot.load import expect_exists
from ingot.run.library import content_hash
from ingot.support.files import release, written

_DIGEST = "ingot.graph"  # u8[32], stored with the states
_LENGTH_BYTES = 8  # of the header's length, at the start of a file


def digest(graph: Graph, trained: Collection[str], settings: str) -> np.ndarray:
    """Return the digest of a model's graph, its frozen weights and the settings of training; u8[32].

    Pages of mapped files are released after they are read.
    """
    found = hashlib.sha256((dump(graph, has_sources=False) + settings).encode())
    for name, value in graph.values.items():
        if value.kind == "weight" and value.data is not None and name not in trained:
            found.update(f"{name} {content_hash(np.ascontiguousarray(value.data))}".encode())
            release(value.data)
    return np.frombuffer(found.digest(), np.uint8)


def write(path: str | os.PathLike[str], of: np.ndarray, states: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint atomically; of: its digest, see `digest`. Raises OutputError."""
    with written(path) as file:
        file.write(_content(of, states))


def header(of: np.ndarray, states: Mapping[str, np.ndarray]) -> bytes:
    """Return the JSON header of a checkpoint, which follows its length."""
    content = _content(of, states)
    return content[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")]


def _content(of: np.ndarray, states: Mapping[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    return save({name: np.asarray(array, order="C") for name, array in states.items()} | {_DIGEST: of})


def read(path: str | os.PathLike[str], of: np.ndarray, states: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Read the states of a checkpoint; of: the `digest` that it must have; states: arrays of the expected types.

    Raises MissingFileError for a missing file; LoadError for a folder, a file that is no checkpoint or truncated, and a
    checkpoint of another graph; LimitError for a header that is too large; OSError if the file cannot be opened.
    """
    from ingot.load.hf.safetensors import read_safetensors

    name = os.fspath(path)
    expect_exists(name)
    if os.path.isdir(name):
        raise LoadError(f"{name}: cannot be resumed, got a folder, expected the file of a checkpoint")
    with open(name, "rb") as file:
        stored = read_safetensors(file.fileno(), name)
    found = {key: tensor.array() for key, tensor in stored.items()}
    written_of = found.pop(_DIGEST, None)
    if written_of is None or not np.array_equal(written_of, of):
        what = (
            "no checkpoint of a trainer" if written_of is None else "a checkpoint of another model, loss or optimizer"
        )
        raise LoadError(f"{name}: cannot be resumed, got {what}, expected one of this trainer")
    types = {key: (array.dtype, array.shape) for key, array in states.items()}
    if types != {key: (array.dtype, array.shape) for key, array in found.items()}:
        raise LoadError(f"{name}: states differ, got {sorted(found)[:20]}, expected {sorted(types)[:20]}")
    return found

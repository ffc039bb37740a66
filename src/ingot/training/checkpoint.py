"""Checkpoints: every state of a training graph in a safetensors file, with what says which graph it is of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping

import numpy as np

from ingot.errors import LoadError
from ingot.ir.graph import Graph
from ingot.ir.text import dump
from ingot.load import expect_there
from ingot.run.library import content_hash
from ingot.support.files import release, written

_DIGEST = "ingot.graph"  # u8[32], beside the states
_LENGTH_BYTES = 8  # of what a file begins with


def digest(graph: Graph, trained: Collection[str], settings: str) -> np.ndarray:
    """What says which model a checkpoint is of, with the weights that are not trained, and how it is trained; u8[32].

    Weights of mapped files are let go of as they have been read.
    """
    found = hashlib.sha256((dump(graph, has_sources=False) + settings).encode())
    for name, value in graph.values.items():
        if value.kind == "weight" and value.data is not None and name not in trained:
            found.update(f"{name} {content_hash(np.ascontiguousarray(value.data))}".encode())
            release(value.data)
    return np.frombuffer(found.digest(), np.uint8)


def write(path: str | os.PathLike[str], of: np.ndarray, states: Mapping[str, np.ndarray]) -> None:
    """Writes a checkpoint, whole or not at all; of: see `digest`. Raises OutputError."""
    with written(path) as file:
        file.write(_content(of, states))


def header(of: np.ndarray, states: Mapping[str, np.ndarray]) -> bytes:
    """The JSON that a checkpoint begins with, behind its length."""
    content = _content(of, states)
    return content[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")]


def _content(of: np.ndarray, states: Mapping[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    return save({name: np.asarray(array, order="C") for name, array in states.items()} | {_DIGEST: of})


def read(path: str | os.PathLike[str], of: np.ndarray, states: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The states of a checkpoint; of: the `digest` that it must have; states: arrays of their types.

    Raises MissingFileError where nothing is, LoadError for a folder, what is no checkpoint, is cut short, or is of
    another graph, LimitError for a header that is too large, and OSError when it cannot be opened.
    """
    from ingot.load.hf.safetensors import read_safetensors

    name = os.fspath(path)
    expect_there(name)
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

"""Checkpoints: every state of a training graph in a safetensors file, with what says which graph it is of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

import numpy as np

from ingot.errors import LoadError
from ingot.files import written
from ingot.ir import Graph
from ingot.load.hf.safetensors import read_safetensors
from ingot.text import dump

_DIGEST = "ingot.graph"  # u8[32], beside the states


def _digest(graph: Graph) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(dump(graph).encode()).digest(), np.uint8)


def write(path: str | os.PathLike[str], graph: Graph, states: Mapping[str, np.ndarray]) -> None:
    """Writes a checkpoint, whole or not at all. Raises OutputError."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(array, order="C") for name, array in states.items()} | {_DIGEST: _digest(graph)}
    with written(path) as file:
        file.write(save(arrays))


def read(path: str | os.PathLike[str], graph: Graph) -> dict[str, np.ndarray]:
    """The states of a checkpoint of a training graph.

    Raises LoadError for what is no checkpoint, is damaged, or is of another graph, LimitError for a header that is too
    large, and OSError when it cannot be opened.
    """
    name = os.fspath(path)
    with open(name, "rb") as file:
        stored = read_safetensors(file.fileno(), name)
    found = {key: tensor.array() for key, tensor in stored.items()}
    digest = found.pop(_DIGEST, None)
    if digest is None or not np.array_equal(digest, _digest(graph)):
        what = "no checkpoint of a trainer" if digest is None else "a checkpoint of another model, loss or optimizer"
        raise LoadError(f"{name}: cannot be resumed, got {what}, expected one of this trainer")
    types = {key: (graph.type(key).dtype.numpy, graph.type(key).shape) for key in graph.states}
    if types != {key: (array.dtype, array.shape) for key, array in found.items()}:
        raise LoadError(f"{name}: states differ, got {sorted(found)[:20]}, expected {sorted(types)[:20]}")
    return found

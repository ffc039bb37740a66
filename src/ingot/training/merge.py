"""Write a model folder with trained weights, or with adapters merged into the weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from ingot.errors import InputError, OutputError
from ingot.load.gguf import GgufModel
from ingot.load.hf import Folder
from ingot.load.hf.folder import SINGLE
from ingot.load.hf.safetensors import StoredTensor
from ingot.load.hf.writer import SafetensorsWriter, copy_others
from ingot.support.files import written, written_folder
from ingot.training.adapters import Adapter


def merge(
    folder: Folder,
    target: str | os.PathLike[str],
    trained: Mapping[str, np.ndarray],
    adapters: Sequence[Adapter] = (),
    scale: float = 1.0,
) -> None:
    """Write a copy of a folder with trained weights, atomically; each weight keeps its dtype.

    trained: arrays by name, of weights or of the factors of adapters. scale: the factor of the adapters' products,
    which are added to their matrices.

    Raises OutputError for a target that exists or cannot be written, and the errors of `expect_mergeable` and of
    reading the folder.
    """
    if os.path.lexists(target):
        raise OutputError(f"{os.fspath(target)}: exists, expected a free name")
    expect_mergeable(folder, adapters)
    by_matrix = {adapter.matrix: adapter for adapter in adapters}
    with written_folder(target, ()) as temporary:
        with written(temporary / SINGLE) as file:
            writer = SafetensorsWriter(file, folder.tensors.values())
            for name, tensor in folder.tensors.items():
                writer.add(name, _merged(tensor, trained, by_matrix.get(name), scale))
            writer.finish()
        copy_others(folder, temporary)


def expect_mergeable(folder: Folder, adapters: Sequence[Adapter] = ()) -> None:
    """Raise InputError for a GGUF file, and for adapters of quantized weights."""
    if isinstance(folder, GgufModel):
        raise InputError(f"merge: not possible into a GGUF file, got {folder.path}, expected a model folder")
    stored = {name for name, tensor in folder.tensors.items() if tensor.dtype.kind == "f"}
    if quantized := sorted({adapter.matrix for adapter in adapters} - stored):
        raise InputError(f"merge: not possible into quantized weights, got {quantized[:20]}, expected float weights")


def _merged(
    tensor: StoredTensor, trained: Mapping[str, np.ndarray], adapter: Adapter | None, scale: float
) -> np.ndarray:
    stored = tensor.array()
    if tensor.name in trained:
        return trained[tensor.name].astype(stored.dtype)
    if adapter is None:
        return stored
    change = scale * (trained[adapter.b] @ trained[adapter.a])
    return (stored.astype(np.float32) + (change.T if adapter.transposed else change)).astype(stored.dtype)

"""Language models in their published formats: a Hugging Face folder, or one GGUF file."""

from __future__ import annotations

import os

from ingot.errors import InputError, KindError
from ingot.load import expect_exists
from ingot.load.gguf import GgufModel, is_gguf
from ingot.load.hf import Folder, read_folder
from ingot.load.hub import located


def read_model(path: str | os.PathLike[str], template: str | os.PathLike[str] | None = None) -> Folder:
    """Read a model: check its configuration and the headers of its weights; no weight is read.

    path: a path, or the name of a model, see `ingot.load.hub`. template: see `Folder`. Raises LoadError,
    UnsupportedError, LimitError; MissingFileError for a path that does not exist, InputError for a path that is neither
    format, and the errors of `located`.
    """
    if not isinstance(path, (str, os.PathLike)):
        expected = "expected the path or name of a language model"
        raise KindError(f"folder: cannot be read, got {type(path).__name__}, {expected}")
    path = located(path)
    expect_exists(path)
    if not is_gguf(path):
        if not os.path.isdir(path):
            expected = "expected a model folder or a GGUF file; ingot.InferenceSession, or `ingot run`, reads others"
            raise InputError(f"{path}: no language model, got a file, {expected}")
        return read_folder(path, template)
    model = GgufModel(path, template)
    _ = model.config, model.tensors
    return model

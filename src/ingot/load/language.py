"""Language models as they are published: a Hugging Face folder, or one GGUF file."""

from __future__ import annotations

import os

from ingot.errors import InputError, KindError
from ingot.load import expect_there
from ingot.load.gguf import GgufModel, is_gguf
from ingot.load.hf import Folder, read_folder
from ingot.load.hub import located


def read_model(path: str | os.PathLike[str], template: str | os.PathLike[str] | None = None) -> Folder:
    """A model with its configuration and the headers of its weights checked; no weight is read.

    path: or the name of a model, see `ingot.load.hub`. template: see `Folder`. Raises LoadError,
    UnsupportedError, LimitError; MissingFileError for a path with nothing there, InputError for what is neither; what
    `located` raises.
    """
    if not isinstance(path, (str, os.PathLike)):
        expected = "expected the path or name of a language model"
        raise KindError(f"folder: cannot be read, got {type(path).__name__}, {expected}")
    path = located(path)
    expect_there(path)
    if not is_gguf(path):
        if not os.path.isdir(path):
            expected = "expected a model folder or a GGUF file; ingot.InferenceSession, or `ingot run`, takes others"
            raise InputError(f"{path}: no language model, got a file, {expected}")
        return read_folder(path, template)
    model = GgufModel(path, template)
    _ = model.config, model.tensors
    return model

"""Language models as they are published: a Hugging Face folder, or one GGUF file."""

from __future__ import annotations

import os

from ingot.load.gguf import GgufModel, is_gguf
from ingot.load.hf import Folder, read_folder
from ingot.load.hub import located


def read_model(path: str | os.PathLike[str]) -> Folder:
    """A model with its configuration and the headers of its weights checked; no weight is read.

    path: or the name of a model, see `ingot.load.hub`. Raises LoadError, UnsupportedError, LimitError;
    FileNotFoundError or NotADirectoryError for what is neither; what `located` raises.
    """
    path = located(path)
    if not is_gguf(path):
        return read_folder(path)
    model = GgufModel(path)
    _ = model.config, model.tensors
    return model

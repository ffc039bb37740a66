"""Folders in the layout of the Hugging Face hub: `config.json`, `*.safetensors`, a tokenizer."""

from ingot.load.hf.folder import Folder, read_folder
from ingot.load.hf.language_model import (
    LanguageModel,
    kind_of,
    labels_of,
    load_classifier,
    load_dense,
    load_language_model,
    longest_context,
    misfits,
)
from ingot.load.hf.weights import Misfit

__all__ = [
    "Folder", "LanguageModel", "Misfit", "kind_of", "labels_of", "load_classifier", "load_dense",
    "load_language_model", "longest_context", "misfits", "read_folder",
]  # fmt: skip

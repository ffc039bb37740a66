"""A language model in one GGUF file, with the interface of a model folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ingot.errors import LimitError, LoadError
from ingot.load.gguf.config import Values, architecture_of, config_of
from ingot.load.gguf.file import read_gguf
from ingot.load.gguf.tensors import tensors_of
from ingot.load.gguf.tokenizer import tokenizer_files
from ingot.load.hf.folder import Folder
from ingot.load.hf.safetensors import StoredTensor


class GgufModel(Folder):
    """A GGUF file; the equivalents of a folder's files are built from its metadata on first use.

    template: see `Folder`. Raises as `read_gguf` does.
    """

    def __init__(self, path: str | os.PathLike[str], template: str | os.PathLike[str] | None = None):
        self.path = os.fspath(path)
        self.template = template
        self.file = read_gguf(path)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The equivalent of config.json. Raises LoadError, UnsupportedError, LimitError."""
        return config_of(self.file, self._values)

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Every tensor by its name in templates. Raises LoadError, UnsupportedError."""
        tokens, rows = self.file.metadata.entries.get("tokenizer.ggml.tokens"), self.config["vocab_size"]
        if tokens is not None and tokens.is_array and len(tokens.value) > rows:
            raise LoadError(f"{self.path}: tensor 'token_embd.weight': got {rows} rows for {len(tokens.value)} tokens")
        return tensors_of(self.file, self._values)

    @cached_property
    def _values(self) -> Values:
        return Values(self.file, architecture_of(self.file))

    def where(self, name: str) -> str:
        """Return the name of the equivalent of a folder's file, for errors."""
        return f"{self.path}: metadata as {name}"

    def location(self, name: str) -> str:
        """Return the key of the equivalent of a folder's file."""
        return {"tokenizer.json": "tokenizer.ggml.tokens", "chat_template.jinja": "tokenizer.chat_template"}[name]

    @property
    def has_rows_of_outputs(self) -> bool:
        """Whether all matrices are stored as [outputs, inputs]."""
        return True

    def templates(self) -> list[str]:
        """Return no names: metadata contain all templates."""
        return []

    def has(self, name: str) -> bool:
        """Return whether the metadata contain the equivalent of a folder's file."""
        return name == "tokenizer.json" and "tokenizer.ggml.tokens" in self.file.metadata

    def text(self, name: str, limit: int) -> str | None:
        """Return the equivalent of `Folder.text`."""
        document = self.json(name, limit)
        if document is None:
            return None
        text = json.dumps(document, ensure_ascii=False)
        size = len(text.encode())
        if size > limit:
            raise LimitError(f"{self.where(name)}: too large, got {size} bytes, expected at most {limit}")
        return text

    def json(self, name: str, limit: int) -> dict[str, Any] | None:
        """Return the equivalent of `Folder.json`."""
        return self._tokenizer_files.get(name) if "tokenizer.ggml.tokens" in self.file.metadata else None

    @cached_property
    def _tokenizer_files(self) -> dict[str, dict[str, Any]]:
        return tokenizer_files(self.file.metadata)

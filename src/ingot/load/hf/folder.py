"""A model folder: the files that are read from it, and the checks that confine them to it.

Links are followed only to files below the folder itself and, for a snapshot in the hub's cache, below the folders where
that cache stores contents. Pickled weights are never read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from ingot.errors import LimitError, LoadError
from ingot.load import expect_exists
from ingot.load.hf.config import MAX_CONFIG_BYTES, parse_config
from ingot.load.hf.document import MAX_DOCUMENT_BYTES
from ingot.load.hf.safetensors import StoredTensor, listed, read_safetensors
from ingot.load.hf.strict_json import parse_object, shown
from ingot.support.files import open_regular

OWN_TEMPLATE = "ingot.yaml"
TEMPLATES = "additional_chat_templates"  # a folder in a model folder
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 << 20  # of the index of weights
MAX_SHARDS = 10_000  # files of weights
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Folder:
    """A model folder; each file is read and checked on first use. template: the file of a template to use instead of
    the folder's or Ingot's.

    Raises FileNotFoundError or NotADirectoryError for a path that is no folder.
    """

    def __init__(self, path: str | os.PathLike[str], template: str | os.PathLike[str] | None = None):
        self.path = os.fspath(path)
        self.template = template
        self._folder = os.path.realpath(self.path, strict=True)
        self._names = frozenset(os.listdir(self._folder))
        self._roots = _roots_of(self._folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.json`. Raises LoadError, LimitError."""
        content = self.content("config.json", MAX_CONFIG_BYTES)
        if content is None:
            expected = "expected a folder as save_pretrained of transformers writes it, or a GGUF file"
            raise LoadError(f"{self.path}: not a model folder, it has no config.json, {expected}")
        return parse_config(content, self.where("config.json"))

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Every tensor by name, from the headers alone. Raises LoadError, UnsupportedError, LimitError."""
        if SINGLE in self._names:
            return self._read_shard(SINGLE)
        if INDEX in self._names:
            return self._read_sharded()
        pickled = sorted(name for name in self._names if name.endswith(_PICKLED))
        if pickled:
            raise LoadError(
                f"{self.path}: weights are pickled ({listed(pickled)}), which runs code when read, so they are not"
                f" read; convert them to {SINGLE} with save_pretrained of transformers"
            )
        raise LoadError(f"{self.path}: no weights, expected {SINGLE} or {INDEX}")

    @property
    def own_template(self) -> tuple[str, str] | None:
        """The text of the given template, or of the one in the folder, and its name in errors; None without one.

        Raises LoadError, LimitError, MissingFileError.
        """
        if self.template is None:
            text = self.text(OWN_TEMPLATE, MAX_DOCUMENT_BYTES)
            return None if text is None else (text, self.where(OWN_TEMPLATE))
        where = os.fspath(self.template)
        expect_exists(where)
        with open(where, "rb") as file:
            content = file.read(MAX_DOCUMENT_BYTES + 1)
        try:
            return content.decode("utf-8"), where
        except UnicodeDecodeError as error:
            raise LoadError(f"{where}: not UTF-8, {error.reason} at byte {error.start}") from error

    @property
    def has_rows_of_outputs(self) -> bool:
        """Whether all matrices are stored as [outputs, inputs], whatever the template specifies."""
        return False

    @property
    def names(self) -> frozenset[str]:
        """The names of the files in the folder."""
        return self._names

    def templates(self) -> list[str]:
        """Return the names, `additional_chat_templates/tool_use.jinja`, of the chat templates in their own folder.

        Raises LoadError for a link that leads outside.
        """
        if TEMPLATES not in self._names or not os.path.isdir(os.path.join(self._folder, TEMPLATES)):
            return []
        self._located(TEMPLATES)
        names = os.listdir(os.path.join(self._folder, TEMPLATES))
        return [f"{TEMPLATES}/{name}" for name in sorted(names) if name.endswith(".jinja")]

    def has(self, name: str) -> bool:
        """Return whether the folder has a file of that name."""
        return name in self._names

    def text(self, name: str, limit: int) -> str | None:
        """Return the text of a file of the folder, at most `limit` bytes; None when there is none.

        Raises LoadError when it is not UTF-8 or not a regular file of the folder, LimitError when it is too large.
        """
        content = self.content(name, limit)
        if content is None:
            return None
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise LoadError(f"{self.where(name)}: not UTF-8, {error.reason} at byte {error.start}") from error

    def json(self, name: str, limit: int) -> dict[str, Any] | None:
        """Return the JSON object in a file of the folder; None when there is none. Raises as `text`, and LoadError for
        JSON that is not strict.
        """
        content = self.content(name, limit)
        return None if content is None else parse_object(content, self.where(name))

    def where(self, name: str) -> str:
        """Return the name of a file of the folder for errors."""
        return os.path.join(self.path, name)

    def location(self, name: str) -> str:
        """Return the location, for an error, of the content of the file `name`."""
        return name

    def _open(self, name: str) -> int:
        root, relative = self._located(name)
        return open_regular(root, relative, self.where(name))

    def _located(self, name: str) -> tuple[str, list[str]]:
        """Return the root that contains a file or folder, and the path in it, links followed. Raises LoadError."""
        real = os.path.realpath(os.path.join(self._folder, name))
        for root in self._roots:
            relative = os.path.relpath(real, root).split(os.sep)
            if relative[0] != os.pardir:
                return root, relative
        raise LoadError(f"{self.where(name)}: a link that leads outside the folder, to {shown(real)}")

    def content(self, name: str, limit: int) -> bytes | None:
        """Return the bytes of a file of the folder or of a folder in it, at most `limit`; None when there is none.
        Raises LoadError, LimitError.
        """
        top, _, rest = name.partition("/")
        if top not in self._names or (rest and not os.path.lexists(os.path.join(self._folder, name))):
            return None
        descriptor = self._open(name)
        with open(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            content = file.read(min(size, limit) + 1)  # read() allocates a buffer of this size at once
        if len(content) > limit:
            raise LimitError(f"{self.where(name)}: too large, got {size} bytes, expected at most {limit}")
        return content

    def _read_shard(self, name: str) -> dict[str, StoredTensor]:
        descriptor = self._open(name)
        try:
            return read_safetensors(descriptor, self.where(name))
        finally:
            os.close(descriptor)

    def _read_sharded(self) -> dict[str, StoredTensor]:
        where = self.where(INDEX)
        content = self.content(INDEX, MAX_INDEX_BYTES)
        assert content is not None
        files = _weight_map(parse_object(content, where), where)
        problems = [
            f"{shown(name)} does not exist" for name in dict.fromkeys(files.values()) if name not in self._names
        ]
        tensors: dict[str, StoredTensor] = {}
        for file in sorted(set(files.values()) & self._names):
            for name, tensor in self._read_shard(file).items():
                if name in tensors:
                    problems.append(f"tensor {shown(name)} is in {tensors[name].path} and in {tensor.path}")
                elif name not in files:
                    problems.append(f"tensor {shown(name)} of {file} is not listed")
                elif files[name] != file:
                    problems.append(f"tensor {shown(name)} is in {file}, expected in {files[name]}")
                tensors[name] = tensor
        problems += [
            f"tensor {shown(name)} is not in {file}"
            for name, file in files.items()
            if file in self._names and name not in tensors
        ]
        if problems:
            raise LoadError(f"{where}: {listed(problems)}")
        return tensors


def read_folder(path: str | os.PathLike[str], template: str | os.PathLike[str] | None = None) -> Folder:
    """Open a model folder, and check its configuration and the headers of its weights; no weight is read. template: see
    `Folder`.

    Raises LoadError, UnsupportedError, LimitError; MissingFileError, or NotADirectoryError for a path that is no
    folder.
    """
    expect_exists(os.fspath(path))
    folder = Folder(path, template)
    _ = folder.config, folder.tensors
    return folder


def weight_files(names: Collection[str]) -> tuple[str, ...]:
    """Return which of a folder's file names are weights: one file, or all files that an index may list."""
    if SINGLE in names:
        return (SINGLE,)
    if INDEX not in names:
        return ()
    files = sorted(filter(_is_file_name, names))  # some folders also have copies of the weights in other files
    return tuple([name for name in files if name.startswith("model-")] or files)


def is_whole(path: str) -> bool:
    """Return whether a folder has a configuration and every file of its weights. Raises LoadError for a bad index."""

    def has(name: str) -> bool:
        return os.path.isfile(os.path.join(path, name))

    if not has("config.json") or not has(INDEX):
        return has("config.json") and has(SINGLE)
    folder = Folder(path)
    content = folder.content(INDEX, MAX_INDEX_BYTES)
    assert content is not None
    where = folder.where(INDEX)
    return has(SINGLE) or all(map(has, _weight_map(parse_object(content, where), where).values()))


def _roots_of(folder: str) -> list[str]:
    """Return the folders that may contain the files of a model folder, itself first.

    The hub's cache stores snapshots as links: `models--*/snapshots/*/config.json` leads to `models--*/blobs/*`, and
    this may lead to `blobs/*/*` of the whole cache, which then contains a marker file.
    """
    revisions, _ = os.path.split(folder)
    repository, name = os.path.split(revisions)
    if name != "snapshots" or not os.path.basename(repository).startswith("models--"):
        return [folder]
    shared = os.path.join(os.path.dirname(repository), "blobs")
    is_marked = os.path.isfile(os.path.join(shared, ".huggingface-shared-blobs"))
    return [folder, os.path.join(repository, "blobs"), *([shared] if is_marked else [])]


def _weight_map(index: dict[str, Any], where: str) -> dict[str, str]:
    """Return the file of each tensor: names in the index's own folder."""
    files = index.get("weight_map")
    if not isinstance(files, dict) or not files:
        raise LoadError(f"{where}: weight_map is {shown(files)}, expected an object of file names")
    wrong = [
        f"tensor {shown(name)} is in {shown(file)}, expected the name of a safetensors file of the folder"
        for name, file in files.items()
        if not isinstance(file, str) or not _is_file_name(file)
    ]
    if wrong:
        raise LoadError(f"{where}: {listed(wrong)}")
    shards = len(set(files.values()))
    if shards > MAX_SHARDS:
        raise LimitError(f"{where}: too many files, got {shards}, expected at most {MAX_SHARDS}")
    return files


def _is_file_name(name: str) -> bool:
    return name.endswith(".safetensors") and not set(name) & set("/\\:\0") and not name.startswith(".")

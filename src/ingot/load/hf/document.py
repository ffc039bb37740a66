"""Strict YAML: each value has its line, each key must be expected, and an unknown key is an error.

Templates ship with Ingot, but new ones are written by hand, so errors name file and line. A template may also come with
a model: its size, its depth and the expansion of its aliases are limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from ingot.errors import LimitError, LoadError
from ingot.load.hf.expression import Expression

# the loader implemented in C, five times as fast, if PyYAML was built with it
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


MAX_DOCUMENT_BYTES = 1 << 18  # of a template
MAX_DOCUMENT_NODES = 20_000  # of a template, with its aliases expanded
MAX_DOCUMENT_DEPTH = 64  # of nested lists and mappings of a template
_MAX_TEXT = 1000  # characters of a name or word


class Item:
    """A YAML node and its position, `templates/llama.yaml:12`."""

    def __init__(self, file: str, node: yaml.Node):
        self._file = file
        self._node = node
        self.where = f"{file}:{node.start_mark.line + 1}"

    def fields(self, required: Sequence[str] = (), optional: Sequence[str] = ()) -> dict[str, Item]:
        """Return the values of a mapping by key. Raises LoadError for a key that is missing, unknown or repeated."""
        found = self.entries()
        known = (*required, *optional)
        for key, item in found.items():
            if key not in known:
                raise LoadError(f"{item.where}: unknown key, got {key!r}, expected some of {', '.join(known)}")
        missing = [key for key in required if key not in found]
        if missing:
            raise LoadError(f"{self.where}: missing keys, got {sorted(found)}, expected also {', '.join(missing)}")
        return found

    def entries(self) -> dict[str, Item]:
        """Return the values of a mapping with arbitrary keys. Raises LoadError for other nodes and for a
        repeated key.
        """
        if not isinstance(self._node, yaml.MappingNode):
            raise LoadError(f"{self.where}: wrong kind, got {self._kind}, expected a mapping")
        found: dict[str, Item] = {}
        for key_node, value_node in self._node.value:
            key = Item(self._file, key_node)
            name = key.text()
            if name in found:
                raise LoadError(f"{key.where}: key given twice, got {name!r}")
            found[name] = Item(self._file, value_node)
        return found

    def items(self) -> list[Item]:
        """Return the elements of a list. Raises LoadError for anything else."""
        if not isinstance(self._node, yaml.SequenceNode):
            raise LoadError(f"{self.where}: wrong kind, got {self._kind}, expected a list")
        return [Item(self._file, node) for node in self._node.value]

    def text(self) -> str:
        """Return the characters of a scalar. Raises LoadError for a list or a mapping."""
        if not self.is_text:
            raise LoadError(f"{self.where}: wrong kind, got {self._kind}, expected one word or expression")
        assert isinstance(self._node.value, str)
        if len(self._node.value) > _MAX_TEXT:
            raise LimitError(
                f"{self.where}: too long, got {len(self._node.value)}, expected at most {_MAX_TEXT} characters"
            )
        return self._node.value

    def word(self, *expected: str) -> str:
        """Return a scalar that is one of `expected`. Raises LoadError for any other."""
        text = self.text()
        if text not in expected:
            raise LoadError(f"{self.where}: unknown word, got {text!r}, expected one of {', '.join(expected)}")
        return text

    def expression(self) -> Expression:
        """Return a scalar as an expression. Raises LoadError."""
        return Expression(self.text(), self.where)

    @property
    def is_text(self) -> bool:
        """Return True for a scalar."""
        return isinstance(self._node, yaml.ScalarNode)

    @property
    def is_list(self) -> bool:
        """Return True for a list."""
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def _kind(self) -> str:
        if isinstance(self._node, yaml.MappingNode):
            return "a mapping"
        return "a list" if self.is_list else repr(self._node.value)


def read_document(path: Path) -> Item:
    """Return the root of a YAML file that ships with Ingot. Raises LoadError for invalid YAML."""
    file = f"{path.parent.name}/{path.name}"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LoadError(f"{file}: not YAML ({error})") from error
    return _composed(text, file)


def foreign_document(text: str, file: str) -> Item:
    """Return the root of a YAML text that comes with a model; file: its name in errors. Raises LoadError,
    LimitError.
    """
    if len(text.encode(errors="replace")) > MAX_DOCUMENT_BYTES:
        raise LimitError(f"{file}: too large, got {len(text)} characters, expected at most {MAX_DOCUMENT_BYTES} bytes")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):  # iterative, while composing is recursive
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DOCUMENT_DEPTH:
                raise LimitError(f"{file}: nested too deep, expected at most {MAX_DOCUMENT_DEPTH} levels")
    except yaml.YAMLError as error:
        raise LoadError(f"{file}: not YAML ({error})") from error
    root = _composed(text, file)
    _expect_small(root._node, file)
    return root


def _composed(text: str, file: str) -> Item:
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise LoadError(f"{file}: not YAML ({error})") from error
    if node is None:
        raise LoadError(f"{file}: empty file")
    return Item(file, node)


def _expect_small(root: yaml.Node, file: str) -> None:
    """Raise LimitError for a document that is large, or endless, with its aliases expanded."""
    pending, count = [(root, 1)], 0
    while pending:
        node, depth = pending.pop()
        count += 1
        if count > MAX_DOCUMENT_NODES or depth > MAX_DOCUMENT_DEPTH:
            expected = f"at most {MAX_DOCUMENT_NODES} nodes and {MAX_DOCUMENT_DEPTH} levels"
            raise LimitError(f"{file}: too large with aliases expanded, expected {expected}")
        if isinstance(node, yaml.SequenceNode):
            pending += [(each, depth + 1) for each in node.value]
        elif isinstance(node, yaml.MappingNode):
            pending += [(each, depth + 1) for pair in node.value for each in pair]

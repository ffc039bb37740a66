"""YAML read strictly: each value knows its line, each key is asked for by name, and a key too many is an error.

Templates ship with Ingot, but a new one is written by hand; its mistakes are named with file and line. One may come
with a model: then its size, its depth and what its aliases stand for are bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from ingot.errors import LimitError, LoadError
from ingot.load.hf.expression import Expression

# The same language read in C, five times as fast, where PyYAML was built with it.
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


MAX_DOCUMENT_BYTES = 1 << 18  # of a template
MAX_DOCUMENT_NODES = 20_000  # of a template, with what its aliases stand for
MAX_DOCUMENT_DEPTH = 64  # of lists and mappings of a template in one another
_MAX_TEXT = 1000  # characters of a name or word


class Item:
    """A YAML node and where it stands, `templates/llama.yaml:12`."""

    def __init__(self, file: str, node: yaml.Node):
        self._file = file
        self._node = node
        self.where = f"{file}:{node.start_mark.line + 1}"

    def fields(self, required: Sequence[str] = (), optional: Sequence[str] = ()) -> dict[str, Item]:
        """The values of a mapping by key. Raises LoadError for a key that is missing, unknown or there twice."""
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
        """The values of a mapping with free keys. Raises LoadError for anything else and for a key given twice."""
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
        """The elements of a list. Raises LoadError for anything else."""
        if not isinstance(self._node, yaml.SequenceNode):
            raise LoadError(f"{self.where}: wrong kind, got {self._kind}, expected a list")
        return [Item(self._file, node) for node in self._node.value]

    def text(self) -> str:
        """The characters of a scalar. Raises LoadError for a list or a mapping."""
        if not self.is_text:
            raise LoadError(f"{self.where}: wrong kind, got {self._kind}, expected one word or expression")
        assert isinstance(self._node.value, str)
        if len(self._node.value) > _MAX_TEXT:
            raise LimitError(
                f"{self.where}: too long, got {len(self._node.value)}, expected at most {_MAX_TEXT} characters"
            )
        return self._node.value

    def word(self, *expected: str) -> str:
        """A scalar that is one of `expected`. Raises LoadError for another one."""
        text = self.text()
        if text not in expected:
            raise LoadError(f"{self.where}: unknown word, got {text!r}, expected one of {', '.join(expected)}")
        return text

    def expression(self) -> Expression:
        """A scalar as an expression. Raises LoadError."""
        return Expression(self.text(), self.where)

    @property
    def is_text(self) -> bool:
        """True for a scalar."""
        return isinstance(self._node, yaml.ScalarNode)

    @property
    def is_list(self) -> bool:
        """True for a list."""
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def _kind(self) -> str:
        if isinstance(self._node, yaml.MappingNode):
            return "a mapping"
        return "a list" if self.is_list else repr(self._node.value)


def read_document(path: Path) -> Item:
    """The root of a YAML file that ships with Ingot. Raises LoadError for what is not YAML."""
    file = f"{path.parent.name}/{path.name}"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LoadError(f"{file}: not YAML ({error})") from error
    return _composed(text, file)


def foreign_document(text: str, file: str) -> Item:
    """The root of a YAML text that comes with a model; file: how errors call it. Raises LoadError, LimitError."""
    if len(text.encode(errors="replace")) > MAX_DOCUMENT_BYTES:
        raise LimitError(f"{file}: too large, got {len(text)} characters, expected at most {MAX_DOCUMENT_BYTES} bytes")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):  # one after the other, where composing calls itself
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
    """Raises LimitError for what aliases make large, or endless."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > MAX_DOCUMENT_NODES or depth > MAX_DOCUMENT_DEPTH:
            expected = f"at most {MAX_DOCUMENT_NODES} nodes and {MAX_DOCUMENT_DEPTH} levels"
            raise LimitError(f"{file}: too large with what aliases stand for, expected {expected}")
        if isinstance(node, yaml.SequenceNode):
            waiting += [(each, depth + 1) for each in node.value]
        elif isinstance(node, yaml.MappingNode):
            waiting += [(each, depth + 1) for pair in node.value for each in pair]

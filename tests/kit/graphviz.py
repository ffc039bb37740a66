"""A reader of Graphviz's language, as its grammar has it, for what draws to be held to."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|->|[{}\[\];,=]|[A-Za-z_\x80-\uffff][\w\x80-\uffff]*|-?(?:\.\d+|\d+(?:\.\d*)?))'
)


class Drawing:
    """The nodes of a digraph with their attributes, and its edges. Raises ValueError for what is none."""

    def __init__(self, text: str):
        self.nodes: dict[str, dict[str, str]] = {}
        self.edges: list[tuple[str, str, dict[str, str]]] = []
        self._tokens = _tokens(text)
        self._at = 0
        if self._take() != "digraph":
            raise ValueError("no digraph")
        self.name = self._id()
        self._expect("{")
        while self._peek() != "}":
            self._statement()
        self._expect("}")
        if self._at != len(self._tokens):
            raise ValueError(f"text behind the end: {self._tokens[self._at]!r}")

    def _statement(self) -> None:
        first = self._id()
        if self._peek() == "->":
            self._take()
            target = self._id()
            self.edges.append((first, target, self._attributes()))
        elif first == "node":
            self._attributes()
        else:
            self.nodes[first] = self._attributes()
        self._expect(";")

    def _attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self._peek() != "[":
            return found
        self._take()
        while self._peek() != "]":
            key = self._id()
            self._expect("=")
            found[key] = self._id()
            if self._peek() == ",":
                self._take()
        self._take()
        return found

    def _id(self) -> str:
        token = self._take()
        if token.startswith('"'):
            return token[1:-1].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        if not re.fullmatch(r"[\w.-]+", token) or token in ("->",):
            raise ValueError(f"no name: {token!r}")
        return token

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        if (got := self._take()) != token:
            raise ValueError(f"got {got!r}, expected {token!r}")


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"no token: {text[at : at + 20]!r}")
        found.append(match[1])
        at = match.end()
    return found

"""The forms of a graph for people: a line, text, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterator

from ingot.ir.node import Node, Value
from ingot.support import html
from ingot.support.columns import counted


class Display:
    """The forms of a graph for people."""

    name: str
    inputs: list[str]
    outputs: dict[str, str]
    values: dict[str, Value]

    @property
    def nodes(self) -> Iterator[Node]:
        """The nodes, in order."""
        raise NotImplementedError

    def __repr__(self) -> str:
        nodes = counted(sum(1 for _ in self.nodes), "node")
        counts = nodes, counted(len(self.inputs), "input"), counted(len(self.outputs), "output")
        return f"<Graph {self.name!r}: {', '.join(counts)}>"

    def __str__(self) -> str:
        shown = [*self.inputs, *(name for node in self.nodes for name in node.outputs)]
        return "\n".join([repr(self), *(str(self.values[name]) for name in shown)])

    def _repr_html_(self) -> str:
        rows = [
            (node.op.name, ", ".join(node.outputs), ", ".join(str(self.values[name].type) for name in node.outputs),
             ", ".join(map(str, node.operands)))
            for node in self.nodes
        ]  # fmt: skip
        return html.table(repr(self), ("op", "outputs", "type", "operands"), rows)

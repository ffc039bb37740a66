"""The result of a bisection, as text and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ingot.errors import some
from ingot.inspect.bisection.found import FoundPass, FoundPrecision
from ingot.inspect.comparison.result import ComparedValue, Comparison, error_text, plain_sources
from ingot.ir.graph import Graph
from ingot.ir.node import shown_sources

if TYPE_CHECKING:
    from ingot.inspect.bisection.parts import Part
    from ingot.inspect.bisection.search import Search

VERSION = 1
_NODES = 6  # nodes of a part in a text


@dataclass(frozen=True, slots=True)
class Bisection:
    """The result of a bisection.

    model, a, b: as in `Comparison`. problem: as in `ComparedValue`, or "changed" if the bits of an output differ
    between runs; "" if the sides agree. comparison: of the whole model. passes: None if A runs none, or if the failure
    needs symbolic dims. part: the smallest part that fails, None if only the whole model does; found: its comparison.
    nodes: of the model. precision: None if A rounds nothing. comparisons: how many ran.
    """

    model: str
    a: str
    b: str
    problem: str
    comparison: Comparison
    passes: FoundPass | None = None
    part: Part | None = None
    found: Comparison | None = None
    nodes: int = 0
    precision: FoundPrecision | None = None
    comparisons: int = 1
    search: Search | None = None

    @property
    def agrees(self) -> bool:
        """Whether the two sides agree, so that no fault was searched for."""
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        part, first = self.part, None if self.found is None else self.found.first
        rows = {} if self.found is None else {row["name"]: row for row in self.found.to_json()["values"]}
        return {
            "version": VERSION, "model": self.model, "a": self.a, "b": self.b, "problem": self.problem,
            "first": None if self.comparison.first is None else self.comparison.first.name,
            "passes": None if self.passes is None else asdict(self.passes),
            "nodes": None if part is None else [
                {"name": n.outputs[0], "op": n.op.name, "sources": plain_sources(n.sources)}
                for n in part.graph.nodes
            ],
            "of": self.nodes,
            "inputs": None if part is None else _types(part.graph, part.graph.inputs),
            "outputs": None if part is None else _types(part.graph, part.graph.outputs),
            "wrong": None if first is None else rows[first.name],
            "precision": None if self.precision is None else asdict(self.precision),
            "comparisons": self.comparisons,
        }  # fmt: skip

    def __str__(self) -> str:
        title = f"{self.model}: {self.a} against {self.b}"
        if self.agrees:
            return f"{title}\n  the sides agree: nothing to find"
        return "\n".join([title, *(f"  {line}" for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        yield _problem(self.comparison.first, self.problem)
        if self.passes is not None:
            yield _pass(self.passes, self.problem)
        if self.part is None:
            yield "nodes: no part of the model fails alone; it needs symbolic dims or the states of other nodes"
        else:
            yield from self._part_lines(self.part.graph)
        if self.precision is not None:
            yield _precision(self.precision)
        yield f"{self.comparisons} comparisons"

    def _part_lines(self, graph: Graph) -> Iterator[str]:
        count = "1 node fails" if len(graph) == 1 else f"{len(graph)} nodes fail"
        yield f"nodes: {count} alone, of {self.nodes}"
        for number, node in enumerate(graph.nodes):
            if number == _NODES:
                yield f"  and {len(graph) - _NODES} more"
                break
            yield f"  {node.op.name} {node.outputs[0]!r}{shown_sources(node.sources, node.outputs[0])}"
        yield f"  inputs: {_listed(graph, graph.inputs)}"
        first = None if self.found is None else self.found.first
        error = None if first is None else first.local or first.accumulated
        if first is not None and error is not None:
            yield f"  {first.name!r} by {first.kernel}: {error_text(error)}; tolerance {first.tolerance:.3g}"


def _problem(first: ComparedValue | None, problem: str) -> str:
    if first is None:
        return f"problem: {problem}: bits differ between runs"
    return f"problem: {problem}: {first.title}{f'; {first.detail}' if first.detail else ''}"


def _pass(found: FoundPass, problem: str) -> str:
    if not found.name:
        return f"pass: none; it fails before the first of {found.total} changes"
    which = f"pass: {found.name!r}, change {found.number} of {found.total}"
    what = "changes what the graph computes" if problem == "passes" else "builds what A computes wrongly"
    return f"{which}, {what}: {some([repr(name) for name in found.nodes])}"


def _precision(found: FoundPrecision) -> str:
    if not found.is_cause:
        return f"precision: not {found.name}; it fails in f32, too"
    layers = f"{len(found.layers)} of {found.of} layers stay f32: {some([repr(name) for name in found.layers])}"
    return f"precision: {found.name}; the sides agree in f32, and " + (
        f"if {layers}" if found.agrees else f"not yet if {layers}"
    )


def _listed(graph: Graph, names: list[str]) -> str:
    return ", ".join(f"{name!r} {graph.values[name].type}" for name in names) or "none"


def _types(graph: Graph, names: Any) -> list[dict[str, str]]:
    return [{"name": name, "type": str(graph.values[name].type)} for name in names]

"""The search for the smallest failing part of a comparison: by pass, by node, by precision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ingot.compile import Mode
from ingot.errors import IngotError
from ingot.inspect.bisection.delta import first_failing, smallest
from ingot.inspect.bisection.found import FoundPass, FoundPrecision
from ingot.inspect.bisection.parts import Part, captured, cut, static, whole
from ingot.inspect.comparison.captured import Captured
from ingot.inspect.comparison.compared import Compare
from ingot.inspect.comparison.prepared import Build, Prepared, planned_side
from ingot.inspect.comparison.result import ComparedValue, Comparison
from ingot.inspect.comparison.sides import Recorded, Side
from ingot.ir.graph import Graph
from ingot.ir.text import diff, dump, dump_call
from ingot.passes import changes, optimize
from ingot.passes.precision import F32, round_operands

CHANGED = "changed"  # the problem of a comparison whose bits differ between runs
_RADIUS = 2  # steps around what is first wrong that are tried before the whole graph
_ROUNDS = 8  # of layers that stay f32, each with the layers that fail then
_MOST_WEIGHTS = 64  # that are replaced one by one


def problem_of(found: Comparison) -> str:
    """Return the problem of a comparison; "" if its sides agree."""
    return found.first.problem if found.first is not None else CHANGED if found.changed else ""


@dataclass(slots=True)
class Search:
    """The search in one comparison that fails.

    pair: the sides. graph: A's, as loaded, static. problem: that of the comparison; another one counts as success.
    report: called with what is tried next. comparisons: how many ran.
    """

    pair: Prepared
    graph: Graph
    problem: str
    report: Callable[[str], None]
    comparisons: int = 0
    _values: Captured | None = None

    @staticmethod
    def of(pair: Prepared, problem: str, report: Callable[[str], None]) -> Search:
        """Bind the symbols of the graph. Raises the errors of a run."""
        return Search(pair, static(pair.graph, pair.feeds), problem, report)

    # -- comparisons --------------------------------------------------------------------------------------------

    def compared(self, part: Part, a: Build | None = None) -> Comparison | None:
        """Compare a part; None if a side cannot compile or run it. a: builds side A, by default from the part."""
        build = self.pair.part_a if a is None else a
        self.comparisons += 1
        try:
            sides = build(part.graph, part.feeds), self.expected(part)
            return Compare(self.pair.title, *sides, part.graph, part.feeds).result()
        except (IngotError, AssertionError):  # a part may meet another fault, even a bug: it is not the wanted one
            return None

    def expected(self, part: Part) -> Side:
        """Return side B of a part: it runs the part, or has its values of the run of the whole model."""
        if self.pair.part_b is not None:
            return self.pair.part_b(part.graph, part.feeds)
        return Recorded(part.graph, part.feeds, self.values_of(part))

    def values_of(self, part: Part) -> dict[str, np.ndarray]:
        """Return the values of B that the nodes of a part compute."""
        names = (name for node in part.graph.nodes for name in node.outputs)
        return {name: self.values[name] for name in names if isinstance(self.values.get(name), np.ndarray)}

    @property
    def values(self) -> Captured:
        """Every value of the graph in B's run."""
        if self._values is None:
            self._values = captured(self.graph, self.pair.feeds, self.pair.b())
        return self._values

    def fails(self, part: Part, a: Build | None = None) -> bool:
        """Return whether a part has the problem."""
        found = self.compared(part, a)
        return found is not None and problem_of(found) == self.problem

    # -- by pass ------------------------------------------------------------------------------------------------

    def by_pass(self) -> FoundPass | None:
        """Find the change of a pass without which the comparison does not fail; None if A runs no passes."""
        build = self.pair.after_passes
        if build is None:
            return None
        part = whole(self.graph, self.pair.feeds)
        total = len(_after(self.graph, None)[1])

        def fails(count: int) -> bool:
            self.report(f"passes: after {count} of {total} changes")
            return self.fails(part, lambda graph, feeds: build(_after(graph, count)[0], feeds))

        if fails(0):
            return FoundPass("", 0, total, (), "")
        if not fails(total):
            return None
        number = first_failing(total, fails)
        (before, _), (after, names) = _after(part.graph, number - 1), _after(part.graph, number)
        old = _calls(before)
        new = tuple(name for name, call in _calls(after).items() if old.get(name) != call)
        texts = (dump(graph, is_short=True) for graph in (before, after))
        return FoundPass(names[-1], number, total, new, diff(*texts))

    # -- by node ------------------------------------------------------------------------------------------------

    def by_node(self, first: ComparedValue | None) -> Part | None:
        """Find the smallest part that fails; None if the static graph does not. first: the first wrong value."""
        everything = [node.outputs[0] for node in self.graph.nodes]
        for names in self._guesses(first):
            chosen = [name for name in everything if name in names]
            if 0 < len(chosen) < len(everything) and self._fails_alone(chosen):
                return self.part(smallest(chosen, self._fails_alone))
        return self.part(smallest(everything, self._fails_alone)) if self._fails_alone(everything) else None

    def part(self, nodes: Collection[str]) -> Part:
        """Return the part of some nodes, by their first results."""
        return cut(self.graph, nodes, self.values, self.pair.feeds)

    def _fails_alone(self, nodes: list[str]) -> bool:
        self.report(f"nodes: {len(nodes)} of {len(self.graph)}, {nodes[0]!r} to {nodes[-1]!r}")
        try:
            part = self.part(nodes)
        except IngotError:  # the types of some nodes follow only from others
            return False
        return self.fails(part)

    def _guesses(self, first: ComparedValue | None) -> Iterator[set[str]]:
        """Yield sets of nodes that probably fail, from small to large: what a wrong step computes, and around it."""
        if first is None:
            return
        sources = set(first.sources)
        named = {first.name, *first.replaced}
        found = {node.outputs[0] for node in self.graph.nodes if named & {*node.outputs} or sources & {*node.sources}}
        yield set(found)
        for _ in range(_RADIUS):
            for node in [node for node in self.graph.nodes if node.outputs[0] in found]:
                makers = (self.graph.producer(operand) for operand in node.operands)
                readers = (user for name in node.outputs for user in self.graph.users(name))
                found |= {each.outputs[0] for each in (*makers, *readers) if each is not None}
            yield set(found)

    # -- by precision -------------------------------------------------------------------------------------------

    def by_precision(self) -> FoundPrecision | None:
        """Find the layers that must stay f32 for the sides to agree; None if A rounds nothing after the passes."""
        precision, threads = self.pair.precision, self.pair.threads
        if self.pair.after_passes is None or precision.weights is None or not self.pair.rounds:
            return None
        part = whole(self.graph, self.pair.feeds)
        optimized = self.graph.copy()
        optimize(optimized)

        def build(kept: Collection[str] | None) -> Build:
            mode = Mode(precision=F32 if kept is None else precision)
            return lambda graph, feeds: planned_side(
                self.pair.executor, optimized.copy(), feeds, mode, threads, kept=kept or ()
            )

        self.report("precision: f32")
        plain = self.compared(part, build(None))
        if plain is not None and not plain.agrees:
            return FoundPrecision(precision.name, is_cause=False, layers=(), of=0, agrees=False)
        rounded = rounded_nodes(optimized, self.pair)
        kept, agrees = set[str](), False
        for _ in range(_ROUNDS):
            self.report(f"precision: {len(kept & rounded)} of {len(rounded)} layers stay f32")
            found = self.compared(part, build(kept))
            if found is None or (agrees := found.agrees):
                break
            more = {name for row in found.values if row.problem for name in (row.name, *row.replaced)} - kept
            if not more:
                break
            kept |= more
        layers = tuple(node.outputs[0] for node in optimized.nodes if node.outputs[0] in kept & rounded)
        return FoundPrecision(precision.name, True, layers, len(rounded), agrees)

    # -- weights ------------------------------------------------------------------------------------------------

    def with_random_weights(self, part: Part) -> tuple[Part, tuple[str, ...]]:
        """Return a part with random numbers for as many float weights as keep the problem, and the names of these.

        Float constants of several elements are weights, too. A recorded B has no values for others: then all stay.
        """
        names = [] if self.pair.part_b is None else stored_names(part.graph, is_float=True)
        if not names:
            return part, ()
        self.report(f"weights: {len(names)} random")
        if self.fails(every := _randomized(part, names)):
            return every, tuple(names)
        replaced: list[str] = []
        for name in sorted(names, key=lambda name: -part.graph.type(name).size)[:_MOST_WEIGHTS]:
            self.report(f"weights: {name!r} random")
            if self.fails(_randomized(part, [*replaced, name])):
                replaced.append(name)
        return _randomized(part, replaced), tuple(name for name in names if name in replaced)


def stored_names(graph: Graph, *, is_float: bool = False) -> list[str]:
    """Return the weights of a graph that have data, and its constants of several elements."""
    data = {name: value.data for name, value in graph.values.items() if value.data is not None}
    kinds = ("f",) if is_float else ("f", "i", "u", "b", "V")
    return [
        name
        for name, array in data.items()
        if array.dtype.kind in kinds and (graph.values[name].kind == "weight" or array.size > 1)
    ]


def rounded_nodes(optimized: Graph, pair: Prepared) -> set[str]:
    """Return the nodes whose operands a precision rounds, by their first results."""
    twin = optimized.copy()
    round_operands(twin, pair.precision)
    operands = {node.outputs[0]: node.operands for node in optimized.nodes}
    return {node.outputs[0] for node in twin.nodes if operands.get(node.outputs[0], node.operands) != node.operands} | {
        name for name in operands if name not in twin.values
    }


def _after(graph: Graph, count: int | None) -> tuple[Graph, list[str]]:
    """Return a copy of a graph after so many changes of passes, and the passes; None for all."""
    twin = graph.copy()
    names = list(islice(changes(twin), count))
    if twin.measured:
        twin.sort()
    return twin, names


def _calls(graph: Graph) -> dict[str, str]:
    """Return the text of each node's call by its first result."""
    return {
        node.outputs[0]: dump_call(node, node.operands, [graph.values[name].type for name in node.outputs])
        for node in graph.nodes
    }


def _randomized(part: Part, names: Collection[str]) -> Part:
    """Return a part whose named weights have random numbers of the same range."""
    graph, generator = part.graph.copy(), np.random.default_rng(0)
    for name in names:
        data = graph.values[name].data
        assert data is not None
        finite = data[np.isfinite(data)].astype(np.float64)
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        graph.values[name].data = generator.uniform(low, high, data.shape).astype(data.dtype)
    return Part(graph, part.feeds)

"""Measurement of the kernels that lowering chooses for a model: each distinct op alone, by every kernel that can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ingot.inspect.kernel_bench import Candidate, Candidates
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, Node
from ingot.lower.cpu import CPU, KERNEL_RULES
from ingot.lower.selection import Selection
from ingot.lower.target import Target


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """An op of a model, measured by each of its kernels.

    count: the number of nodes with the same attributes, shapes and dtypes. graph: the first of these nodes alone.
    """

    graph: Graph
    count: int
    candidates: tuple[Candidate, ...]

    @property
    def node(self) -> Node:
        """The op."""
        (node,) = self.graph.nodes
        return node

    @property
    def operands(self) -> str:
        """The types of its operands."""
        return ", ".join(str(self.graph.type(name)) for name in self.node.operands if name is not None)

    @property
    def chosen(self) -> Candidate:
        """The kernel of lowering."""
        return next(candidate for candidate in self.candidates if candidate.chosen)

    @property
    def best(self) -> Candidate:
        """The kernel with the least time."""
        return min(self.candidates, key=lambda candidate: candidate.nanoseconds)

    @property
    def to_best(self) -> float:
        """The time of the chosen kernel as a multiple of the least time."""
        return self.chosen.nanoseconds / self.best.nanoseconds


def isolated(graph: Graph, node: Node) -> Graph:
    """Return a graph of one node: its constant operands are weights, the others are inputs."""
    alone = Graph(node.outputs[0])
    names: dict[str, str] = {}
    for operand in node.operands:
        if operand is None or operand in names:
            continue
        data = graph.data(operand)
        if data is None:
            names[operand] = alone.add_input(f"x{len(names)}", graph.type(operand))
        else:
            names[operand] = alone.add_weight(f"x{len(names)}", data)
    operands = [None if operand is None else names[operand] for operand in node.operands]
    copy = alone.add(node.op.name, operands, **node.attributes)
    for i, output in enumerate(copy.outputs):
        alone.set_output(f"y{i}", output)
    return alone


def distinct(graph: Graph) -> list[tuple[Graph, int]]:
    """Return each distinct node of a graph alone that has kernels to choose from, and how many nodes equal it.

    Nodes are equal if they have the same op, attributes, shapes and dtypes. A node is left out if an operand is neither
    constant nor f32: random numbers may be invalid for it.
    """
    found: dict[str, tuple[Graph, int]] = {}
    for node in graph.nodes:
        if len(KERNEL_RULES.get(node.op.name, ())) < 2:
            continue
        operands = [name for name in node.operands if name is not None]
        if any(graph.data(name) is None and graph.type(name).dtype is not f32 for name in operands):
            continue
        types = [(str(graph.type(name)), graph.data(name) is None) for name in operands]
        key = f"{node.op.name} {sorted(node.attributes.items(), key=str)} {types}"
        first, count = found.get(key) or (isolated(graph, node), 0)
        found[key] = (first, count + 1)
    return list(found.values())


def measured_choices(
    nodes: Iterable[tuple[Graph, int]], isa: str, threads: int, seconds: float
) -> Iterator[KernelChoice]:
    """Measure each op that at least two kernels can compute, for about `seconds` seconds each."""
    for graph, count in nodes:
        (node,) = graph.nodes
        selection = Selection(graph, Target(isa, threads), CPU)
        able = [rule for rule in KERNEL_RULES[node.op.name] if not selection.refusal(rule, node)]
        if len(able) < 2:
            continue
        candidates = Candidates.of(graph, (isa,), threads)
        candidates.measure(seconds)
        yield KernelChoice(graph, count, candidates.able)

"""Split a static graph into runs of nodes with kernels and runs that only the reference can compute."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ingot.ir.dtype import DType
from ingot.ir.graph import Graph, Node, TensorType, Type
from ingot.lower.lowering import Lowering


@dataclass(slots=True)
class Segment:
    """Part of a graph as a separate graph; values that cross the border are its inputs and outputs, by name.

    lowering: for a native segment that is the complete graph, the lowering that has evaluated its kernel rules.
    """

    native: bool
    graph: Graph
    lowering: Lowering | None = None


def _is_native(type: Type, held: Collection[DType]) -> bool:
    return isinstance(type, TensorType) and type.dtype in held


def split(graph: Graph, fallback: set[Node], static: set[str], held: Collection[DType]) -> list[Segment]:
    """Return segments in order. A graph of tensors without fallback nodes is one segment: the graph itself.

    held: the dtypes that kernels accept. A value of another dtype is in no native segment, even if it only passes
    through. Segments of a split graph have no states: a state is an input of its readers, and its update is an output
    of the segment that computes it.
    """
    borders = [graph.values[name].type for name in (*graph.inputs, *graph.states, *graph.outputs.values())]
    if not fallback and all(_is_native(type, held) for type in borders):
        return [Segment(True, graph)]
    if not len(graph) and not graph.states:
        return [Segment(False, graph)]
    level: dict[Node, int] = {}
    for node in graph.nodes:
        read = [o for o in node.operands if o not in static]
        if graph.measured:
            read += [graph.measured[symbol] for symbol in graph.mentioned(node)]
        before = [p for o in read if (p := graph.producer(o)) is not None]
        # Even levels are native, odd ones are not; a node goes to the earliest level that its operands allow.
        earliest = max((level[p] for p in before), default=0)
        level[node] = earliest if earliest % 2 == (node in fallback) else earliest + 1
    segments = []
    for number in sorted(set(level.values())):
        nodes = [node for node in graph.nodes if level[node] == number]
        if all(o in static for node in nodes for o in node.outputs):
            continue
        part = _extract(graph, nodes, static)
        if part.outputs or part.measured:  # otherwise only legalized nodes read it
            segments.append(Segment(number % 2 == 0, part))
    fixed = [value for value in (*graph.outputs.values(), *graph.states.values()) if value in static]
    for native in (True, False):
        values = [value for value in fixed if _is_native(graph.values[value].type, held) == native]
        if values:
            segments.append(Segment(native, _extract_static(graph, values, static)))
    if all(segment.native for segment in segments):
        segments.append(Segment(False, _handed_through(graph, held)))
    return segments


def _handed_through(graph: Graph, held: Collection[DType]) -> Graph:
    """Return a graph of the inputs that kernels do not accept, if no node reads them."""
    part = Graph(graph.name)
    for name in graph.inputs:
        if not _is_native(graph.values[name].type, held):
            part.add_input(name, graph.values[name].type)
            if name in graph.outputs.values():
                part.set_output(name, name)
    return part


def _extract_static(graph: Graph, values: list[str], static: set[str]) -> Graph:
    """Return a graph of outputs that depend on no input: no other segment computes them."""
    part = Graph(graph.name)
    for value in values:
        _bring(graph, part, value, set(), static)
        part.set_output(value, value)
    return part


def _extract(graph: Graph, nodes: list[Node], static: set[str]) -> Graph:
    """Return a graph of these nodes and the static nodes they need."""
    part = Graph(graph.name)
    part.trades = dict(graph.trades)
    mine = set(nodes)
    for node in nodes:
        for operand in node.operands:
            _bring(graph, part, operand, mine, static)
        if node.outputs[0] not in part.values:
            _add(graph, part, node)
    for node in nodes:
        for output in node.outputs:
            leaves = graph.is_output(output) or any(user not in mine for user in graph.values[output].users)
            if leaves and output not in static:
                part.set_output(output, output)
    return part


def _add(graph: Graph, part: Graph, node: Node) -> None:
    part.add(node.op.name, node.operands, node.outputs, **node.attributes)
    for name in node.outputs:
        part.narrow(name, graph.values[name].type)


def _bring(graph: Graph, part: Graph, name: str | None, mine: set[Node], static: set[str]) -> None:
    if name is None or name in part.values:
        return
    value = graph.values[name]
    if value.kind == "weight":
        part.add_weight(name, value.data, graph.type(name))
    elif value.kind == "constant":
        assert value.data is not None
        part.add_constant(name, value.data)
    elif value.producer is not None and name in static:
        for operand in value.producer.operands:
            _bring(graph, part, operand, mine, static)
        _add(graph, part, value.producer)
    else:
        part.add_input(name, value.type)

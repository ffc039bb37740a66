"""Parts of a graph as graphs of their own: values that other nodes compute become inputs, with captured arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.inspect.comparison.bounds import replacing
from ingot.inspect.comparison.captured import Captured
from ingot.inspect.comparison.sides import Arrays, Reference, Side
from ingot.ir.dtype import from_numpy
from ingot.ir.graph import Graph, TensorType, Type
from ingot.run.interpret import bind_symbols, interpret


@dataclass(frozen=True, slots=True)
class Part:
    """A static graph, and an array for each of its inputs. Its outputs have the names of their values."""

    graph: Graph
    feeds: dict[str, Any]


def static(graph: Graph, feeds: Arrays) -> Graph:
    """Return a graph with values for all symbols, including those that a run measures. Raises the errors of a run."""
    symbols: dict[str, int] = {}
    if graph.measured:
        interpret(graph, feeds, symbols=symbols)
    return graph.bind(symbols or bind_symbols(graph, feeds))


def whole(graph: Graph, feeds: Arrays) -> Part:
    """Return a static graph as a part, with outputs that have the names of their values."""
    twin = graph.copy()
    twin.outputs = {value: value for value in graph.outputs.values()}
    return Part(twin, dict(feeds))


def captured(graph: Graph, feeds: Arrays, expected: Side) -> Captured:
    """Return every value of a static graph in its declared dtype: of a side, else computed from that side's values."""
    known, found = Captured(), Captured()

    def keep(arrays: Arrays) -> Arrays:
        for name, array in arrays.items():
            if name in graph.values:
                known.add(name, array)
        return {}

    expected.run_watched(keep)

    def watch(arrays: Arrays) -> Arrays:
        given = {name: replacing(array, known[name]) if name in known else array for name, array in arrays.items()}
        for name, array in given.items():
            found.add(name, _declared(array, graph.values[name].type))
        return given

    Reference(graph, feeds, float64=True).run_watched(watch)
    return found


def _declared(array: Any, type: Type) -> Any:
    if not isinstance(array, np.ndarray) or not isinstance(type, TensorType) or array.dtype == type.dtype.numpy:
        return array
    with np.errstate(all="ignore"):
        return array.astype(type.dtype.numpy)


def cut(graph: Graph, nodes: Collection[str], values: Mapping[str, Any], feeds: Arrays) -> Part:
    """Return some nodes of a static graph as a part.

    nodes: by their first results. values: of the other nodes. feeds: of the graph, and of states that do not start with
    their initial values. Results that other nodes or outputs read are outputs. A state whose update is not computed
    keeps its value.
    """
    part, given = Graph(graph.name), dict[str, Any]()
    chosen = [node for node in graph.nodes if node.outputs[0] in nodes]
    own = {name for node in chosen for name in node.outputs}
    for name in dict.fromkeys(operand for node in chosen for operand in node.operands):
        if name is not None and name not in own:
            _declare(part, graph, name, given, values, feeds)
    for node in chosen:
        attributes: dict[str, Any] = dict(node.attributes)
        attributes |= {key: body.copy() for key, body in attributes.items() if isinstance(body, Graph)}
        part.add(node.op.name, node.operands, node.outputs, sources=node.sources, **attributes)
        for name in node.outputs:
            part.narrow(name, graph.values[name].type)
    for name in part.states:
        if graph.states[name] in own:
            part.set_state(name, graph.states[name])
    read = {o for node in graph.nodes if node.outputs[0] not in nodes for o in node.operands}
    read.update(graph.outputs.values())
    for name in [name for node in chosen for name in node.outputs if name in read] or chosen[-1].outputs:
        part.set_output(name, name)
    return Part(part, given)


def _declare(
    part: Graph, graph: Graph, name: str, given: dict[str, Any], values: Mapping[str, Any], feeds: Arrays
) -> None:
    """Declare a value that no node of the part computes."""
    value = graph.values[name]
    if value.kind == "weight":
        assert isinstance(value.type, TensorType)
        part.add_weight(name, value.data, value.type)
    elif value.kind == "constant":
        assert value.data is not None
        part.add_constant(name, value.data)
    elif value.kind == "state":
        part.add_state(name, graph.type(name))
        if name in graph.initial:
            part.begin_state(name, graph.initial[name])
        if name in feeds:
            given[name] = feeds[name]
    else:
        array = given[name] = feeds[name] if value.kind == "input" else values[name]
        is_static = isinstance(value.type, TensorType) and value.type.is_static
        if is_static or not isinstance(array, np.ndarray):
            part.add_input(name, value.type)
        else:
            part.add_input(name, TensorType(from_numpy(array.dtype), array.shape))

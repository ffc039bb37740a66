"""Topological order of nodes: each node follows the nodes whose results it reads. Not every file is in this order."""

from __future__ import annotations

import heapq

import onnx

from ingot.errors import LoadError
from ingot.load.onnx.tensors import shown

MAX_SHOWN = 8  # nodes of a cycle in an error

Graph = onnx.GraphProto | onnx.FunctionProto


def sort_nodes(graph: Graph, where: str) -> set[str]:
    """Sort the nodes of a graph and of its subgraphs topologically; return the names it reads from enclosing
    graphs.

    Nodes that are in order stay as they are. Otherwise the first ready node in file order is next: Kahn, "Topological
    sorting of large networks", 1962, with a heap of positions. Names are not checked here. Raises LoadError for a
    cycle.
    """
    nodes = list(graph.node)
    given = (
        set(graph.input)
        if isinstance(graph, onnx.FunctionProto)
        else {v.name for v in (*graph.input, *graph.initializer)}
    )
    producers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.output:
            if name and name not in given:
                producers.setdefault(name, i)
    reads = [_names_read(node, where) for node in nodes]
    sources = [{producers[name] for name in names if name in producers} for names in reads]
    if any(i <= source for i, needed in enumerate(sources) for source in needed):
        order = _order(sources)
        if len(order) < len(nodes):
            raise LoadError(f"{where}: nodes form a cycle, got {_cycle(nodes, sources, set(order))}, expected an order")
        del graph.node[:]
        graph.node.extend(nodes[i] for i in order)
    results = graph.output if isinstance(graph, onnx.FunctionProto) else [v.name for v in graph.output]
    return set().union(*reads, results) - given - producers.keys()


def _names_read(node: onnx.NodeProto, where: str) -> set[str]:
    """Return the names that a node and its subgraphs read from the enclosing graph."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            names |= sort_nodes(inner, f"{where}, node {label(node)} ({node.op_type[:100]})")
    return names


def label(node: onnx.NodeProto) -> str:
    """Return the quoted name of a node for errors, or of its first result."""
    return shown(node.name or next(iter(node.output), "?"))


def _order(sources: list[set[int]]) -> list[int]:
    """Return the indices of nodes in topological order; nodes on a cycle, or depending on one, are omitted."""
    waiting = [len(needed) for needed in sources]
    readers: list[list[int]] = [[] for _ in sources]
    for i, needed in enumerate(sources):
        for source in needed:
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    return order


def _cycle(nodes: list[onnx.NodeProto], sources: list[set[int]], ordered: set[int]) -> str:
    """Return the nodes of a cycle in order; every node without an order leads to a cycle through its inputs."""
    path = [next(i for i in range(len(nodes)) if i not in ordered)]
    indices = {path[0]: 0}
    while (source := min(sources[path[-1]] - ordered)) not in indices:
        indices[source] = len(path)
        path.append(source)
    cycle = path[indices[source] :][::-1]
    first = cycle.index(min(cycle))
    cycle = cycle[first:] + cycle[:first]
    shown = [f"{label(nodes[i])} ({nodes[i].op_type[:100]})" for i in cycle[:MAX_SHOWN]]
    if len(cycle) > MAX_SHOWN:
        shown.append(f"and {len(cycle) - MAX_SHOWN} more")
    return ", ".join(shown)

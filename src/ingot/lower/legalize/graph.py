"""Legalize a graph: replace its nodes without a kernel by nodes that may have one, until nothing changes."""

from __future__ import annotations

from collections.abc import Iterator

from ingot.ir.graph import Graph, Node
from ingot.lower.legalize.table import LEGALIZATIONS, LEGALIZED_AS_THEMSELVES, legalize_node
from ingot.lower.lowering import Lowering
from ingot.lower.positions import position_nodes
from ingot.lower.selection import Backend, Selection
from ingot.lower.target import Target
from ingot.lower.widen import widen_node, widened_dtype
from ingot.ops.define import expand_node


def without_bodies(graph: Graph) -> Graph:
    """Return a graph in which branches and loops are legalized where possible, before shapes are asked for."""
    if not graph.bodies:
        return graph
    legal = graph.copy()
    for node in list(legal.nodes):
        if any(isinstance(value, Graph) for value in node.attributes.values()):
            legalize_node(legal, node)
    _keep_names(legal, graph)
    return legal


def legalize(graph: Graph, target: Target, backend: Backend) -> tuple[Lowering, set[Node]]:
    """Return the lowering of a legalized graph, and its nodes that still have no kernel; the given graph is unchanged.

    Every shape of the graph must be known. The lowering has evaluated the kernel rules of its graph, which is the given
    graph if all nodes have kernels.
    """
    lowering = Lowering(graph, target, backend)
    if next(_refused(lowering), None) is None:
        return lowering, set()
    legal = graph.copy()
    while True:
        lowering = Lowering(legal, target, backend)
        refused = list(_refused(lowering))
        replaced = [_is_replaced(lowering, _root(lowering, node)) for node in refused]
        if not any(replaced):
            return lowering, {member for node in refused for member in _members(lowering, node)}
        _keep_names(legal, graph)


def _refused(selection: Selection) -> Iterator[Node]:
    """Yield the nodes that no kernel rule accepts; of a group with an epilogue, only the last node."""
    skipped = selection.grouped | position_nodes(selection.graph, selection.static)
    for node in selection.graph.nodes:
        if node not in skipped and node.outputs[0] not in selection.static and selection.ask(node).row is None:
            yield node


def _root(selection: Selection, node: Node) -> Node:
    return selection.groups[node].root if node in selection.groups else node


def _members(selection: Selection, node: Node) -> tuple[Node, ...]:
    return (node, *selection.groups[node].members) if node in selection.groups else (node,)


def _is_replaced(selection: Selection, node: Node) -> bool:
    """Replace a node without a kernel; see `widen_node`, `Op.expand` and `legalize_node`.

    Return False if there is no replacement.
    """
    graph, name = selection.graph, node.op.name
    is_known = bool(selection.backend.rules.get(name)) or name in LEGALIZATIONS or node.op.expand is not None
    if widened_dtype(graph, node) is not None and is_known:
        widen_node(graph, node)
    elif node.op.expand is not None:
        expand_node(graph, node)
    elif name in LEGALIZED_AS_THEMSELVES and not selection.backend.rules.get(name):
        return False
    else:
        return legalize_node(graph, node)
    return True


def _keep_names(graph: Graph, given: Graph) -> None:
    """Restore the output names of the given graph, by which other segments refer to them.

    The replacement of a legalized node may return a value that existed before, or one value twice.
    """
    for external, name in given.outputs.items():
        if name not in graph.values:
            found = graph.outputs[external]
            graph.add("reshape", [found], [name], shape=graph.type(found).shape)
        graph.set_output(external, name)

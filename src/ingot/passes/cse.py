"""Common subexpressions: equal nodes are merged, and so are equal constants."""

from typing import Any

from ingot.ir.dtype import content
from ingot.ir.graph import Graph, Node, Value
from ingot.passes.match import COMMUTATIVE


def merge_equal(graph: Graph) -> bool:
    """Merge nodes of one op, operands and attributes, and constants of one type and content (bits, so -0.0 is not 0).

    Weights keep their names and are never merged. Nodes whose outputs are different graph outputs are merged too: a
    graph output may be any value.
    """
    changed = _merge_constants(graph)
    first: dict[Any, Node] = {}
    by_attributes: dict[Any, dict[Any, Node]] = {}
    measured = set(graph.measured.values())
    for node in graph.nodes:
        if measured and not measured.isdisjoint(node.outputs):
            continue  # its dims are referred to by name
        representative = _first(first, by_attributes, node)
        if representative is not node:
            for old, new in zip(node.outputs, representative.outputs, strict=True):
                graph.replace_uses(old, new)
            graph.remove(node)
            changed = True
    return changed


def _first(first: dict[Any, Node], by_attributes: dict[Any, dict[Any, Node]], node: Node) -> Node:
    """Return the first visited node that equals `node`, possibly itself.

    first: nodes by op and operands, a key that is rarely shared. by_attributes: for shared keys, the distinct nodes by
    their attributes.
    """
    operands = node.operands
    if node.op.name in COMMUTATIVE:
        operands = tuple(sorted(operands, key=str))
    key = node.op.name, operands
    alone = first.setdefault(key, node)
    if alone is node:
        return node
    same = by_attributes.setdefault(key, {})
    if not same:
        same[_attributes(alone)] = alone
    return same.setdefault(_attributes(node), node)


def _attributes(node: Node) -> Any:
    return tuple((k, type(v), _content(v)) for k, v in sorted(node.attributes.items()))


def _content(attribute: Any) -> Any:
    """Return a key that distinguishes 0.0 from -0.0 and makes nan equal to itself; a subgraph equals only itself."""
    if isinstance(attribute, float):
        return repr(attribute)
    if isinstance(attribute, tuple):
        if {v.__class__ for v in attribute} == {int}:
            return attribute
        return tuple((type(v), _content(v)) for v in attribute)
    return id(attribute) if isinstance(attribute, Graph) else attribute


def _merge_constants(graph: Graph) -> bool:
    by_type: dict[Any, list[Value]] = {}
    for value in graph.values.values():
        if value.kind == "constant":
            by_type.setdefault(value.type, []).append(value)
    changed = False
    for values in by_type.values():
        if len(values) > 1:
            changed |= _merge_same_content(graph, values)
    return changed


def _merge_same_content(graph: Graph, values: list[Value]) -> bool:
    first: dict[bytes, Value] = {}
    changed = False
    for value in values:
        assert value.data is not None
        representative = first.setdefault(content(value.data), value)
        if representative is not value:
            graph.replace_uses(value.name, representative.name)
            graph.remove_value(value.name)
            changed = True
    return changed

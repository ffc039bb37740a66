"""Branches with a known condition: the nodes of the selected branch replace the `if`."""

from __future__ import annotations

from ingot.ir.graph import Graph, Node
from ingot.ops.control import inner_graphs


def take_known_branches(graph: Graph) -> bool:
    """Replace each `if` over a constant by its branch, if the branch's results have exactly the types of the `if`."""
    changed = False
    for node in graph.nodes if "if" in graph.ops else ():
        condition = graph.data(node.operands[0]) if node.op.name == "if" else None
        if condition is None:
            continue
        chosen, other = inner_graphs(node)
        branch = chosen if condition.item() else other
        declared = [graph.values[name].type for name in node.outputs]
        if [branch.graph.values[name].type for name in branch.graph.outputs.values()] == declared:
            _inline(graph, node, branch.graph, dict(branch.captured))
            changed = True
    return changed


def _inline(graph: Graph, node: Node, body: Graph, names: dict[str, str]) -> None:
    """Inline a body. names: values of the body -> values of the graph; initially its inputs."""
    for name, value in body.values.items():
        if value.data is not None:
            names[name] = graph.add_constant(graph.fresh(name), value.data)
    for inner in body.nodes:
        inputs = [None if name is None else names[name] for name in inner.operands]
        inlined = graph.add(inner.op.name, inputs, inner.outputs, before=node, **inner.attributes)
        names.update(zip(inner.outputs, inlined.outputs, strict=True))
        for name, final in zip(inner.outputs, inlined.outputs, strict=True):
            graph.narrow(final, body.values[name].type)
    for name, result in zip(node.outputs, body.outputs.values(), strict=True):
        graph.replace_uses(name, names[result])
    graph.remove(node)

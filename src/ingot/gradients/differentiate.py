"""Reverse-mode differentiation of a graph: it adds nodes, in plain ops, and changes no node except those it
expands.

Griewank and Walther, "Evaluating Derivatives", 2008.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingot.errors import UnsupportedError
from ingot.gradients.registry import FLAT, GRADIENTS, MISSING, UNROLLED, Backward
from ingot.ir.graph import Graph, Node, TensorType
from ingot.ops.define import Expansion, expand_node, replace_node


def differentiate(graph: Graph, loss: str, wanted: Sequence[str]) -> dict[str, str]:
    """Add the gradients of a loss to a static graph, and return value -> gradient for those of `wanted` that it depends
    on.

    loss: a float of shape []. A node between `wanted` and the loss whose op has no gradient rule is expanded into
    simpler nodes, permanently. Raises UnsupportedError that names every such op without a gradient.
    """
    assert graph.type(loss).shape == (), f"{loss} is {graph.type(loss)}, expected a number"
    path = _path(graph, loss, wanted)
    g = Backward(graph)
    g.at(loss)
    before = set(graph.nodes)
    totals = {loss: g.constant(1.0)}
    for node in reversed(path):
        gradients = [totals.get(output) for output in node.outputs]
        if all(d is None for d in gradients):
            continue
        g.at(next(o for o, d in zip(node.outputs, gradients, strict=True) if d is not None))
        found = GRADIENTS[node.op.name].row(g, node, *gradients)
        found = [found] if found is None or isinstance(found, str) else found
        for operand, d in zip(node.operands, found, strict=True):
            if operand is not None and d is not None:
                total = totals.get(operand)
                totals[operand] = d if total is None or scatter_into(graph, d, total) else g.add(total, d)
    results = {name: totals[name] for name in wanted if name in totals and _is_float(graph, name)}
    _prune(graph, before, set(results.values()))
    return results


def scatter_into(graph: Graph, d: str, total: str) -> bool:
    """Redirect a rule's scatter into zeros to add to a total instead; return whether d is such a scatter."""
    node = graph.producer(d)
    while node is not None and node.op.name == "scatter_elements" and node.reduction == "add":
        into = graph.producer(node.operands[0])
        if _is_zeros(graph, into):
            graph.set_operands(node, [total, *node.operands[1:]])
            return True
        node = into
    return False


def _is_zeros(graph: Graph, node: Node | None) -> bool:
    data = graph.data(node.operands[0]) if node is not None and node.op.name == "expand" else None
    return data is not None and not data.any()


def _is_float(graph: Graph, name: str) -> bool:
    type = graph.values[name].type
    return isinstance(type, TensorType) and type.dtype.kind == "f"


def _path(graph: Graph, loss: str, wanted: Iterable[str]) -> list[Node]:
    """Return the nodes between the wanted values and a loss, in order; all have gradient rules."""
    while True:
        path = _between(graph, loss, wanted)
        without = [node for node in path if _refusal(node)]
        simpler = [node for node in without if node.op.expand is not None or not _refusal_to_unroll(graph, node)]
        if not simpler:
            break
        for node in simpler:
            _decompose(graph, node)
    if without:
        reasons = ((node, _refusal_to_unroll(graph, node) or _refusal(node)) for node in without)
        listed = "; ".join(f"{node.op.name} {node.outputs[0]!r}, {reason}" for node, reason in reasons)
        raise UnsupportedError(f"graph {graph.name!r}: ops without a gradient, got {listed}")
    return path


def _refusal_to_unroll(graph: Graph, node: Node) -> str:
    """Return why a node cannot be unrolled into steps, or ""."""
    row = UNROLLED.get(node.op.name)
    return _refusal(node) if row is None else row.refuse(node, graph.type(str(node.operands[0])).dims[0])


def _decompose(graph: Graph, node: Node) -> None:
    if node.op.expand is not None:
        expand_node(graph, node)
        return
    g = Expansion(graph, node)
    results = UNROLLED[node.op.name].write(g, *node.operands, **node.attributes)
    replace_node(graph, node, results if isinstance(results, tuple) else (results,))


def _refusal(node: Node) -> str:
    """Return why a node has no gradient, or ""."""
    row = GRADIENTS.get(node.op.name)
    return row.refuse(node) if row is not None else MISSING.get(node.op.name, "which has no rule")


def _between(graph: Graph, loss: str, wanted: Iterable[str]) -> list[Node]:
    depending = {name for name in wanted if _is_float(graph, name)}
    forward = []
    for node in graph.nodes:
        if node.op.name not in FLAT and not depending.isdisjoint(node.operands):
            float_outputs = [output for output in node.outputs if _is_float(graph, output)]
            depending.update(float_outputs)
            forward += [node] if float_outputs else []
    needed, path = {loss}, []
    for node in reversed(forward):
        if not needed.isdisjoint(node.outputs):
            needed.update(operand for operand in node.operands if operand in depending)
            path.append(node)
    return path[::-1]


def _prune(graph: Graph, before: set[Node], results_wanted: set[str]) -> None:
    """Remove nodes that were added for unwanted gradients."""

    def is_read(name: str) -> bool:
        return name in results_wanted or bool(graph.values[name].users) or graph.is_output(name)

    for node in reversed(list(graph.nodes)):
        if node in before or any(map(is_read, node.outputs)):
            continue
        operands = {operand for operand in node.operands if operand is not None}
        graph.remove(node)
        for operand in operands:
            if graph.values[operand].kind == "constant" and not is_read(operand):
                graph.remove_value(operand)

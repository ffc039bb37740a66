"""Activations that are computed again where gradients need them, so that they need not be kept until then."""

from __future__ import annotations

from ingot.ir import Graph, Node

# What is computed of one operand, which the gradient of the op reads anyway.
_AGAIN = frozenset(("silu", "gelu", "mish", "softplus", "hard_swish"))


def recompute_activations(graph: Graph, loss: str) -> None:
    """Has what comes after a loss read copies of activations that are made where they are read.

    Only of activations whose operand is kept for the gradients anyway, so that nothing new is kept. Passes that merge
    equal nodes would undo it.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    last = graph.producer(loss)
    assert last is not None
    for node in list(graph.nodes):
        if order[node] >= order[last] or node.op.name not in _AGAIN or graph.is_output(node.output):
            continue
        later = _after(graph, node.output, order, order[last])
        if later and _after(graph, str(node.operands[0]), order, order[last]):
            first = min(later, key=order.__getitem__)
            again = graph.add(node.op.name, node.operands, f"{node.output}.again", before=first, **node.attributes)
            for user in later:
                graph.set_operands(user, [again.output if o == node.output else o for o in user.operands])


def _after(graph: Graph, value: str, order: dict[Node, int], place: int) -> list[Node]:
    """The nodes behind a place that read a value."""
    return [user for user in graph.users(value) if order.get(user, 0) > place]

"""Dead code: nodes, weights and constants that no output or state update needs."""

from ingot.ir import Graph


def eliminate_dead(graph: Graph) -> bool:
    """Removes nodes, weights and constants that nothing reads. Graph inputs stay: they are the caller's contract.

    A node some of whose dims are used stays too.
    """
    changed = False
    kept = {*graph.outputs.values(), *graph.states.values()}  # and values some of whose dims are used
    for node in reversed(list(graph.nodes)):
        if kept.isdisjoint(node.outputs) and not any(graph.values[name].users for name in node.outputs):
            graph.remove(node)
            changed = True
        elif graph.measured:
            kept.update(graph.measured[symbol] for symbol in graph.mentioned(node))
    unread = [value for value in graph.values.values() if not value.users and value.name not in kept]
    for value in unread:
        if value.kind in ("weight", "constant"):
            graph.remove_value(value.name)
            changed = True
    return changed

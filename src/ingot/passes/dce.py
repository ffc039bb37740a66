"""Dead code: nodes, weights and constants that no output or state update needs."""

from ingot.ir.graph import Graph


def eliminate_dead(graph: Graph) -> bool:
    """Remove nodes, weights and constants that nothing reads. Graph inputs stay: they are the caller's contract.

    A node whose dims are used stays too.
    """
    changed = False
    used = {*graph.outputs.values(), *graph.states.values()}  # and values whose dims are used
    values = graph.values
    for node in reversed(list(graph.nodes)):
        for name in node.outputs:
            if values[name].users or name in used:
                break
        else:
            graph.remove(node)
            changed = True
            continue
        if graph.measured:
            used.update(graph.measured[symbol] for symbol in graph.mentioned(node))
    unread = [value for value in values.values() if not value.users and value.name not in used]
    for value in unread:
        if value.kind in ("weight", "constant"):
            graph.remove_value(value.name)
            changed = True
    return changed

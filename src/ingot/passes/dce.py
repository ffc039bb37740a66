"""Dead code: nodes, weights and constants that no output or state update needs."""

from ingot.ir import Graph


def eliminate_dead(graph: Graph) -> bool:
    """Removes nodes, weights and constants that nothing reads. Graph inputs stay: they are the caller's contract.

    A node some of whose dims are used stays too.
    """
    changed = False
    measured: set[str] = set()  # values some of whose dims are used
    for node in reversed(list(graph.nodes)):
        if not any(graph.values[name].users or graph.is_output(name) or name in measured for name in node.outputs):
            graph.remove(node)
            changed = True
        elif graph.measured:
            measured.update(graph.measured[symbol] for symbol in graph.mentioned(node))
    for name, value in list(graph.values.items()):
        if value.kind in ("weight", "constant") and not value.users and not graph.is_output(name):
            graph.remove_value(name)
            changed = True
    return changed

"""Dead code: nodes, weights and constants that no output or state update needs."""

from ingot.ir import Graph


def eliminate_dead(graph: Graph) -> bool:
    """Removes nodes, weights and constants that nothing reads. Graph inputs stay: they are the caller's contract."""
    changed = False
    for node in reversed(list(graph.nodes)):
        if not any(graph.values[name].users or graph.is_output(name) for name in node.outputs):
            graph.remove(node)
            changed = True
    for name, value in list(graph.values.items()):
        if value.kind in ("weight", "constant") and not value.users and not graph.is_output(name):
            graph.remove_value(name)
            changed = True
    return changed

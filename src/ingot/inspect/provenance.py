"""The forms of a node after the passes."""

from __future__ import annotations

from typing import Any

from ingot.ir.graph import Graph, Node


def became_of(graph: Graph, loaded: Graph, node: Node) -> list[dict[str, Any]]:
    """Return the nodes or constants of an optimized graph that a node of the loaded graph became.

    how: "same"; "rewritten", its value is computed differently; "constant"; "fused", its value no longer exists and
    these are the nearest values after it. The list is empty for a node that no result depends on.
    """
    found: dict[str, dict[str, Any]] = {}
    waiting, known = list(node.outputs), set(node.outputs)
    for name in waiting:
        value = graph.values.get(name)
        if value is None:
            following = dict.fromkeys(output for user in loaded.users(name) for output in user.outputs)
            waiting += [name for name in following if name not in known]
            known |= following.keys()
        elif value.producer is None:
            found[name] = {"name": name, "op": value.kind, "how": "constant" if name in node.outputs else "fused"}
        else:
            now = value.producer
            while now.op.view and not node.op.view and (above := graph.producer(now.operands[0])) is not None:
                now = above  # the view's source, which computes several values
            if now is not value.producer:
                found[now.outputs[0]] = {"name": now.outputs[0], "op": now.op.name, "how": "fused"}
                continue
            is_same = now.op is node.op and now.operands == node.operands and name in node.outputs
            how = "same" if is_same else "rewritten" if name in node.outputs else "fused"
            found[now.outputs[0]] = {"name": now.outputs[0], "op": now.op.name, "how": how}
    return list(found.values())

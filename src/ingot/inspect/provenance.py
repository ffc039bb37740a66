"""What the passes made of a node."""

from __future__ import annotations

from typing import Any

from ingot.ir.graph import Graph, Node


def became_of(graph: Graph, loaded: Graph, node: Node) -> list[dict[str, Any]]:
    """The nodes of an optimised graph that a loaded one's node is in, or the constant that it is.

    how: "same"; "rewritten", its value made in another way; "constant"; "fused", its value gone and part of what makes
    these, the nearest values behind it that are left. Nothing is left of what no result needs.
    """
    left: dict[str, dict[str, Any]] = {}
    waiting, known = list(node.outputs), set(node.outputs)
    for name in waiting:
        value = graph.values.get(name)
        if value is None:
            made = dict.fromkeys(output for user in loaded.users(name) for output in user.outputs)
            waiting += [name for name in made if name not in known]
            known |= made.keys()
        elif value.producer is None:
            left[name] = {"name": name, "op": value.kind, "how": "constant" if name in node.outputs else "fused"}
        else:
            now = value.producer
            while now.op.view and not node.op.view and (above := graph.producer(now.operands[0])) is not None:
                now = above  # a view of what computes it together with others
            if now is not value.producer:
                left[now.outputs[0]] = {"name": now.outputs[0], "op": now.op.name, "how": "fused"}
                continue
            is_same = now.op is node.op and now.operands == node.operands and name in node.outputs
            how = "same" if is_same else "rewritten" if name in node.outputs else "fused"
            left[now.outputs[0]] = {"name": now.outputs[0], "op": now.op.name, "how": how}
    return list(left.values())

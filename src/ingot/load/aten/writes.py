"""Replace calls that write into tensors by calls that return the new values, if no other view of the memory is
read.

torch makes a whole program functional by tracing it again. Most programs that write need less: an in-place activation,
a residual added to a sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._functorch import is_batchedtensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from ingot.load.aten.registry import RULES

_DROPOUT = torch.ops.aten.dropout.default
_TO = torch.ops.aten.to.dtype


def writes(target: Any) -> bool:
    """Return whether an op writes into an argument."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def without_writes(module: GraphModule) -> Graph | None:
    """Copy a module's graph without writes: later nodes read the result of a write.

    None where this is impossible: where an input or a weight is written, or memory with other views, or in a region, or
    by an op without a functional counterpart that has a rule; and where the graph's fake tensors do not record shared
    memory, as for a file and for `vmap`.
    """
    regions = [part for part in module.modules() if isinstance(part, GraphModule) and part is not module]
    if any(writes(node.target) for region in regions for node in region.graph.nodes):
        return None
    if any(is_batchedtensor(leaf) for node in module.graph.nodes for leaf in _tensors(node)):
        return None
    twin, current = Graph(), dict[Node, Node]()  # node -> the node with its present value
    sharing: dict[int, list[Node]] = {}  # by memory: the nodes with values in it
    for node in module.graph.nodes:
        copy = twin.node_copy(node, current.__getitem__)
        copy.name = node.name  # also where it is a word of Python, as `input` is
        current[node] = copy
        for memory in _memory(node):
            sharing.setdefault(memory, []).append(node)
        if writes(node.target):
            like, views = _like(node.target), sharing.get(_memory(node.args[0])[0], [])
            if like is None or not _is_alone(node, views):
                return None
            copy.target = like
            remaining = twin.call_function(_TO, (copy, node.meta["val"].dtype))  # of a comparison, or of wider operands
            remaining.meta = dict(copy.meta)
            current |= dict.fromkeys(views, remaining)
    return twin


def _memory(node: Node) -> list[int]:
    """Return the memory of a node's tensors. In eval mode dropout returns its operand, which tracing copies."""
    if node.target is _DROPOUT:
        return _memory(node.args[0])  # type: ignore[arg-type]
    return [tensor.untyped_storage()._cdata for tensor in _tensors(node)]


def _tensors(node: Node) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]


def _like(target: Any) -> Any:
    """Return the op that computes what another writes into its first argument; None without one that has a rule."""
    schema, name = target._schema, target._schema.name.partition("::")[2]
    written = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
    if not name.endswith("_") or written.count(True) != 1 or not written[0] or len(schema.returns) != 1:
        return None
    found = getattr(getattr(torch.ops, target.namespace), name[:-1], None)
    like = getattr(found, target._overloadname, None)
    return like if str(like) in RULES else None


def _is_alone(node: Node, views: list[Node]) -> bool:
    """Return whether all views of the memory that a call writes are computed, and cover the same elements."""
    output = node.meta["val"]
    if node not in views:
        return False
    form = output.dtype, output.shape, output.stride(), output.storage_offset()
    for view in views:
        stored = view.meta["val"]
        if view.op != "call_function" or view.target is _DROPOUT or not isinstance(stored, torch.Tensor):
            return False
        if (stored.dtype, stored.shape, stored.stride(), stored.storage_offset()) != form:
            return False
    return True

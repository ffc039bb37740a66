"""Calls that write into tensors -> calls that give what these become, where no other view of the memory is read.

torch makes a whole program functional by tracing it once more. Most that write need less: an activation in its place,
a residual that is added to a sum.
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
    """Whether an op writes into an argument."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def without_writes(module: GraphModule) -> Graph | None:
    """A copy of a module's graph in which nothing is written into: what comes behind a write reads its result.

    None where that does not do: where an input or a weight is written into, or memory that other views are of, or in a
    region, or by an op that no rule has the like of; and where the graph's fake tensors do not say what shares memory,
    as those of a file and of `vmap` do not.
    """
    regions = [part for part in module.modules() if isinstance(part, GraphModule) and part is not module]
    if any(writes(node.target) for region in regions for node in region.graph.nodes):
        return None
    if any(is_batchedtensor(leaf) for node in module.graph.nodes for leaf in _tensors(node)):
        return None
    twin, current = Graph(), dict[Node, Node]()  # of each node: what holds its value by now
    sharing: dict[int, list[Node]] = {}  # by memory: the nodes whose values lie in it
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
            kept = twin.call_function(_TO, (copy, node.meta["val"].dtype))  # of a comparison, or of wider operands
            kept.meta = dict(copy.meta)
            current |= dict.fromkeys(views, kept)
    return twin


def _memory(node: Node) -> list[int]:
    """What memory the tensors of a node lie in. In eval mode dropout gives its operand back, which tracing copies."""
    if node.target is _DROPOUT:
        return _memory(node.args[0])  # type: ignore[arg-type]
    return [tensor.untyped_storage()._cdata for tensor in _tensors(node)]


def _tensors(node: Node) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]


def _like(target: Any) -> Any:
    """The op that gives what another writes into its first argument; None where there is none with a rule."""
    schema, name = target._schema, target._schema.name.partition("::")[2]
    written = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
    if not name.endswith("_") or written.count(True) != 1 or not written[0] or len(schema.returns) != 1:
        return None
    found = getattr(getattr(torch.ops, target.namespace), name[:-1], None)
    like = getattr(found, target._overloadname, None)
    return like if str(like) in RULES else None


def _is_alone(node: Node, views: list[Node]) -> bool:
    """Whether all that lies in the memory that a call writes is what it gives, whole, and was computed."""
    made = node.meta["val"]
    if node not in views:
        return False
    form = made.dtype, made.shape, made.stride(), made.storage_offset()
    for view in views:
        held = view.meta["val"]
        if view.op != "call_function" or view.target is _DROPOUT or not isinstance(held, torch.Tensor):
            return False
        if (held.dtype, held.shape, held.stride(), held.storage_offset()) != form:
            return False
    return True

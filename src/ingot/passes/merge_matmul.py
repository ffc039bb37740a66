"""Parallel matmuls with one input become one: query, key and value; gate and up."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.ir import Graph, Node
from ingot.node import merged_sources
from ingot.passes.fold import DECODERS
from ingot.passes.match import same_type

# What makes floats of a weight as it is stored, or codes of floats before; and what may be done to the codes.
_DECODING = DECODERS | {"cast", "quantize_groups"}
_MOVES = frozenset(("bitcast", "bitwise_xor", "gather", "permute", "reshape", "slice"))


def merge_matmuls(graph: Graph) -> bool:
    """matmul(x, W1), matmul(x, W2), ... becomes slices of matmul(x, concat(W1, W2, ...)), biases included.

    The weights may be casts, decoded, or quantised. Their concat stays in the graph: it is a recipe of the weight
    store, not a constant.
    Refused: weights that are not rank 2, other scales or flags, a transposed x, another k, codes of another kind, which
    kernels cannot read side by side.
    """
    groups: dict[Any, list[Node]] = {}
    stored: dict[str, bool] = {}
    for node in graph.nodes:
        if node.op.name == "matmul" and _is_mergeable(graph, node, stored):
            key = (node.operands[0], node.transpose_b, node.scale, _coding(graph, str(node.operands[1])))
            groups.setdefault(key, []).append(node)
    changed = False
    for nodes in groups.values():
        if len(nodes) > 1:
            _merge(graph, nodes)
            changed = True
    return changed


def _is_mergeable(graph: Graph, node: Node, stored: dict[str, bool]) -> bool:
    x, weight = node.operands
    assert x is not None and weight is not None
    if node.transpose_a or not _is_stored(graph, weight, stored) or graph.type(weight).rank != 2:
        return False
    return graph.type(x).rank >= 2 and None not in graph.type(x).shape


def _is_stored(graph: Graph, name: str, known: dict[str, bool], decoded: bool = False) -> bool:
    """Whether a value is a weight or constant, perhaps decoded from how it is stored, or quantised before.

    known: what was found of others. decoded: it is, further on.
    """
    node = graph.producer(name)
    if node is None:
        return graph.values[name].kind in ("weight", "constant")
    if node.op.name not in _DECODING and not (decoded and node.op.name in _MOVES):
        return False
    if name not in known:
        known[name] = all(_is_stored(graph, o, known, True) for o in filter(None, node.operands))
    return known[name]


def _coding(graph: Graph, name: str) -> Any:
    """What tells the codes, or blocks, that a weight is decoded from from others; None for one that is not."""
    node = graph.producer(name)
    if node is None or node.op.name not in DECODERS:
        return None
    dtypes = tuple(graph.type(operand).dtype for operand in filter(None, node.operands))
    return node.op, dtypes, tuple(sorted(node.attributes.items(), key=lambda each: each[0]))


def _stored(graph: Graph, name: str, before: Node, made: dict[str, str]) -> str:
    """Such a value, computed before a node: what decodes it may stand further down. made: those there are, by name."""
    node = graph.producer(name)
    if node is None:
        return name
    if name not in made:
        operands = [operand and _stored(graph, operand, before, made) for operand in node.operands]
        hints = [f"{output}.early" for output in node.outputs]
        early = graph.add(node.op.name, operands, hints, before=before, **node.attributes).outputs
        made.update(zip(node.outputs, early, strict=True))
    return made[name]


def _merge(graph: Graph, nodes: list[Node]) -> None:
    """Replaces the matmuls, or the additions of their biases when one of them has one, by slices."""
    first = nodes[0]
    made: dict[str, str] = {}
    weights = [_stored(graph, str(node.operands[1]), first, made) for node in nodes]
    axis = 0 if first.transpose_b else 1
    sizes = [graph.type(w).dims[axis] for w in weights]
    packed = graph.add("concat", weights, f"{weights[0]}.merged", before=first, axis=axis).output
    operands = [first.operands[0], packed]
    hint, sources = f"{first.output}.merged", merged_sources((), *(node.sources for node in nodes))
    merged = graph.add("matmul", operands, hint, before=first, sources=sources, **first.attributes).output
    additions = [_bias_addition(graph, node) for node in nodes]
    replaced = [addition or node for addition, node in zip(additions, nodes, strict=True)]
    if any(additions):
        biases = [
            _stored(graph, _bias(graph, node, addition, size), first, made)
            for node, addition, size in zip(nodes, additions, sizes, strict=True)
        ]
        bias = graph.add("concat", biases, f"{biases[0]}.merged", before=first, axis=0).output
        sources = merged_sources((), *(addition.sources for addition in additions if addition is not None))
        merged = graph.add("add", [merged, bias], f"{merged}.biased", before=first, sources=sources).output
    parts = _slices(graph, merged, replaced, sizes, first)
    for node, part in zip(replaced, parts, strict=True):
        name = node.output
        graph.replace(node, part)
        graph.rename(part, name)
    for node in nodes:
        if node not in replaced:
            graph.remove(node)


def _bias_addition(graph: Graph, node: Node) -> Node | None:
    """The node that adds a fixed bias vector to a matmul whose only reader it is."""
    add = graph.only_user(node.output)
    if add is None or add.op.name != "add":
        return None
    bias = next((o for o in add.operands if o != node.output), None)
    if bias is None or not _is_stored(graph, bias, {}) or graph.type(bias).rank != 1:
        return None
    n = graph.type(node.output).shape[-1]
    is_bias = graph.type(bias).shape == (n,) and same_type(graph.type(add.output), graph.type(node.output))
    return add if is_bias else None


def _bias(graph: Graph, node: Node, addition: Node | None, size: int) -> str:
    """The bias of one matmul; zeros for one that has none among siblings that have."""
    if addition is None:
        zeros = np.zeros(size, graph.type(node.output).dtype.numpy)
        return graph.add_constant(graph.fresh(f"{node.output}.zeros"), zeros)
    return next(str(o) for o in addition.operands if o != node.output)


def _slices(graph: Graph, merged: str, replaced: list[Node], sizes: list[int], before: Node) -> list[str]:
    """Consecutive ranges of the last axis, of the given sizes, named as the nodes whose places they take."""
    shape = graph.type(merged).shape
    parts, start = [], 0
    for node, size in zip(replaced, sizes, strict=True):
        ranges: dict[str, Any] = {
            "starts": (0,) * (len(shape) - 1) + (start,),
            "stops": (*shape[:-1], start + size),
            "steps": (1,) * len(shape),
        }
        parts.append(graph.add("slice", [merged], node.output, before=before, sources=node.sources, **ranges).output)
        start += size
    return parts

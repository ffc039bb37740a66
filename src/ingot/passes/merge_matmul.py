"""Merge parallel matmuls with one input if that costs no memory: query, key and value; gate and up.

A merged product occupies memory for all of its slices as long as one of them is read. Products whose results are
combined before the next product by a constant weight are alive together anyway. For others, the lower bound of the
graph's memory decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot.ir.graph import Graph, Node
from ingot.ir.liveness import Liveness
from ingot.ir.node import merged_sources
from ingot.passes.fold import DECODERS
from ingot.passes.match import same_type

# Ops that decode a stored weight or quantize it before; and the ops that may move quantized values.
_DECODING = DECODERS | {"cast", "quantize_groups"}
_MOVES = frozenset(("bitcast", "bitwise_xor", "gather", "permute", "reshape", "slice"))
# The index of the operand of a product with a constant weight.
_WEIGHT_OPERAND = dict.fromkeys(("conv", "conv_integer", "conv_transpose", "gru", "lstm", "matmul"), 1)
_WEIGHT_OPERAND |= {"matmul_integer": 1, "rnn": 1, "expert_matmul": 2}
_TYPICAL = 64  # the size of a symbol if sizes decide


def merge_matmuls(graph: Graph) -> bool:
    """Rewrite matmul(x, W1), matmul(x, W2), ... to slices of matmul(x, concat(W1, W2, ...)), biases included.

    The weights may be cast, decoded, or quantized. Their concat stays in the graph: it is a packed weight of the weight
    store, not a constant. Refused: weights that are not rank 2, other scales or flags, a transposed x, another k,
    another quantization, which kernels cannot read side by side; a product that would lose its activation or residual;
    and products with separate readers, if the graph would need more memory at once. `Graph.trades` records the decision
    of the last two.
    """
    groups: dict[Any, list[Node]] = {}
    stored: dict[str, bool] = {}
    for node in graph.nodes:
        if node.op.name == "matmul" and _is_mergeable(graph, node, stored):
            key = (node.operands[0], node.transpose_b, node.scale, _quantization(graph, str(node.operands[1])))
            groups.setdefault(key, []).append(node)
    changed = False
    asked: dict[Any, str] = {}  # identical layers share the decision
    for nodes in groups.values():
        for chosen in _worth_merging(graph, nodes, asked) if len(nodes) > 1 else ():
            _merge(graph, chosen)
            changed = True
    return changed


def _worth_merging(graph: Graph, nodes: list[Node], asked: dict[Any, str]) -> list[list[Node]]:
    """Return the groups of at least two products to merge, of products with one input; record the decisions.

    asked: decisions by memory size, by the types of products.
    """
    results = {node: (_bias_addition(graph, node) or node).output for node in nodes}
    loses = _losing(graph, results)
    separate = [[node for node in group if node not in loses] for group in _meeting(graph, results)]
    separate = [group for group in separate if group]
    if loses:
        graph.trades[tuple(results[node] for node in loses)] = "not merged: each kernel computes an epilogue"
    together = [node for node in nodes if node not in loses]
    groups = [group for group in separate if len(group) > 1]
    for group in groups:
        graph.trades[tuple(results[node] for node in group)] = "merged: their results are used together"
    if len(separate) > 1:
        key = tuple(results[node] for node in together)
        form = tuple(tuple(graph.type(results[node]) for node in group) for group in separate)
        if key not in graph.trades:
            graph.trades[key] = asked[form] if form in asked else _asked(graph, together, groups)
            asked[form] = graph.trades[key]
        if graph.trades[key].startswith("merged"):
            return [together]
    return groups


def _asked(graph: Graph, together: Sequence[Node], groups: Sequence[Sequence[Node]]) -> str:
    """Decide whether products with separate readers are merged, by the bytes that the graph needs at once."""
    least = []
    for each in ([together], groups):
        twin = graph.copy()
        for group in each:
            _merge(twin, [node for name in (n.output for n in group) if (node := twin.producer(name)) is not None])
        found = Liveness.of(twin)
        least.append(None if found is None else found.least(dict.fromkeys(graph.symbols, _TYPICAL)))
    merged, separate = least
    if merged is None or separate is None:
        return "not merged: their readers are separate, and a shape is unknown"
    sizes = f"{merged} bytes at once, {separate} separately"
    sizes += f", where each of {', '.join(graph.symbols)} is {_TYPICAL}" if graph.symbols else ""
    return f"merged: no more memory, {sizes}" if merged <= separate else f"not merged: more memory, {sizes}"


def _meeting(graph: Graph, results: dict[Node, str]) -> list[list[Node]]:
    """Group products whose results are combined, also through others, before another product by a constant weight.

    results: of each product, its bias included.
    """

    def goes_on(node: Node) -> bool:
        position = _WEIGHT_OPERAND.get(node.op.name)
        return position is None or not _is_stored(graph, str(node.operands[position]), {})

    return _components({node: _reached(graph, result, goes_on) for node, result in results.items()})


def _losing(graph: Graph, results: dict[Node, str]) -> list[Node]:
    """Return the products whose kernel applies an activation or adds a residual; the slices of a merged product cannot.

    A product whose result is combined element by element with another of the products is excluded: one step then
    computes all of it, such as a gate.
    """

    def by_element(node: Node) -> bool:
        return node.op.acts_on == "element"

    alone = [node for node, result in results.items() if _has_epilogue(graph, result)]
    if not alone:
        return []
    groups = _components({node: _reached(graph, result, by_element) for node, result in results.items()})
    return [node for group in groups if len(group) == 1 for node in group if node in alone]


def _has_epilogue(graph: Graph, value: str) -> bool:
    """Return whether the only reader of a product is an activation, or a sum with a value of its type."""
    user = graph.only_user(value)
    if user is None or user.op.acts_on != "element" or not same_type(graph.type(user.output), graph.type(value)):
        return False
    if len(user.operands) == 1:
        return user.op.name != "cast"
    other = next((operand for operand in user.operands if operand not in (value, None)), None)
    return user.op.name == "add" and other is not None and same_type(graph.type(other), graph.type(value))


def _reached(graph: Graph, value: str, goes_on: Callable[[Node], bool]) -> set[str]:
    """Return a value, and the values computed from it through nodes for which `goes_on` holds."""
    found, waiting = {value}, [value]
    while waiting:
        for user in graph.users(waiting.pop()):
            new = [name for name in user.outputs if name not in found] if goes_on(user) else []
            found.update(new)
            waiting += new
    return found


def _components(reached: dict[Node, set[str]]) -> list[list[Node]]:
    """Group nodes whose sets share a value, directly or through other nodes, in order."""
    group_of: dict[Node, list[Node]] = {}
    first: dict[str, Node] = {}  # value -> the first node whose set contains it
    position = {node: i for i, node in enumerate(reached)}
    for node, values in reached.items():
        met = {position[group_of[first[value]][0]] for value in values if value in first}
        first |= {value: node for value in values if value not in first}
        nodes = list(reached)
        groups = [group_of[nodes[i]] for i in sorted(met)]
        joined = sorted({node, *(n for group in groups for n in group)}, key=position.__getitem__)
        group_of |= dict.fromkeys(joined, joined)
    return list({id(group): group for group in group_of.values()}.values())


def _is_mergeable(graph: Graph, node: Node, stored: dict[str, bool]) -> bool:
    x, weight = node.operands
    assert x is not None and weight is not None
    if node.transpose_a or not _is_stored(graph, weight, stored) or graph.type(weight).rank != 2:
        return False
    return graph.type(x).rank >= 2 and None not in graph.type(x).shape


def _is_stored(graph: Graph, name: str, known: dict[str, bool], decoded: bool = False) -> bool:
    """Return whether a value is a weight or constant, possibly decoded or quantized.

    known: results for other values. decoded: whether a later node decodes the value.
    """
    node = graph.producer(name)
    if node is None:
        return graph.values[name].kind in ("weight", "constant")
    if node.op.name not in _DECODING and not (decoded and node.op.name in _MOVES):
        return False
    if name not in known:
        known[name] = all(_is_stored(graph, o, known, True) for o in filter(None, node.operands))
    return known[name]


def _quantization(graph: Graph, name: str) -> Any:
    """Return a key for the quantization or block type that a weight is decoded from; None if it is not decoded."""
    node = graph.producer(name)
    if node is None or node.op.name not in DECODERS:
        return None
    dtypes = tuple(graph.type(operand).dtype for operand in filter(None, node.operands))
    return node.op, dtypes, tuple(sorted(node.attributes.items(), key=lambda each: each[0]))


def _stored(graph: Graph, name: str, before: Node, built: dict[str, str]) -> str:
    """Return a stored value, computed before a node: its decoder may come later. built: earlier results, by name."""
    node = graph.producer(name)
    if node is None:
        return name
    if name not in built:
        operands = [operand and _stored(graph, operand, before, built) for operand in node.operands]
        hints = [f"{output}.early" for output in node.outputs]
        early = graph.add(node.op.name, operands, hints, before=before, **node.attributes).outputs
        built.update(zip(node.outputs, early, strict=True))
    return built[name]


def _merge(graph: Graph, nodes: list[Node]) -> None:
    """Replace the matmuls, or the additions of their biases if one of them has one, by slices."""
    first = nodes[0]
    built: dict[str, str] = {}
    weights = [_stored(graph, str(node.operands[1]), first, built) for node in nodes]
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
            _stored(graph, _bias(graph, node, addition, size), first, built)
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
    """Return the node that adds a constant bias vector to a matmul, if it is the matmul's only reader."""
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
    """Return the bias of one matmul; zeros if only its siblings have one."""
    if addition is None:
        zeros = np.zeros(size, graph.type(node.output).dtype.numpy)
        return graph.add_constant(graph.fresh(f"{node.output}.zeros"), zeros)
    return next(str(o) for o in addition.operands if o != node.output)


def _slices(graph: Graph, merged: str, replaced: list[Node], sizes: list[int], before: Node) -> list[str]:
    """Return consecutive slices of the last axis, of the given sizes, named after the nodes that they replace."""
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

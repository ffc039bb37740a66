"""Absorption into matmul and attention: transposes become flags, scalar factors become `scale`."""

from __future__ import annotations

import math

from ingot.ir import Graph, Node
from ingot.passes.match import has_known_type, is_float, same_type, scalar, substitute

_VIEWS = frozenset(("reshape", "permute", "slice", "expand"))


def absorb_transpose(graph: Graph) -> bool:
    """matmul(a, permute(b)) becomes matmul(a, b, transpose_b): only for a swap of exactly the last two dims.

    It runs before folding, so that the transpose of a weight is never materialised.
    """
    changed = False
    for node in graph.nodes:
        if node.op.name != "matmul":
            continue
        operands, attributes = list(node.operands), dict(node.attributes)
        for i, flag in enumerate(("transpose_a", "transpose_b")):
            permute = graph.producer(operands[i])
            while permute is not None and permute.op.name == "permute" and swaps_last_two(permute.axes):
                operands[i] = permute.operands[0]
                attributes[flag] = not attributes[flag]
                permute = graph.producer(operands[i])
        if operands != list(node.operands):
            changed |= substitute(graph, node, "matmul", operands, attributes) is not None
    return changed


def swaps_last_two(axes: tuple[int, ...]) -> bool:
    """True for the permutation that swaps the last two dims and nothing else."""
    rank = len(axes)
    return rank >= 2 and axes == (*range(rank - 2), rank - 1, rank - 2)


def absorb_scale(graph: Graph) -> bool:
    """Moves factors into the `scale` of a matmul or attention: of its operands, then of a matmul's result.

    An operand's factor is found through views too, and goes first: a factor between two matmuls then belongs to the
    second, which leaves the first free to be merged with its siblings.
    """
    changed = False
    for node in graph.nodes:
        if node.op.name in ("matmul", "attention") and has_known_type(graph, node.output):
            changed |= _absorb_operands(graph, node)
    for node in graph.nodes:
        if node.op.name in ("mul", "div"):
            changed |= _absorb_result(graph, node)
    return changed


def _absorb_operands(graph: Graph, node: Node) -> bool:
    operands, scale = list(node.operands), node.scale
    for i in range(2):
        source = _unscaled(graph, node, operands[i])
        while source is not None:
            operands[i], factor = source
            scale *= factor
            source = _unscaled(graph, node, operands[i])
    if operands == list(node.operands):
        return False
    return substitute(graph, node, node.op.name, operands, node.attributes | {"scale": scale}) is not None


def _unscaled(graph: Graph, user: Node, name: str | None) -> tuple[str, float] | None:
    """An operand without its factor, and the factor; views in between are made again over the bare value."""
    views: list[Node] = []
    while name is not None:
        node = graph.producer(name)
        if node is None:
            return None
        found = _factor(graph, node)
        if found is not None and (not views or graph.only_user(name) is not None):
            return _remake(graph, user, views, found[0]), found[1]
        if node.op.name not in _VIEWS or graph.only_user(name) is None:
            return None
        views.append(node)
        name = node.operands[0]
    return None


def _remake(graph: Graph, user: Node, views: list[Node], name: str) -> str:
    for view in reversed(views):
        name = graph.add(view.op.name, [name], view.output, before=user, **view.attributes).output
    return name


def _factor(graph: Graph, node: Node) -> tuple[str, float] | None:
    """(x, c) of a node that computes x * c with a finite constant c and keeps the type of x."""
    if node.op.name not in ("mul", "div"):
        return None
    a, b = node.operands
    assert a is not None and b is not None
    pairs = [(a, b), (b, a)] if node.op.name == "mul" else [(a, b)]
    for x, constant in pairs:
        number = scalar(graph, constant)
        if number is None or not same_type(graph.type(x), graph.type(node.output)) or not is_float(graph, x):
            continue
        if node.op.name == "div":
            number = 1 / number if number else math.inf
        if math.isfinite(number):
            return x, number
    return None


def _absorb_result(graph: Graph, node: Node) -> bool:
    found = _factor(graph, node)
    if found is None:
        return False
    matmul = graph.producer(found[0])
    if matmul is None or matmul.op.name != "matmul" or graph.only_user(found[0]) is None:
        return False
    attributes = matmul.attributes | {"scale": matmul.scale * found[1]}
    return substitute(graph, node, "matmul", matmul.operands, attributes) is not None

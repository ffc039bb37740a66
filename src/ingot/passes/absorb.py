"""Absorption into matmul and attention: transposes become flags, scalar factors become `scale`.

Into convolution and pooling: pads and biases become their attributes and operands.
"""

from __future__ import annotations

import math

from ingot.ir.graph import Graph, Node
from ingot.ops.attention import ATTENTIONS
from ingot.passes.dce import eliminate_dead
from ingot.passes.match import has_known_type, is_fixed, is_float, same_type, scalar, substitute

_VIEWS = frozenset(("reshape", "permute", "slice", "expand"))
_CONVOLUTIONS = ("conv", "conv_transpose")
_FACTORS = ("mul", "div")


def absorb_transpose(graph: Graph) -> bool:
    """Rewrite matmul(a, permute(b)) to matmul(a, b, transpose_b), for a swap of exactly the last two dims.

    The pass runs before folding, so that the transpose of a weight is never materialised. A permute that moves the
    channels of an image last before a matmul stays: in memory they already are rows.
    """
    changed = False
    for node in graph.nodes:
        if node.op.name != "matmul":
            continue
        operands, attributes = list(node.operands), dict(node.attributes)
        for i, flag in enumerate(("transpose_a", "transpose_b")):
            permute = graph.producer(operands[i])
            while permute is not None and permute.op.name == "permute" and swaps_last_two(permute.axes):
                if i == 0 and _is_image(graph, permute.operands[0]):
                    break
                operands[i] = permute.operands[0]
                attributes[flag] = not attributes[flag]
                permute = graph.producer(operands[i])
        if operands != list(node.operands):
            changed |= substitute(graph, node, "matmul", operands, attributes) is not None
    return changed


def _is_image(graph: Graph, value: str | None) -> bool:
    """Return whether a convolution computes a value, possibly followed by reshapes and element-wise ops."""
    node = graph.producer(value)
    while node is not None and (node.op.name == "reshape" or (node.op.acts_on, len(node.operands)) == ("element", 1)):
        node = graph.producer(node.operands[0])
    return node is not None and node.op.name == "conv"


def swaps_last_two(axes: tuple[int, ...]) -> bool:
    """Return whether a permutation swaps only the last two dims."""
    rank = len(axes)
    return rank >= 2 and axes == (*range(rank - 2), rank - 1, rank - 2)


def absorb_scale(graph: Graph) -> bool:
    """Move factors into the `scale` of a matmul or attention: factors of its operands, then of a matmul's result.

    A factor of an operand is found through views too, and goes first: a factor between two matmuls then belongs to the
    second, which leaves the first free to be merged with its siblings.
    """
    if graph.ops.isdisjoint(_FACTORS):
        return False
    changed = False
    for node in graph.nodes:
        if node.op.name in ("matmul", *ATTENTIONS) and has_known_type(graph, node.output):
            changed |= _absorb_operands(graph, node)
    for node in graph.nodes:
        if node.op.name in _FACTORS:
            changed |= _absorb_result(graph, node)
    return changed


def _absorb_operands(graph: Graph, node: Node) -> bool:
    operands, scale, changed = list(node.operands), node.scale, False
    for i in range(2):
        while (found := _unscaled(graph, operands[i])) is not None:
            operands[i], factor = found
            scale *= factor
            changed = True
    return changed and substitute(graph, node, node.op.name, operands, node.attributes | {"scale": scale}) is not None


def _unscaled(graph: Graph, operand: str | None) -> tuple[str | None, float] | None:
    """Return an operand without its factor, and the factor; views in between are rebuilt on the bare value."""
    name, view = operand, None
    while (node := graph.producer(name)) is not None and name is not None:
        found = _factor(graph, node)
        if found is not None and view is None:
            return found
        if graph.only_user(name) is None:
            return None
        if found is not None and view is not None:
            graph.set_operands(view, [found[0]])
            return operand, found[1]
        if node.op.name not in _VIEWS:
            return None
        name, view = node.operands[0], node
    return None


def _factor(graph: Graph, node: Node) -> tuple[str, float] | None:
    """Return (x, c) for a node that computes x * c with a finite constant c and x's type; else None."""
    if node.op.name not in _FACTORS:
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


def absorb_pad(graph: Graph) -> bool:
    """Rewrite conv(pad(x)) to conv(x) with larger pads, and pools alike if padding counts in the same way.

    Zero padding may go into a convolution, and into an average that counts padding or has no pads; -inf padding may go
    into a maximum.
    """
    changed = False
    for node in graph.nodes if "pad" in graph.ops else ():
        pad = graph.producer(node.operands[0]) if node.op.name in ("conv", "avg_pool", "max_pool") else None
        if pad is None or pad.op.name != "pad" or any((*pad.low[:2], *pad.high[:2])):
            continue
        attributes = dict(node.attributes)
        attributes["pads"] = tuple(a + b for a, b in zip(node.pads, pad.low[2:] + pad.high[2:], strict=True))
        if node.op.name == "avg_pool":
            attributes["count_include_pad"] = True
        counts = node.op.name != "avg_pool" or node.count_include_pad or not any(node.pads)
        if pad.value != (-math.inf if node.op.name == "max_pool" else 0) or not counts:
            continue
        operands = [pad.operands[0], *node.operands[1:]]
        if all(isinstance(amount, int) for amount in attributes["pads"]):
            changed |= substitute(graph, node, node.op.name, operands, attributes) is not None
    return changed


def absorb_bias(graph: Graph) -> bool:
    """Rewrite conv(x, w) + b to conv(x, w, b), for one element of b per channel and no other reader of the conv."""
    if graph.ops.isdisjoint(_CONVOLUTIONS):
        return False
    changed = eliminate_dead(graph)  # they would read the conv
    for node in graph.nodes:
        if node.op.name != "add" or not has_known_type(graph, node.output):
            continue
        conv = next((found for o in node.operands if (found := _without_bias(graph, o)) is not None), None)
        if conv is None:
            continue
        (bias,) = [o for o in node.operands if o != conv.output]
        shape, image = graph.type(str(bias)).shape, graph.type(conv.output)
        vector = (image.shape[1], *[1] * (image.rank - 2))
        if shape not in (vector, (1, *vector)) or not is_fixed(graph, bias):
            continue
        flat = graph.add("reshape", [bias], f"{node.output}.bias", before=node, shape=vector[:1]).output
        added = substitute(graph, node, conv.op.name, [*conv.operands[:2], flat], conv.attributes)
        assert added is not None
        changed = True
    return changed


def _without_bias(graph: Graph, name: str | None) -> Node | None:
    """Return the convolution without a bias that computes a value for one reader; else None."""
    node = graph.producer(name)
    if node is None or node.op.name not in _CONVOLUTIONS or graph.only_user(node.output) is None:
        return None
    return node if node.operands[2:] in ((), (None,)) else None

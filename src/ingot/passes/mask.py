"""Recognition of attention masks that are causal, or that mask nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.ir.graph import Graph, Node
from ingot.ops.attention import ATTENTIONS
from ingot.passes.affine import Affine, Indices, condition_of_array, moved, triangle
from ingot.passes.fold import TOTAL_BYTES, known
from ingot.passes.fuse_attention import MASKED
from ingot.passes.match import scalar, substitute

_MAX_DEPTH = 16  # of the arithmetic on a float mask


def recognise_masks(graph: Graph) -> bool:
    """Rewrite an attention mask that is exactly causal to the `causal` attribute; remove a mask that masks nothing.

    An expand of a mask is removed, since attention broadcasts it. Refused: causal and padding in one mask, and a finite
    mask that masks a row completely (the row is uniform then, while `causal` gives zeros).
    """
    changed = False
    for node in graph.nodes:
        if node.op.name in ATTENTIONS and len(node.operands) > 3 and node.operands[3] is not None:
            changed |= _recognise(graph, node)
    return changed


@dataclass(frozen=True)
class _Choice:
    """One number where a condition holds, another elsewhere."""

    condition: Affine
    yes: float
    no: float


def _recognise(graph: Graph, node: Node) -> bool:
    name = node.operands[3]
    expand = graph.producer(name)
    if expand is not None and expand.op.name == "expand":
        return _masked(graph, node, expand.operands[0], {})
    found = _unmasked(graph, str(name))
    if found is None:
        return False
    unmasked, is_finite = found
    if unmasked.always:
        return _masked(graph, node, None, {})
    offset = _causal_offset(graph, node, unmasked)
    if offset is None or (is_finite and offset < 0):
        return False
    if node.causal:
        offset = min(offset, node.causal_offset)
    return _masked(graph, node, None, {"causal": True, "causal_offset": offset})


def _masked(graph: Graph, node: Node, mask: str | None, attributes: dict[str, Any]) -> bool:
    """Set another mask of attention, or none, and other attributes."""
    behind = node.operands[4:]
    operands = [*node.operands[:3], *([] if mask is None and not behind else [mask]), *behind]
    return substitute(graph, node, node.op.name, operands, node.attributes | attributes) is not None


def _unmasked(graph: Graph, mask: str) -> tuple[Affine, bool] | None:
    """Return the condition under which a mask keeps a score, and whether it is finite elsewhere."""
    if graph.type(mask).dtype.kind == "b":
        condition = Indices(graph).condition(mask)
        return None if condition is None else (condition, False)
    choice = _choice(graph, mask)
    if choice is None:
        return None
    for condition, unmasked, masked in (
        (choice.condition, choice.yes, choice.no),
        (choice.condition.inverse, choice.no, choice.yes),
    ):
        if unmasked == 0 and (masked <= MASKED or condition.always):
            return condition, masked != -math.inf
    return None


def _causal_offset(graph: Graph, node: Node, unmasked: Affine) -> int | None:
    """Return o of the condition j - i - o <= 0 over the last two axes of [B, H, S, T]."""
    mask, q, k = (graph.type(str(node.operands[i])).shape for i in (3, 0, 1))
    if mask[-2:] != (q[2], k[2]) or None in mask or not isinstance(unmasked.constant, int):
        return None
    if unmasked.padded(4).coefficients != (0, 0, -1, 1):
        return None
    return -unmasked.constant


def _choice(graph: Graph, name: str, depth: int = 0) -> _Choice | None:
    """Return a float value with at most two different numbers as a choice; else None."""
    array = known(graph, name, TOTAL_BYTES)
    if array is not None:
        return _choice_of_array(array)
    node = graph.producer(name)
    if node is None or depth > _MAX_DEPTH:
        return None
    operands = [str(o) for o in node.operands]
    match node.op.name:
        case "where":
            yes, no = scalar(graph, operands[1]), scalar(graph, operands[2])
            condition = Indices(graph).condition(operands[0])
            return None if condition is None or yes is None or no is None else _Choice(condition, yes, no)
        case "cast" if graph.type(operands[0]).dtype.kind == "b":
            condition = Indices(graph).condition(operands[0])
            return None if condition is None else _Choice(condition, 1.0, 0.0)
        case "mul" | "add" | "sub" | "div":
            return _choice_of_arithmetic(graph, node, operands, depth)
        case "trilu":
            number = scalar(graph, operands[0])
            return None if number is None else _Choice(triangle(graph, node), number, 0.0)
    source = _choice(graph, operands[0], depth + 1) if node.op.view else None
    condition = None if source is None else moved(graph, node, source.condition)
    return None if source is None or condition is None else _Choice(condition, source.yes, source.no)


def _choice_of_array(array: np.ndarray) -> _Choice | None:
    unmasked = array == 0
    if not (unmasked | (array <= MASKED)).all():
        return None
    condition = condition_of_array(unmasked)
    highest = array.max(initial=-math.inf, where=~unmasked)
    return None if condition is None else _Choice(condition, 0.0, float(highest))


_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "div": lambda a, b: a / b if b else math.nan,
}


def _choice_of_arithmetic(graph: Graph, node: Node, operands: list[str], depth: int) -> _Choice | None:
    """Combine a choice and a number by arithmetic."""
    apply = _ARITHMETIC[node.op.name]
    for i in range(2):
        number = scalar(graph, operands[1 - i])
        source = None if number is None else _choice(graph, operands[i], depth + 1)
        if number is None or source is None:
            continue
        pairs = [(each, number) if i == 0 else (number, each) for each in (source.yes, source.no)]
        yes, no = (apply(a, b) for a, b in pairs)
        condition = source.condition.padded(graph.type(node.output).rank)
        return None if math.isnan(yes) or math.isnan(no) else _Choice(condition, yes, no)
    return None

"""Recognition of rotary position embedding: x * cos + rotate_half(x) * sin."""

from __future__ import annotations

from typing import Any

from ingot.ir.graph import Graph, Node
from ingot.passes.match import Capture, Match, Rule, call, rewrite

_X = Capture("x")


def fuse_rotary(graph: Graph) -> bool:
    """Fuse rotary embedding of x [B, H, S, D] with cos and sin [.., S, D].

    Refused: halves of other axes or sizes, the interleaved form, tables that are not indexed along S and D.
    """
    return rewrite(graph, _RULES)


def _half(part: int) -> Any:
    """Match a slice of half `part` of the last axis that keeps all other axes complete."""

    def where(graph: Graph, node: Node) -> bool:
        operand = node.operands[0]
        assert operand is not None
        shape = graph.type(operand).shape
        if not isinstance(shape[-1], int) or shape[-1] % 2:
            return False
        half = shape[-1] // 2
        starts = (0,) * (len(shape) - 1) + (part * half,)
        stops = (*shape[:-1], (part + 1) * half)
        return node.starts == starts and node.stops == stops and set(node.steps) == {1}

    return where


def _two_halves(graph: Graph, node: Node) -> bool:
    return len(node.operands) == 2 and node.axis == graph.type(node.output).rank - 1


def _rotary(graph: Graph, found: Match) -> Any:
    x, cos, sin = (found.values[label] for label in ("x", "cos", "sin"))
    shape = graph.type(x).shape
    tables = [graph.type(name).shape for name in (cos, sin)]
    if len(shape) != 4 or any(len(t) < 2 or t[-2:] != shape[-2:] for t in tables):
        return None
    return "rotary", [x, cos, sin], {}


_ROTATED = call(
    "concat",
    call("neg", call("slice", _X, where=_half(1))),
    call("slice", _X, where=_half(0)),
    where=_two_halves,
)
_RULES = [Rule(call("add", call("mul", _X, Capture("cos")), call("mul", _ROTATED, Capture("sin"))), _rotary)]

"""Recognition of activations: GELU (erf and tanh), SiLU, Mish, sigmoid, ReLU, hard sigmoid, hard swish."""

from __future__ import annotations

import math
from typing import Any

from ingot.ir.graph import Graph
from ingot.passes.match import Capture, Match, Rule, call, either, is_float, product, rewrite

_X = Capture("x")


def fuse_activations(graph: Graph) -> bool:
    """Fuse written-out activations; their constants are compared in f32, and factors may be associated in any order."""
    return rewrite(graph, _RULES)


def _unary(op: str, **attributes: Any) -> Any:
    def build(graph: Graph, found: Match) -> Any:
        return (op, [found.values["x"]], attributes) if is_float(graph, found.values["x"]) else None

    return build


def _clip(low: float, high: float) -> Any:
    return lambda graph, node: (node.minimum, node.maximum) == (low, high)


def _hard_sigmoid(graph: Graph, found: Match) -> Any:
    """Rewrite clip(x + 3, 0, 6) / 6 to clip(x / 6 + 1 / 2, 0, 1)."""
    return "hard_sigmoid", [found.values["x"]], {"alpha": 1 / 6, "beta": 0.5}


_ERF = call("add", call("erf", product(1 / math.sqrt(2), _X)), 1.0)
_CUBIC = either(
    product(math.sqrt(2 / math.pi), call("add", _X, product(0.044715, _X, _X, _X))),
    product(math.sqrt(2 / math.pi), _X, call("add", product(0.044715, _X, _X), 1.0)),
)
_TANH = call("add", call("tanh", _CUBIC), 1.0)
_DENOMINATOR = call("add", call("exp", product(-1.0, _X)), 1.0)
_HARD_SIGMOID = call("hard_sigmoid", _X, where=lambda graph, node: abs(node.alpha - 1 / 6) < 1e-7 and node.beta == 0.5)
_RELU6 = call("clip", call("add", _X, 3.0), where=_clip(0.0, 6.0))

_RULES = [
    Rule(product(0.5, _X, _ERF), _unary("gelu", approximate="erf")),
    Rule(product(0.5, _X, _TANH), _unary("gelu", approximate="tanh")),
    Rule(either(call("div", 1.0, _DENOMINATOR), call("reciprocal", _DENOMINATOR)), _unary("sigmoid")),
    Rule(either(call("div", _X, _DENOMINATOR), call("mul", _X, call("sigmoid", _X))), _unary("silu")),
    Rule(call("mul", _X, call("tanh", call("softplus", _X))), _unary("mish")),
    Rule(call("maximum", _X, 0.0), _unary("relu")),
    Rule(call("clip", _X, where=_clip(0.0, math.inf)), _unary("relu")),
    Rule(either(product(1 / 6, _X, _RELU6), call("mul", _X, _HARD_SIGMOID)), _unary("hard_swish")),
    Rule(product(1 / 6, _RELU6), _hard_sigmoid),
]

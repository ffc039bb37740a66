"""Recognition of layer norm, RMS norm, softmax and log-softmax from their decompositions."""

from __future__ import annotations

from typing import Any

from ingot.ir.graph import Graph, Node
from ingot.passes.match import Capture, Match, Number, Pattern, Rule, call, either, product, rewrite

_X = Capture("x")
_W = Capture("weight")
_B = Capture("bias")
_EPS = Number(label="eps")


def fuse_norms(graph: Graph) -> bool:
    """Fuse normalisations over the last axis (softmax: any axis), with weight and bias; terms may be shared in a DAG.

    Refused: other axes, statistics with another reader, a mean of squares minus a squared mean, softmax without its
    maximum (it overflows where softmax does not).
    """
    return rewrite(graph, _RULES)


def _last_axis(graph: Graph, node: Node) -> bool:
    operand = node.operands[0]
    assert operand is not None
    return node.keepdims and node.axes == (graph.type(operand).rank - 1,)


def _mean(x: Pattern) -> Pattern:
    return call("reduce_mean", x, where=_last_axis)


def _square(x: Pattern) -> Pattern:
    return product(1.0, x, x)


def _root(x: Pattern) -> Pattern:
    return either(call("sqrt", x), call("pow", x, 0.5))


def _inverse_root(x: Pattern) -> Pattern:
    root = _root(x)
    return either(call("rsqrt", x), call("reciprocal", root), call("div", 1.0, root), call("pow", x, -0.5))


def _normalised(x: Pattern, *same: Pattern) -> tuple[Pattern, Pattern]:
    """x / sqrt(mean(x^2) + eps), plain and times a weight, in any association; `same`: further spellings of x."""
    x = either(x, *same)
    power = call("add", _mean(_square(x)), _EPS)
    plain = either(call("div", x, _root(power)), product(1.0, x, _inverse_root(power)))
    weighted = either(call("div", product(1.0, x, _W), _root(power)), product(1.0, x, _inverse_root(power), _W))
    return plain, weighted


def _vector(graph: Graph, found: Match, label: str) -> str | None:
    """Return the captured vector if it is as long as the last axis of x."""
    name = found.values[label]
    shape = graph.type(name).shape
    return name if len(shape) == 1 and shape[0] == graph.type(found.values["x"]).shape[-1] else None


def _norm(op: str) -> Any:
    return lambda graph, found: (op, [found.values["x"]], {"eps": found.numbers["eps"]})


def _weighted_norm(op: str) -> Any:
    def build(graph: Graph, found: Match) -> Any:
        weight = _vector(graph, found, "weight")
        return None if weight is None else (op, [found.values["x"], weight], {"eps": found.numbers["eps"]})

    return build


def _has(count: int) -> Any:
    """Match a norm with exactly `count` operands after x."""

    def where(graph: Graph, node: Node) -> bool:
        return sum(o is not None for o in node.operands) == count + 1 and node.operands[count] is not None

    return where


def _affine_weight(graph: Graph, found: Match) -> Any:
    norm = found.calls["norm"]
    weight = _vector(graph, found, "weight")
    return None if weight is None else (norm.op.name, [found.values["x"], weight], norm.attributes)


def _affine_bias(graph: Graph, found: Match) -> Any:
    norm = found.calls["norm"]
    bias = _vector(graph, found, "bias")
    weight = norm.operands[1] if len(norm.operands) > 1 else None
    return None if bias is None else ("layer_norm", [found.values["x"], weight, bias], norm.attributes)


def _mean_of_sum(graph: Graph, found: Match) -> Any:
    total = found.calls["sum"]
    x = graph.type(found.values["x"])
    size = x.shape[-1]
    if x.dtype.kind != "f" or not isinstance(size, int) or abs(found.numbers["inverse"] * size - 1) > 1e-7:
        return None
    return "reduce_mean", [found.values["x"]], total.attributes


def _softmax(op: str) -> Any:
    def build(graph: Graph, found: Match) -> Any:
        axes = [found.calls[label].axes for label in ("max", "sum")]
        keeps = all(found.calls[label].keepdims for label in ("max", "sum"))
        if axes[0] != axes[1] or len(axes[0]) != 1 or not keeps:
            return None
        return op, [found.values["x"]], {"axis": axes[0][0]}

    return build


_CENTRED = call("sub", _X, _mean(_X))
_CENTRED_TWICE = call("sub", _CENTRED, _mean(_CENTRED))  # the second mean is the rounding error of the first
_SHIFTED = call("sub", _X, call("reduce_max", _X, label="max"))
_EXP = call("exp", _SHIFTED)
_SUM = call("reduce_sum", _EXP, label="sum")
_LAYER, _LAYER_WEIGHTED = _normalised(_CENTRED, _CENTRED_TWICE)
_RMS, _RMS_WEIGHTED = _normalised(_X)

_RULES = [
    Rule(product(None, call("reduce_sum", _X, where=_last_axis, label="sum"), label="inverse"), _mean_of_sum),
    Rule(_LAYER, _norm("layer_norm")),
    Rule(_LAYER_WEIGHTED, _weighted_norm("layer_norm")),
    Rule(_RMS, _norm("rms_norm")),
    Rule(_RMS_WEIGHTED, _weighted_norm("rms_norm")),
    Rule(call("mul", call("layer_norm", _X, where=_has(0), label="norm"), _W), _affine_weight),
    Rule(call("mul", call("rms_norm", _X, where=_has(0), label="norm"), _W), _affine_weight),
    Rule(call("add", call("layer_norm", _X, where=_has(0), label="norm"), _B), _affine_bias),
    Rule(call("add", call("layer_norm", _X, where=_has(1), label="norm"), _B), _affine_bias),
    Rule(either(call("div", _EXP, _SUM), call("mul", _EXP, call("reciprocal", _SUM))), _softmax("softmax")),
    Rule(call("sub", _SHIFTED, call("log", _SUM)), _softmax("log_softmax")),
]

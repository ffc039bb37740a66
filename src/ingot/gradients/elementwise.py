"""Gradients of element-wise ops; for one operand x, a formula of x, the result y and its gradient d."""

from __future__ import annotations

import math
from collections.abc import Callable

from ingot.gradients.registry import Backward, gradient
from ingot.ir.graph import Node

Formula = Callable[[Backward, str, str, str], str]  # of x, y and d


def _one_minus_square(g: Backward, x: str) -> str:
    return g.sub(1.0, g.mul(x, x))


_UNARY: dict[str, Formula] = {
    "relu": lambda g, x, y, d: g.relu_gradient(y, d),
    "neg": lambda g, x, y, d: g.neg(d),
    "abs": lambda g, x, y, d: g.mul(d, g.sign(x)),
    "exp": lambda g, x, y, d: g.mul(d, y),
    "expm1": lambda g, x, y, d: g.mul(d, g.add(y, 1.0)),
    "log": lambda g, x, y, d: g.div(d, x),
    "log1p": lambda g, x, y, d: g.div(d, g.add(x, 1.0)),
    "sqrt": lambda g, x, y, d: g.div(g.mul(d, 0.5), y),
    "rsqrt": lambda g, x, y, d: g.mul(g.mul(d, -0.5), g.div(y, x)),
    "reciprocal": lambda g, x, y, d: g.neg(g.mul(d, g.mul(y, y))),
    "sin": lambda g, x, y, d: g.mul(d, g.cos(x)),
    "cos": lambda g, x, y, d: g.neg(g.mul(d, g.sin(x))),
    "sinh": lambda g, x, y, d: g.mul(d, g.cosh(x)),
    "cosh": lambda g, x, y, d: g.mul(d, g.sinh(x)),
    "asin": lambda g, x, y, d: g.mul(d, g.rsqrt(_one_minus_square(g, x))),
    "acos": lambda g, x, y, d: g.neg(g.mul(d, g.rsqrt(_one_minus_square(g, x)))),
    "atan": lambda g, x, y, d: g.div(d, g.add(g.mul(x, x), 1.0)),
    "asinh": lambda g, x, y, d: g.mul(d, g.rsqrt(g.add(g.mul(x, x), 1.0))),
    "acosh": lambda g, x, y, d: g.mul(d, g.rsqrt(g.mul(g.sub(x, 1.0), g.add(x, 1.0)))),
    "atanh": lambda g, x, y, d: g.div(d, _one_minus_square(g, x)),
    "tanh": lambda g, x, y, d: g.mul(d, _one_minus_square(g, y)),
    "erf": lambda g, x, y, d: g.mul(d, g.mul(g.exp(g.neg(g.mul(x, x))), 2 / math.sqrt(math.pi))),
    "erfc": lambda g, x, y, d: g.mul(d, g.mul(g.exp(g.neg(g.mul(x, x))), -2 / math.sqrt(math.pi))),
    "erfinv": lambda g, x, y, d: g.mul(d, g.mul(g.exp(g.mul(y, y)), math.sqrt(math.pi) / 2)),
    "lgamma": lambda g, x, y, d: g.mul(d, g.digamma(x)),
    "i0": lambda g, x, y, d: g.mul(d, g.i1(x)),
    "sigmoid": lambda g, x, y, d: g.mul(d, g.mul(y, g.sub(1.0, y))),
    "softplus": lambda g, x, y, d: g.mul(d, g.sigmoid(x)),
    "silu": lambda g, x, y, d: g.silu_gradient(x, d),
}


def _declare(op: str, formula: Formula) -> None:
    def row(g: Backward, node: Node, d: str) -> str:
        return formula(g, str(node.operands[0]), node.output, d)

    row.__qualname__ = f"{op}_gradient"
    gradient(op)(row)


for _op, _formula in _UNARY.items():
    _declare(_op, _formula)


@gradient("gelu")
def gelu(g: Backward, node: Node, d: str) -> str:
    """Multiply d by the derivative of x * Phi(x), or of its approximation."""
    return g.gelu_gradient(node.operands[0], d, approximate=node.approximate)


@gradient("clip")
def clip(g: Backward, node: Node, d: str) -> str:
    """Return d where x is within the bounds, inclusive."""
    x = str(node.operands[0])
    if node.minimum != -math.inf:
        d = g.where(g.less(x, float(node.minimum)), 0.0, d)
    return d if node.maximum == math.inf else g.where(g.greater(x, float(node.maximum)), 0.0, d)


@gradient("leaky_relu")
def leaky_relu(g: Backward, node: Node, d: str) -> str:
    """Return d, times alpha where x is negative."""
    return g.where(g.less(node.operands[0], 0.0), g.mul(d, float(node.alpha)), d)


@gradient("elu")
def elu(g: Backward, node: Node, d: str) -> str:
    """Return d, times y + alpha where x is not positive; elsewhere the exponential would overflow."""
    return g.where(g.less_equal(node.operands[0], 0.0), g.mul(d, g.add(node.output, float(node.alpha))), d)


@gradient("dropout")
def dropout(g: Backward, node: Node, d: str) -> list[str | None]:
    """Apply the same dropout to d: the mask is recomputed, not stored."""
    return [g.dropout(d, *node.operands[1:], **node.attributes), *(None for _ in node.operands[1:])]


@gradient("cast")
def cast(g: Backward, node: Node, d: str) -> str:
    """Cast d to the dtype of x."""
    return g.cast(d, dtype=g.type(str(node.operands[0])).dtype)


Pair = Callable[[Backward, str, str, str, str], tuple[str, str]]  # of a, b, y and d, before sums


def _divided(g: Backward, a: str, b: str, y: str, d: str) -> tuple[str, str]:
    share = g.div(d, b)
    return share, g.neg(g.mul(share, y))


def _power(g: Backward, a: str, b: str, y: str, d: str) -> tuple[str, str]:
    """If an exponent or a base is 0, the other factor may be infinite; the product is still 0."""
    base = g.mul(d, g.mul(b, g.pow(a, g.sub(b, 1.0))))
    exponent = g.mul(d, g.mul(y, g.log(a)))
    return g.where(g.equal(b, 0.0), 0.0, base), g.where(g.equal(a, 0.0), 0.0, exponent)


def _selected(comparison: str) -> Pair:
    """Return the formula for maximum or minimum; equal operands get half of d each."""

    def formula(g: Backward, a: str, b: str, y: str, d: str) -> tuple[str, str]:
        half = g.where(g.equal(a, b), g.mul(d, 0.5), 0.0)
        compare = getattr(g, comparison)
        return g.where(compare(a, b), d, half), g.where(compare(b, a), d, half)

    return formula


_BINARY: dict[str, Pair] = {
    "add": lambda g, a, b, y, d: (d, d),
    "sub": lambda g, a, b, y, d: (d, g.neg(d)),
    "mul": lambda g, a, b, y, d: (g.mul(d, b), g.mul(d, a)),
    "div": _divided,
    "mod": lambda g, a, b, y, d: (d, g.neg(g.mul(d, g.floor_div(a, b)))),
    "pow": _power,
    "maximum": _selected("greater"),
    "minimum": _selected("less"),
}


def _declare_pair(op: str, formula: Pair) -> None:
    def row(g: Backward, node: Node, d: str) -> tuple[str, str]:
        a, b = map(str, node.operands)
        of_a, of_b = formula(g, a, b, node.output, d)
        return g.summed(of_a, a), g.summed(of_b, b)

    row.__qualname__ = f"{op}_gradient"
    gradient(op)(row)


for _op, _pair in _BINARY.items():
    _declare_pair(_op, _pair)


@gradient("where")
def where(g: Backward, node: Node, d: str) -> tuple[None, str, str]:
    """Pass d to the operand that was selected at each position."""
    condition, a, b = map(str, node.operands)
    return None, g.summed(g.where(condition, d, 0.0), a), g.summed(g.where(condition, 0.0, d), b)

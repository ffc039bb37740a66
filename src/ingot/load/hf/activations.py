"""Activations by the names that configs use, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Nodes(Protocol):
    """What activations add nodes with: LayerBuilder."""

    def add(self, op: str, *operands: str, hint: str = "", **attributes: Any) -> str: ...

    def constant(self, value: float) -> str: ...

    def parameter(self, name: str) -> str: ...


Activation = Callable[[Nodes, str], str]


def _op(name: str, **attributes: Any) -> Activation:
    return lambda nodes, x: nodes.add(name, x, **attributes)


def _relu2(nodes: Nodes, x: str) -> str:
    """relu(x)^2. So et al., "Primer", 2021."""
    x = nodes.add("relu", x)
    return nodes.add("mul", x, x, hint="squared")


def _quick_gelu(nodes: Nodes, x: str) -> str:
    """x * sigmoid(1.702 x)."""
    return nodes.add("mul", x, nodes.add("sigmoid", nodes.add("mul", x, nodes.constant(1.702))), hint="quick_gelu")


def _xielu(nodes: Nodes, x: str) -> str:
    """a x^2 + b x for x > 0, (expm1(min(x, eps)) - x) c + b x otherwise, with a, b, c and eps from the file.

    Huang and Schlag, "Deriving activation functions using integration", 2024.
    """
    beta, eps = nodes.parameter("beta"), nodes.parameter("eps")
    above = nodes.add("softplus", nodes.parameter("alpha_p"), hint="alpha_p")
    below = nodes.add("add", beta, nodes.add("softplus", nodes.parameter("alpha_n"), hint="alpha_n"), hint="alpha_n")
    linear = nodes.add("mul", x, beta, hint="linear")
    square = nodes.add("mul", nodes.add("mul", x, x, hint="square"), above, hint="square")
    bent = nodes.add("sub", nodes.add("expm1", nodes.add("minimum", x, eps)), x, hint="bent")
    bent = nodes.add("mul", bent, below, hint="bent")
    chosen = nodes.add("where", nodes.add("greater", x, nodes.constant(0.0)), square, bent)
    return nodes.add("add", chosen, linear, hint="xielu")


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": _op("silu"),
    "swish": _op("silu"),
    "relu": _op("relu"),
    "relu2": _relu2,
    "relu6": _op("clip", minimum=0.0, maximum=6.0),
    "gelu": _op("gelu", approximate="erf"),
    "gelu_python": _op("gelu", approximate="erf"),
    "gelu_new": _op("gelu", approximate="tanh"),
    "gelu_fast": _op("gelu", approximate="tanh"),
    "gelu_accurate": _op("gelu", approximate="tanh"),
    "gelu_pytorch_tanh": _op("gelu", approximate="tanh"),
    "gelu_python_tanh": _op("gelu", approximate="tanh"),
    "quick_gelu": _quick_gelu,
    "sigmoid": _op("sigmoid"),
    "tanh": _op("tanh"),
    "mish": _op("mish"),
    "hardswish": _op("hard_swish"),
    "leaky_relu": _op("leaky_relu", alpha=0.01),
    "linear": lambda _, x: x,
    "xielu": _xielu,
}

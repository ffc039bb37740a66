"""The Gradient op: reverse-mode differentiation of the nodes between a value and its variables."""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir.graph import Node
from ingot.load.onnx.builder import OnnxBuilder
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import TRAINING, onnx

# derivative(build, gradient of the result, result, *operands): the gradient of each operand, in the result's shape.
Derivative = Callable[..., tuple[str, ...]]

DERIVATIVES: dict[str, Derivative] = {
    "add": lambda b, g, y, *_: (g, g),
    "sub": lambda b, g, y, *_: (g, b.neg(g)),
    "mul": lambda b, g, y, u, v: (b.mul(g, v), b.mul(g, u)),
    "div": lambda b, g, y, u, v: (b.div(g, v), b.neg(b.div(b.mul(g, y), v))),
    "neg": lambda b, g, y, x: (b.neg(g),),
    "exp": lambda b, g, y, x: (b.mul(g, y),),
    "log": lambda b, g, y, x: (b.div(g, x),),
    "sqrt": lambda b, g, y, x: (b.div(b.mul(g, 0.5), y),),
    "tanh": lambda b, g, y, x: (b.mul(g, b.add(b.neg(b.mul(y, y)), 1.0)),),
    "sigmoid": lambda b, g, y, x: (b.mul(g, b.mul(y, b.add(b.neg(y), 1.0))),),
    "relu": lambda b, g, y, x: (b.where(b.greater(x, 0.0), g, 0.0),),
}


@onnx("Gradient", domain=TRAINING)
def gradient(call: Call) -> tuple[str, ...]:
    """Only supported at the values that the graph has for its variables. The gradient of a tensor is that of its
    sum.
    """
    build, (xs, zs) = call.build, (call.attr_texts("xs"), call.attr_texts("zs", ()))
    variables, fixed, y = [call.named(x) for x in xs], [call.named(z) for z in zs], call.named(call.attr_text("y"))
    if call.values() != [*variables, *fixed]:
        raise call.unsupported("a gradient at other values than those of its variables")
    kinds = {build.type(name).dtype for name in (y, *variables)}
    if len(kinds) > 1 or next(iter(kinds)).kind != "f":
        raise call.unsupported(f"a gradient of {build.type(y)} by {[str(build.type(name)) for name in variables]}")
    gradients = {y: _filled(call, y, 1.0)}
    depends = _dependents(call, variables, fixed)
    for node in [node for node in reversed(list(build.graph.nodes)) if node.outputs[0] in depends]:
        if node.outputs[0] in gradients and node.outputs[0] not in variables:
            _add_gradients(call, node, depends, gradients)
    return tuple(gradients.get(name) or _filled(call, name, 0.0) for name in variables)


def _filled(call: Call, like: str, value: float) -> str:
    type = call.build.type(like)
    return call.build.expand(call.build.scalar(value, type.dtype), shape=call.known_shape(type))


def _dependents(call: Call, variables: list[str], fixed: list[str]) -> set[str]:
    """Return the values that depend on variables, including the variables, except values given as fixed."""
    reached = set(variables)
    for node in call.build.graph.nodes:
        if reached.intersection(node.operands) and not set(node.outputs) & set(fixed):
            reached.update(node.outputs)
    return reached


def _add_gradients(call: Call, node: Node, depends: set[str], gradients: dict[str, str]) -> None:
    """Add the gradient of a node's result to the gradients of its operands."""
    build = call.build
    if node.op.name not in DERIVATIVES:
        raise call.unsupported(f"the derivative of {node.op.name}")
    result = node.outputs[0]
    parts = DERIVATIVES[node.op.name](build, gradients[result], result, *node.operands)
    for operand, part in zip(node.operands, parts, strict=True):
        if operand in depends:
            assert operand is not None
            part = _folded(build, part, operand)
            gradients[operand] = build.add(gradients[operand], part) if operand in gradients else part


def _folded(build: OnnxBuilder, gradient: str, operand: str) -> str:
    """Sum over the axes along which an operand was broadcast."""
    wanted, given = build.type(operand).shape, build.type(gradient).shape
    lead = len(given) - len(wanted)
    axes = tuple(i for i, dim in enumerate(given) if i < lead or (wanted[i - lead] == 1 and dim != 1))
    if axes:
        gradient = build.reduce_sum(gradient, axes=axes, keepdims=True)
    return gradient if build.type(gradient).shape == wanted else build.reshape(gradient, shape=wanted)

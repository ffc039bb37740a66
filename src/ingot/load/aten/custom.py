"""Calls of torch's custom ops that the user has registered."""

from __future__ import annotations

from typing import Any

from ingot.errors import UnsupportedError
from ingot.ir.dim import Expr
from ingot.ir.graph import Op
from ingot.load.aten.builder import AtenBuilder


def registered(builder: AtenBuilder, op: Op, target: Any, args: list, kwargs: dict[str, Any]) -> Any:
    """Add a registered op for the call: arguments named like an attribute are attributes, the others operands.

    Raises UnsupportedError for arguments that do not fit the op, and ShapeError for a result of another type.
    """
    operands: list[str | None] = []
    attributes: dict[str, Any] = {}
    for i, argument in enumerate(target._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
        if argument.name in op.attributes:
            if value is not None:
                attributes[argument.name] = tuple(value) if isinstance(value, (list, tuple)) else value
        elif isinstance(value, (list, tuple)):
            operands += value
        else:
            operands.append(value)
    while operands and operands[-1] is None:
        operands.pop()
    wrong = op.misuse(operands, attributes)
    symbolic = [name for name, value in attributes.items() if isinstance(value, Expr)]
    strangers = [each for each in operands if each is not None and each not in builder.graph.values]
    if wrong or symbolic or strangers:
        why = wrong or f"{op.name}: bad arguments, got {strangers or symbolic}, expected tensors and known numbers"
        raise UnsupportedError(f"torch op {target}: {why}")
    computed = builder.graph.add(op.name, operands, builder.hint, **attributes).outputs
    several = builder.result if isinstance(builder.result, list) else [builder.result]
    if len(several) != len(computed):
        raise UnsupportedError(f"torch op {target}: makes {len(several)} values, expected {op.outputs} as {op.name}")
    for name, type in zip(computed, several, strict=True):
        builder.graph.narrow(name, type)
    return computed if isinstance(builder.result, list) else computed[0]

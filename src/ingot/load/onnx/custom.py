"""Nodes of ops that the user has registered."""

from __future__ import annotations

from typing import Any

from ingot.ir.graph import REQUIRED, Op
from ingot.load.onnx.call import Call

_READ: dict[Any, Any] = {
    bool: lambda call, name: bool(call.attr_int(name)),
    int: Call.attr_int,
    float: Call.attr_float,
    str: Call.attr_text,
    tuple[int, ...]: Call.attr_ints,
    tuple[float, ...]: Call.attr_floats,
    tuple[str, ...]: Call.attr_texts,
    tuple[bool, ...]: lambda call, name: tuple(map(bool, call.attr_ints(name))),
}


def registered(call: Call, op: Op) -> tuple[str, ...]:
    """Add a registered op for the node. Raises LoadError if its operands or attributes do not fit."""
    given = {name: _READ[op.attribute_types[name]](call, name) for name in op.attributes if name in call.attributes}
    defaults = {name: value for name, value in op.attributes.items() if value is not REQUIRED}
    operands = [call.get(i) for i in range(len(call))]
    unknown = dict.fromkeys(set(call.attributes) - set(op.attributes))
    wrong = op.misuse(operands, {**defaults, **given, **unknown})
    if wrong or len(call.outputs) > op.outputs:
        raise call.malformed(wrong or f"{op.name} has {op.outputs} results, {len(call.outputs)} are named")
    for operand in operands:
        if operand is not None:
            call.build.type(operand)
    return call.build.add_all(op.name, *operands, **given)

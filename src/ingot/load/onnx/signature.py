"""The signature of an op at an opset, from ONNX's schemas: arity, attributes, dtypes. A violating node is malformed."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import onnx

from ingot.errors import LoadError, ShapeError
from ingot.load.onnx.call import Call

# Inputs that exporters omit although the op's first versions require them; later versions do not.
OPTIONAL_SOON = {("Resize", "roi"), ("Resize", "scales")}


@dataclass(frozen=True, slots=True)
class Signature:
    """The facts of a schema; `formals` are the inputs, the last of which may be variadic."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    attributes: dict[str, tuple[int, bool]]  # name -> (attribute type, required)
    formals: tuple[Formal, ...]
    has_function: bool


@dataclass(frozen=True, slots=True)
class Formal:
    """An input of a schema: its type parameter, and the accepted ONNX type strings."""

    name: str
    parameter: str
    accepted: frozenset[str]
    homogeneous: bool
    required: bool


@functools.lru_cache(maxsize=1024)
def signature_of(op: str, version: int, domain: str = "") -> Signature | None:
    """Return the signature of an op type at a version of its domain; None when ONNX does not know it."""
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional  # type: ignore[attr-defined]
    return Signature(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {name: (int(a.type.value), a.required) for name, a in schema.attributes.items()},  # type: ignore[attr-defined]
        tuple(
            Formal(
                f.name,
                f.type_str,
                frozenset(f.types),
                f.is_homogeneous,
                f.option != optional and (op, f.name) not in OPTIONAL_SOON,
            )
            for f in schema.inputs
        ),
        schema.has_function or schema.has_context_dependent_function,  # type: ignore[attr-defined]
    )


def check_call(call: Call, signature: Signature) -> None:
    """Raise LoadError for a wrong arity, missing input or wrong attribute, ShapeError for a wrong dtype."""
    for what, count, (low, high) in (
        ("inputs", len(call), signature.inputs),
        ("outputs", len(call.outputs), signature.outputs),
    ):
        if not low <= count <= high:
            raise LoadError(f"wrong number of {what}, got {count}, expected {low}..{high}")
    for name, attribute in call.attributes.items():
        if name not in signature.attributes:
            raise LoadError(f"unknown attribute {name[:100]!r}, expected one of {sorted(signature.attributes)}")
        if attribute.type.value != signature.attributes[name][0]:
            raise LoadError(f"attribute {name!r} has a wrong type, got {attribute.type.name}")
    for name, (_, required) in signature.attributes.items():
        if required and name not in call.attributes:
            raise LoadError(f"attribute {name!r} is missing")
    _check_inputs(call, signature)


def _check_inputs(call: Call, signature: Signature) -> None:
    bound: dict[str, str] = {}
    last = len(signature.formals) - 1
    for i, operand in enumerate(call.operands):
        formal = signature.formals[min(i, last)]
        if operand is None:
            if formal.required:
                raise LoadError(f"input {i} is missing, got '' for {formal.name!r}")
            continue
        type = call.build.graph.values[operand].type
        kind = type.onnx
        if kind not in formal.accepted:
            raise ShapeError(f"input {i} has a wrong dtype, got {type}")
        if formal.homogeneous and bound.setdefault(formal.parameter, kind) != kind:
            other = bound[formal.parameter]
            raise ShapeError(f"inputs differ in dtype, got {type} as input {i} and {other}")

"""What ONNX's schemas and those of ONNX Runtime say of an op, in one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from ingot.load.onnx.registry import MICROSOFT, RULES
from onnx_models import NUMBERS

_ELEMENTS = {
    f"tensor({name.lower()})": np.dtype(helper.tensor_dtype_to_np_dtype(number))
    for name, number in onnx.TensorProto.DataType.items()
    if number in NUMBERS.values() and name != "STRING"
}


@dataclass(frozen=True)
class Parameter:
    """An input. type: a variable of the schema, or a type."""

    name: str
    type: str
    is_optional: bool


@dataclass(frozen=True)
class AttributeOf:
    """An attribute. kind: `INT`, `FLOATS` and so on; default: None where there is none, or it is not known."""

    kind: str
    is_required: bool
    default: Any


@dataclass(frozen=True)
class Schema:
    """An op at one version. types: the dtypes of each variable."""

    since_version: int
    inputs: tuple[Parameter, ...]
    attributes: Mapping[str, AttributeOf]
    types: Mapping[str, tuple[np.dtype, ...]]
    least_outputs: int
    most_outputs: int


@cache
def _of_ort() -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in ort.get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def schema_of(domain: str, name: str, opset: int, version: int = 1) -> Schema | None:
    """The schema of an op at an opset of ai.onnx, or a version of its own domain; None where nobody has one."""
    wanted = version if domain else opset
    try:
        return _plain(onnx.defs.get_schema(name, wanted, domain))
    except onnx.defs.SchemaError:
        known = [schema for schema in _of_ort().get((domain, name), ()) if schema.since_version <= wanted]
        return _plain(max(known, key=lambda schema: schema.since_version)) if known else None


@cache
def versions_of(name: str) -> tuple[int, ...]:
    """The versions of ai.onnx that changed an op."""
    history = onnx.defs.get_all_schemas_with_history()
    return tuple(sorted({s.since_version for s in history if s.name == name and s.domain == "" and not s.deprecated}))


def _plain(schema: Any) -> Schema:
    inputs = tuple(
        Parameter(p.name, p.type_str if hasattr(p, "type_str") else p.typeStr, "Optional" in str(p.option))
        for p in schema.inputs
    )
    attributes = {
        name: AttributeOf(str(a.type).rpartition(".")[2], a.required, _default(a))
        for name, a in schema.attributes.items()
    }
    types = {
        t.type_param_str: tuple(_ELEMENTS[text] for text in sorted(t.allowed_type_strs) if text in _ELEMENTS)
        for t in schema.type_constraints
    }
    return Schema(schema.since_version, inputs, attributes, types, schema.min_output, schema.max_output)


def _default(attribute: Any) -> Any:
    value = getattr(attribute, "default_value", None)
    if value is None:
        content = getattr(attribute, "_default_value", b"")
        value = onnx.AttributeProto.FromString(content) if content else None
    if value is None or value.type == onnx.AttributeProto.UNDEFINED:
        return None
    found = helper.get_attribute_value(value)
    if isinstance(found, list):
        return [each.decode() if isinstance(each, bytes) else each for each in found]
    return found.decode() if isinstance(found, bytes) else found


def contrib_without_rule() -> list[str]:
    """The ops of com.microsoft that ONNX Runtime has kernels of on CPU, and that Ingot has no rule for."""
    on_cpu = {k.op_name for k in ort.get_all_opkernel_def() if k.domain == MICROSOFT and "CPU" in k.provider}
    return sorted(on_cpu - {name for domain, name in RULES if domain == MICROSOFT})

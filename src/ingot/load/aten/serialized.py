"""Convert the JSON of a .pt2 file to torch's schema of an exported program, with each field of its declared
type.

Torch's own reader accepts any JSON value for any field, and later runs code from some of them: it evaluates texts of
expressions, pastes names into source that it compiles, looks up operators anywhere below `torch`, and imports classes
of tree specifications. The result of this module names nothing but ATen ops, identifiers and numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import keyword
import math
import types
import typing
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.union import _Union as Union

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.aten.control import CHECK
from ingot.load.aten.expression import read_expression
from ingot.load.hf.strict_json import parse_json, parse_object, shown
from ingot.ops.custom import find_torch

_INTEGER_BITS = 64
_NAMED = (
    schema.TensorArgument, schema.TokenArgument, schema.GraphArgument, schema.CustomObjArgument,
    schema.InputToConstantInputSpec,
)  # fmt: skip  # `name` is the name of an fx node
_SYMBOLIC = (schema.SymIntArgument, schema.SymFloatArgument, schema.SymBoolArgument)
_NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}

_NAMESPACES = {"aten", "prims", "quantized_decomposed", "torch_nn"}
_READS_FILES = {"from_file"}
_REGIONS = {"wrap_with_set_grad_enabled", "wrap_with_autocast", "with_effects"}
_SIZES = {
    "_operator": "getitem add sub mul floordiv truediv mod neg pos eq ne lt le gt ge and_ or_",
    "torch": "sym_int sym_float sym_max sym_min sym_not sym_ite",
    "math": "trunc",
}
_SIZE_FUNCTIONS = {f"{module}.{name}" for module, names in _SIZES.items() for name in names.split()}


def read_program(content: bytes, where: str) -> schema.ExportedProgram:
    """Read the program that `models/<name>.json` of a .pt2 file describes, without content that requires Python.

    Raises LoadError for content outside the schema, LimitError for sizes beyond 64 bits, and UnsupportedError for ops
    that are not ATen's, control flow and custom objects.
    """
    program = typed(schema.ExportedProgram, parse_object(content, where), where)
    program.guards_code = []
    module = program.graph_module
    module.metadata, module.treespec_namedtuple_fields = {}, {}
    module.module_call_graph = [entry for entry in module.module_call_graph if entry.fqn == ""]
    for entry in module.module_call_graph:
        if entry.signature is not None:
            _check_tree(entry.signature.in_spec, where)
            _check_tree(entry.signature.out_spec, where)
    foreign: dict[str, None] = {}
    for part in _parts(program):
        if isinstance(part, schema.Node):
            stack = part.metadata.get("nn_module_stack")
            part.metadata = {} if stack is None else {"nn_module_stack": stack}
            if part.name:
                _check_name(part.name, where)
            if not part.target.endswith(".with_effects"):
                _expect_no_operators(part, where)
            if not _known(part.target):
                foreign[part.target[:80]] = None
        else:
            _check_part(part, where)
    if foreign:
        raise UnsupportedError(f"{where}: ops without a rule, got {', '.join(foreign)[:1000]}; see 'ingot ops'")
    return program


def read_payloads(content: bytes, where: str) -> dict[str, schema.PayloadMeta]:
    """Map the qualified name of each tensor to the location of its elements in the file. Raises as `read_program`."""
    return typed(schema.PayloadConfig, parse_object(content, where), where).config


def typed(kind: Any, value: Any, where: str) -> Any:
    """Convert a JSON value to `kind`, a class or an annotation of torch's schema. Raises LoadError, LimitError.

    Unknown keys of a class are ignored, as torch does for files of newer versions.
    """
    origin, parameters = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (each for each in parameters if each is not type(None))
        return None if value is None else typed(inner, value, where)
    if origin is list and isinstance(value, list):
        return [typed(parameters[0], each, where) for each in value]
    if origin is dict and isinstance(value, dict):
        return {key: typed(parameters[1], each, where) for key, each in value.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _record(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, IntEnum) and type(value) is int and value in list(kind):
        return kind(value)
    if kind is float and (type(value) in (int, float) or value in list(_NOT_FINITE)):
        return _NOT_FINITE[value] if isinstance(value, str) else float(value)
    if kind is int and type(value) is int:
        if value.bit_length() >= _INTEGER_BITS:
            raise LimitError(f"{where}: integer of {value.bit_length()} bits, expected at most {_INTEGER_BITS}")
        return value
    if kind in (bool, str) and type(value) is kind:
        return value
    raise LoadError(f"{where}: got {shown(value)}, expected {getattr(kind, '__name__', kind)}")


def _record(kind: type, value: dict[str, Any], where: str) -> Any:
    annotations, inside = _annotations(kind), f"{where}: {kind.__name__}"
    given = {name: typed(annotations[name], each, inside) for name, each in value.items() if name in annotations}
    if issubclass(kind, Union):
        if len(given) != 1 or len(value) != 1:
            raise LoadError(f"{inside}: got {shown(list(value))}, expected one of {', '.join(annotations)}")
        return kind.create(**given)
    if kind is schema.SymExpr and "expr_str" in given:
        given["expr_str"] = read_expression(given["expr_str"], inside)
    absent = dataclasses.MISSING
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in given and field.default is absent and field.default_factory is absent:
            raise LoadError(f"{inside}: missing {field.name!r}")
    return kind(**given)


@functools.cache
def _annotations(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, globalns=vars(schema))


def _parts(root: Any) -> Iterator[Any]:
    """Yield every record below `root`, itself included."""
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Union):
            yield part
            waiting.append(part.value)
        elif dataclasses.is_dataclass(part):
            yield part
            waiting += vars(part).values()
        elif isinstance(part, (list, dict)):
            waiting += part.values() if isinstance(part, dict) else part


def _check_part(part: Any, where: str) -> None:
    if isinstance(part, schema.Argument):
        is_check = part.type == "as_operator" and part.value == f"torch.ops.{CHECK}"
        if part.type == "as_custom_obj" or (part.type == "as_operator" and not is_check):
            raise _refused(str(part.type), where)
    if isinstance(part, _NAMED):
        _check_name(part.name, where)
    elif isinstance(part, _SYMBOLIC) and part.type == "as_name":
        _check_name(part.as_name, where)
    elif isinstance(part, schema.NamedArgument) and part.name:
        _check_argument_name(part.name, where)


def _expect_no_operators(node: schema.Node, where: str) -> None:
    if any(named.arg.type == "as_operator" for named in node.inputs):
        raise _refused("as_operator", where)


def _refused(kind: str, where: str) -> UnsupportedError:
    return UnsupportedError(f"{where}: argument of kind {kind!r}, expected tensors, sizes and numbers")


def _check_name(name: str, where: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise LoadError(f"{where}: name {shown(name)}, expected a Python identifier")


def _check_argument_name(name: str, where: str) -> None:
    """Check an argument name of an op, which may be a keyword such as `from`; torch passes these by position."""
    if not name.isidentifier():
        raise LoadError(f"{where}: argument {shown(name)}, expected a Python identifier")


def _known(target: str) -> bool:
    """Return whether an operator is one of ATen's, a registered op, a function of sizes, or an inlined region."""
    if target in _SIZE_FUNCTIONS:
        return True
    root, *path = target.split(".")
    if root != "torch" or len(path) not in (3, 4) or path[0] != "ops":
        return False
    if path[1] == "higher_order":
        return len(path) == 3 and path[2] in _REGIONS
    if len(path) != 4 or path[2] in _READS_FILES:
        return False
    if path[1] not in _NAMESPACES and find_torch(".".join(path[1:])) is None:
        return False
    packet = getattr(getattr(torch.ops, path[1]), path[2], None)
    overload = getattr(packet, path[3], None) if isinstance(packet, torch._ops.OpOverloadPacket) else None
    return isinstance(overload, torch._ops.OpOverload)


def _check_tree(text: str, where: str) -> None:
    """Check a tree specification: only tuples, lists, dicts and classes registered with fields, as data.

    Torch imports the modules that the contexts of enums and of default dicts name.
    """
    content = parse_json(text.encode(), f"{where}: tree specification")
    if not isinstance(content, list) or len(content) != 2:
        raise LoadError(f"{where}: tree specification {shown(content)}, expected a version and a tree")
    waiting = [content[1]]
    while waiting:
        spec = waiting.pop()
        if not isinstance(spec, dict) or not isinstance(spec.get("children_spec"), list):
            raise LoadError(f"{where}: tree specification {shown(spec)}, expected type, context and children")
        waiting += spec["children_spec"]
        name, context = spec.get("type"), spec.get("context")
        if name is None:
            continue
        if name != "collections.namedtuple" and isinstance(context, str):
            context = parse_json(context.encode(), f"{where}: tree specification")
        plain = context is None or isinstance(context, (str, int, float))
        if isinstance(context, list):
            plain = all(each is None or isinstance(each, (str, int, float)) for each in context)
        if not isinstance(name, str) or name == "collections.defaultdict" or not plain:
            raise UnsupportedError(
                f"{where}: outputs or inputs of type {shown(name)}, expected tuples, lists and dicts"
            )

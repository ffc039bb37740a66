"""`load_onnx`: a parsed ONNX model -> Graph, node by node through the table of rules.

Functions, branches of `If` with a known condition, and ops that only have a schema body are walked in place, with the
same limits on depth and number of nodes. Unsupported nodes are collected, and reported in one error.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import onnx
import onnx_ir
from onnx_ir.serde import SerdeError

from ingot import dim
from ingot.dim import Dim, Expr, symbol, symbols_of
from ingot.errors import IngotError, LimitError, LoadError, ShapeError, UnsupportedError
from ingot.ir import Graph, TensorType
from ingot.load.made import note
from ingot.load.onnx.builder import Facts, OnnxBuilder
from ingot.load.onnx.call import Call
from ingot.load.onnx.parse import OLDEST_NATIVE_OPSET, Parsed, parse_model
from ingot.load.onnx.registry import PREVIEW, find_rule, foreign_name
from ingot.load.onnx.signature import check_call, signature_of
from ingot.load.onnx.tensors import DTYPES as TENSOR_DTYPES
from ingot.load.onnx.tensors import array_of, count_elements, dtype_of

MAX_DEPTH = 32
MAX_INLINED_NODES = 200_000  # nodes of functions and branches; those of the file itself count as nodes of the graph
MAX_LISTED = 50


def load_onnx(source: str | os.PathLike | bytes) -> Graph:
    """The graph of an ONNX model, given as a path or its bytes; opsets before 13 go through ONNX's converter.

    Raises FileNotFoundError for a missing path, LoadError for malformed content (ShapeError when shapes or dtypes
    contradict each other), LimitError beyond a documented limit, and one UnsupportedError for all nodes that have no
    rule.
    """
    return load_parsed(parse_model(source))


def load_parsed(parsed: Parsed) -> Graph:
    """As `load_onnx`, of a model that is parsed already."""
    return _Loader(parsed.model, parsed.opset).load()


class _Missing:
    """What an output of an unsupported node is bound to; nodes that read it are passed over."""


_MISSING = _Missing()


@dataclass(slots=True)
class _Frame:
    """One activation of a graph or function body: its values, and the attributes that the caller gave."""

    opset: int
    depth: int = 0
    values: dict[onnx_ir.Value, str | _Missing | None] = field(default_factory=dict)
    attributes: dict[str, onnx_ir.Attr] = field(default_factory=dict)


class _Loader:
    def __init__(self, model: onnx_ir.Model, opset: int):
        self.model = model
        self.frame = _Frame(opset)
        self.graph = Graph(model.graph.name or "onnx")
        self.facts = Facts(self.graph)
        self.unsupported: list[str] = []
        self.inlined = 0

    def load(self) -> Graph:
        source = self.model.graph
        symbols = _Symbols([v.shape for v in source.inputs if v.shape is not None])
        for value in source.inputs:
            if value.name not in source.initializers:
                assert value.name is not None
                self.frame.values[value] = self.graph.add_input(value.name, _input_type(value, symbols))
        self.walk(source, self.frame)
        results = {v.name: self.lookup(v, self.frame) for v in source.outputs}
        if self.unsupported:
            self.refuse()
        for value in source.outputs:
            assert value.name is not None
            found = results[value.name]
            assert not isinstance(found, _Missing) and found is not None
            _check_output(value, self.graph.type(found))
            self.graph.set_output(value.name, found)
        self.facts.sweep()
        return self.graph

    def refuse(self) -> None:
        listed = self.unsupported[:MAX_LISTED]
        if len(self.unsupported) > MAX_LISTED:
            listed.append(f"and {len(self.unsupported) - MAX_LISTED} more")
        raise UnsupportedError("\n".join(listed))

    def builder(self, hint: str) -> OnnxBuilder:
        return OnnxBuilder(self.facts, hint)

    def lookup(self, value: onnx_ir.Value | None, frame: _Frame) -> str | _Missing | None:
        if value is None:
            return None
        if value not in frame.values:
            assert value.const_value is not None, value.name
            name = value.name or "constant"
            frame.values[value] = self.builder(name).literal(array_of(value.const_value, name), name)
        return frame.values[value]

    def walk(self, graph: onnx_ir.Graph | onnx_ir.Function, frame: _Frame) -> None:
        """Every node of a graph, in order."""
        for node in graph:
            self.inlined += frame.depth > 0
            if self.inlined > MAX_INLINED_NODES:
                raise LimitError(f"onnx model: too many nodes after inlining, expected at most {MAX_INLINED_NODES}")
            where = f"onnx node {node.name or next((o.name for o in node.outputs), '')!r}"
            operands = [self.lookup(v, frame) for v in node.inputs]
            results: tuple[str | _Missing | None, ...] = (_MISSING,) * len(node.outputs)
            if not any(isinstance(o, _Missing) for o in operands):
                results = self.visit(node, operands, frame, where)
            for output, result in zip(node.outputs, results, strict=True):
                frame.values[output] = result

    def visit(self, node: onnx_ir.Node, operands: list, frame: _Frame, where: str) -> tuple:
        """One node's results. Every error that leaves names the node; an unsupported one is noted, not raised."""
        build = self.builder(node.outputs[0].name or node.op_type if node.outputs else node.op_type)
        call = Call(node, frame.opset, operands, _resolve(node, frame), build)
        try:
            results = self.apply(call, frame)
            unmade = [
                o.name for o, r in zip_longest(node.outputs, results[: len(node.outputs)]) if o.name and r is None
            ]
            if unmade:
                raise UnsupportedError(f"output {unmade[0]!r} is not supported")
            results = results[: len(node.outputs)]
        except UnsupportedError as error:
            self.unsupported.append(f"{where}: {node.op_type} (opset {frame.opset}): {error}")
            return (_MISSING,) * len(node.outputs)
        except IngotError as error:
            if str(error).startswith("onnx "):
                raise
            raise type(error)(f"{where} ({node.op_type}): {error}") from error
        except (ArithmeticError, LookupError, TypeError, ValueError, SerdeError) as error:
            # Rules check what they read; this is the border for content that none of them thought of.
            raise LoadError(
                f"{where} ({node.op_type}): malformed, {type(error).__name__}: {str(error)[:200]}"
            ) from error
        return tuple(self.named(r, o.name, build) for r, o in zip(results, node.outputs, strict=True))

    def named(self, result: str | _Missing | None, name: str | None, build: OnnxBuilder) -> str | _Missing | None:
        """Gives a value that this node made the name that the model has for it."""
        if not isinstance(result, str) or result not in build.made or not name:
            return result
        build.made.discard(result)
        final = self.graph.fresh(name)
        self.facts.rename(result, final)
        return final

    def apply(self, call: Call, frame: _Frame) -> tuple:
        function = self.model.functions.get((call.node.domain, call.op, call.node.overload))
        if function is not None:
            return self.inline(function, call, frame)
        # The opset that a frame knows is that of the default domain; another has the version that the model imports.
        version = call.opset if call.domain == "" else self.model.opset_imports.get(call.domain, 0)
        signature = signature_of(call.op, version, call.domain) if call.domain in ("", PREVIEW) else None
        if signature is not None:
            check_call(call, signature)
        if call.domain == "" and call.op == "If":
            return self.branch(call, frame)
        rule = find_rule(call.domain, call.op, call.opset)
        result = None if rule is None else rule(call)
        if result is not None:
            note(foreign_name(call.domain, call.op), call.build.ops)
            return result if isinstance(result, tuple) else (result,)
        if signature is not None and signature.has_function:
            return self.expand(call, version, frame)
        domain = f"{call.domain}." if call.domain else ""
        raise UnsupportedError(f"op {domain}{call.op} has no rule; see 'ingot ops'")

    def enter(self, frame: _Frame, what: str) -> int:
        if frame.depth >= MAX_DEPTH:
            raise LimitError(f"{what}: nested too deep, or recursive, expected at most {MAX_DEPTH} levels")
        return frame.depth + 1

    def inline(self, function: onnx_ir.Function, call: Call, frame: _Frame) -> tuple:
        """A model-local function's body, with the call's operands and attributes."""
        depth = self.enter(frame, f"function {function.name!r}")
        opset = function.opset_imports.get("", frame.opset)
        if opset < OLDEST_NATIVE_OPSET:
            raise UnsupportedError(f"a function of opset {opset} is not supported")
        if len(call) > len(function.inputs) or len(call.outputs) > len(function.outputs):
            raise LoadError(f"function {function.name!r}: called with too many inputs or outputs")
        attributes = {name: a for name, a in function.attributes.items() if a.value is not None} | dict(call.attributes)
        inner = _Frame(opset, depth, attributes=attributes)
        for i, parameter in enumerate(function.inputs):
            inner.values[parameter] = call[i] if call.has(i) else None
        self.walk(function, inner)
        return tuple(self.lookup(v, inner) for v in function.outputs)

    def branch(self, call: Call, frame: _Frame) -> tuple:
        """The branch that a known condition takes; it sees the values around it."""
        condition = call.known(0)
        if condition is None or condition.size != 1:
            raise UnsupportedError("a condition that is not known at load is not supported")
        chosen = call.attr_graph("then_branch" if condition.item() else "else_branch")
        if len(chosen.outputs) != len(call.outputs):
            raise LoadError(f"branch makes {len(chosen.outputs)} values, expected {len(call.outputs)}")
        frame.depth = self.enter(frame, "branch")
        self.walk(chosen, frame)
        frame.depth -= 1
        return tuple(self.lookup(v, frame) for v in chosen.outputs)

    def expand(self, call: Call, version: int, frame: _Frame) -> tuple:
        """An op without a rule, through the body that its ONNX schema gives it at a version of its domain."""
        depth = self.enter(frame, f"op {call.op}")
        schema = onnx.defs.get_schema(call.op, version, call.domain)
        body, attributes = _schema_body(call, schema, version)
        inner = _Frame(body.opset_imports.get("", call.opset), depth, attributes=attributes | dict(call.attributes))
        for i, parameter in enumerate(body.inputs):
            inner.values[parameter] = call.get(i)
        self.walk(body, inner)
        made = {v.name: self.lookup(v, inner) for v in body.outputs}
        return tuple(made.get(formal.name) for formal, _ in zip(schema.outputs, call.outputs, strict=False))


def _resolve(node: onnx_ir.Node, frame: _Frame) -> dict[str, onnx_ir.Attr]:
    """The node's attributes, references to the function's own ones replaced or, when not given, left out."""
    resolved = {}
    for name, attribute in node.attributes.items():
        if not attribute.is_ref():
            resolved[name] = attribute
        elif attribute.ref_attr_name in frame.attributes:
            given = frame.attributes[attribute.ref_attr_name]
            resolved[name] = onnx_ir.Attr(name, given.type, given.value)
    return resolved


def _schema_body(call: Call, schema: Any, version: int) -> tuple[onnx_ir.Function, dict[str, onnx_ir.Attr]]:
    """The body for the operands that are given, and its attributes' defaults.

    ONNX writes some bodies for the dtypes, ranks and presence of operands, and leaves out outputs nobody asks for.
    """
    inputs = [f"input{i}" if call.has(i) else "" for i in range(len(call))]
    outputs = [f"output{i}" if name else "" for i, name in enumerate(call.outputs)]
    defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    given = {name: onnx_ir.to_proto(attribute) for name, attribute in call.attributes.items()}
    node = onnx.helper.make_node(call.op, inputs, outputs, domain=call.domain)
    node.attribute.extend((defaults | given).values())
    try:
        if schema.has_context_dependent_function:
            types = [_type_proto(call.type(i)) if call.has(i) else onnx.TypeProto() for i in range(len(call))]
            content = schema.get_context_dependent_function_with_opset_version(
                _newest(schema.context_dependent_function_opset_versions, version),
                node.SerializeToString(),
                [t.SerializeToString() for t in types],
            )
        else:
            content = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, version))
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(f"op {call.op} has no rule, and no body ({str(error)[:200]})") from error
    body = onnx.FunctionProto.FromString(content)
    made = {*body.input, *(name for inner in body.node for name in inner.output)}
    kept = [name for name in body.output if name in made]
    del body.output[:]
    body.output.extend(kept)
    return onnx_ir.from_proto(body), {name: onnx_ir.serde.deserialize_attribute(a) for name, a in defaults.items()}


def _newest(versions: list[int], opset: int) -> int:
    return max(version for version in versions if version <= opset)


def _type_proto(type: TensorType) -> onnx.TypeProto:
    number = next(n for n, d in TENSOR_DTYPES.items() if d is type.dtype)
    shape = [d if isinstance(d, int) else str(d) for d in type.shape]
    return onnx.helper.make_tensor_type_proto(number, shape)


def _input_type(value: onnx_ir.Value, symbols: _Symbols) -> TensorType:
    where = f"onnx input {value.name!r}"
    if not isinstance(value.type, onnx_ir.TensorType):
        raise UnsupportedError(f"{where}: type {value.type} is not supported, only dense tensors are")
    if value.shape is None:
        raise UnsupportedError(f"{where}: has no shape")
    count_elements([d for d in value.shape if isinstance(d, int)], where)
    dims = [symbols.dim(d, f"{value.name}_{i}") for i, d in enumerate(value.shape)]
    return TensorType(dtype_of(value.type.dtype.value, where), tuple(dims))


class _Symbols:
    """dim_params as dims: a name is a symbol; an expression over names that inputs have is that expression."""

    def __init__(self, shapes: list[onnx_ir.Shape]):
        params = [d.value for shape in shapes for d in shape if isinstance(d, onnx_ir.SymbolicDim)]
        self.plain = {p for p in params if p and _NAME.fullmatch(p)}
        self.taken = set(self.plain)
        self.dims: dict[str, Dim] = {}

    def dim(self, given: int | onnx_ir.SymbolicDim, hint: str) -> Dim:
        if isinstance(given, int):
            return given
        param = given.value
        if isinstance(param, bytes):
            raise LoadError(f"onnx input dim: not UTF-8, got {param[:100]!r}")
        if not param:
            return symbol(self.fresh(hint))
        if param in self.plain:
            return symbol(param)
        if param not in self.dims:
            expression = _expression(param)
            known = isinstance(expression, Expr) and symbols_of(expression) <= self.plain
            self.dims[param] = expression if known else symbol(self.fresh(param))
        return self.dims[param]

    def fresh(self, hint: str) -> str:
        name = re.sub(r"\W", "_", hint, flags=re.ASCII)[:64]
        name = name if _NAME.fullmatch(name) else f"d_{name}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


_NAME = re.compile(r"(?!(?:min|max|none)$)[A-Za-z_]\w{0,63}", re.ASCII)
_EXPRESSION = re.compile(r"[\w+*/ ()-]{1,128}", re.ASCII)


def _expression(text: str) -> Dim:
    if not _EXPRESSION.fullmatch(text):
        return None
    try:
        return dim.parse(text)
    except (ValueError, SyntaxError, ZeroDivisionError):
        return None


def _check_output(value: onnx_ir.Value, type: TensorType) -> None:
    where = f"onnx output {value.name!r}"
    if value.type is None:
        return
    if not isinstance(value.type, onnx_ir.TensorType):
        raise UnsupportedError(f"{where}: type {value.type} is not supported, only dense tensors are")
    declared = dtype_of(value.type.dtype.value, where)
    if declared is not type.dtype:
        raise ShapeError(f"{where}: declared dtype contradicts the graph, got {declared}, expected {type.dtype}")

"""Graph <-> text. `parse(dump(g), weights)` gives back `g`; dumps, goldens, diffs and bug reports are this text.

graph name
input x: f32[B, 4]
weight w: f32[4, 4]
constant c: f32[2] = [1.0, 2.5]
state s: f32[4] -> s_next
state p: f32[4] = given -> p_next
source 0: "/head/MatMul" "MatMul"
y = matmul(x, w, transpose_b=true): f32[B, 4] from 0
output logits = y
"""

from __future__ import annotations

import base64
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np

import ingot.ir.dim as dim
from ingot.errors import IngotError, LoadError
from ingot.ir.dtype import DTYPES, NARROW, DType, bf16, f16, f32, f64, from_numpy, i64, string
from ingot.ir.graph import (
    OPS,
    Graph,
    MapType,
    Node,
    Op,
    OptionalType,
    SequenceType,
    Source,
    TensorType,
    Type,
    UnrankedType,
    compatible,
)

_BARE = re.compile(r"[A-Za-z_][\w.]*")
_INLINE_ELEMENTS = 64
_SHOWN_ELEMENTS = 8  # of a constant in a short text
_AS_BYTES = (f16, bf16, *NARROW)
_MAX_POSITION_DIGITS = 9  # of a source
_MAX_DEPTH = 40  # of nested subgraphs and types


def dump(graph: Graph, *, is_short: bool = False, has_sources: bool = True) -> str:
    """Return the text of a graph; data of weights and states is omitted, constants are exact.

    is_short: long constants and sources are omitted, too, and the text cannot be parsed. has_sources: whether it
    includes the loaded model's nodes that each node was built from; no computation depends on them.
    """
    has_sources = has_sources and not is_short
    first, *rest = _lines(graph, is_short, has_sources)
    sources = [_source(source) for source in sorted(_sources_of(graph))] if has_sources else []
    return "\n".join([first, *sources, *rest]) + "\n"


def _lines(graph: Graph, is_short: bool, has_sources: bool) -> list[str]:
    lines = [f"graph {_name(graph.name)}"]
    for name in graph.inputs:
        lines.append(f"input {_name(name)}: {graph.values[name].type}")
    for name, value in graph.values.items():
        if value.kind == "weight":
            lines.append(f"weight {_name(name)}: {value.type}")
        elif value.kind == "constant":
            assert value.data is not None
            data = "..." if is_short and value.data.size > _SHOWN_ELEMENTS else _array(value.data)
            lines.append(f"constant {_name(name)}: {value.type} = {data}")
        elif value.kind == "state":
            begins = " = given" if name in graph.initial else ""
            lines.append(f"state {_name(name)}: {value.type}{begins} -> {_name(graph.states[name])}")
    lines += [_node_line(graph, node, has_sources) for node in graph.nodes]
    lines += [f"output {_name(external)} = {_name(value)}" for external, value in graph.outputs.items()]
    return lines


def _sources_of(graph: Graph) -> set[Source]:
    """Return all sources of nodes, including those of subgraphs."""
    found = {source for node in graph.nodes for source in node.sources}
    return found.union(*map(_sources_of, graph.bodies))


def _source(source: Source) -> str:
    named = [
        f"{key}={json.dumps(text)}" for key, text in (("domain", source.domain), ("module", source.module)) if text
    ]
    return " ".join([f"source {source.position}: {json.dumps(source.name)} {json.dumps(source.op)}", *named])


def _node_line(graph: Graph, node: Node, has_sources: bool) -> str:
    """Return one node's line; subgraphs in attributes follow in braces."""
    types = [graph.values[o].type for o in node.outputs]
    line = f"{', '.join(map(_name, node.outputs))} = {_call(node, node.operands, types, has_sources)}"
    return f"{line} from {', '.join(str(s.position) for s in node.sources)}" if has_sources and node.sources else line


def dump_call(node: Node, operands: Sequence[str | None], types: Sequence[Type]) -> str:
    """Return the text of a node's call with these operand names; types: of its results, without names and sources."""
    return _call(node, operands, types, has_sources=False)


def _call(node: Node, operands: Sequence[str | None], types: Sequence[Type], has_sources: bool) -> str:
    arguments = ["none" if o is None else _name(o) for o in operands]
    defaults = node.op.attributes
    for key, value in node.attributes.items():
        if key not in defaults or not _same(defaults[key], value):
            arguments.append(f"{key}={_attribute(value, has_sources)}")
    return f"{node.op.name}({', '.join(arguments)}): {', '.join(map(str, types))}"


def index_location(graph: Graph, node: str) -> str:
    """Return the location of a bad index for an error: `'node': operands`. node: the first result of a node."""
    value = graph.values.get(node)
    maker = None if value is None else value.producer
    names = "" if maker is None else maker.op.names_of_indices(maker.attributes)
    return f"{node!r}: {names}" if names else repr(node)


def diff(before: str, after: str) -> str:
    """Return a unified diff of two dumps; empty when they are equal."""
    return "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "before", "after", n=1))


def _same(default: Any, value: Any) -> bool:
    return type(default) is type(value) and default == value


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) and name != "none" else json.dumps(name)


def _fits(kind: Any, value: Any) -> bool:
    """Return whether an attribute fits its op's annotation.

    Integers are signed 64-bit; integers, with or without a sign, are accepted for floats.
    """
    origin = get_origin(kind)
    if origin is Annotated:
        return _fits(get_args(kind)[1], value)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(get_args(kind)[0], item) for item in value)
    if origin is Literal:
        return value in get_args(kind)
    if origin is not None:
        return any(_fits(choice, value) for choice in get_args(kind))
    if type(value) is int:
        return kind in (int, float) and -(2**63) <= value < (2**63 if kind is int else 2**64)
    if type(value) is bool:
        return kind is bool
    return isinstance(value, kind)


def _attribute(value: Any, has_sources: bool = False) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "none"
        case str():
            return json.dumps(value)
        case tuple():
            return f"[{', '.join(map(_attribute, value))}]"
        case DType():
            return f"@{value.name}"
        case float():
            return repr(float(value))
        case TensorType() | UnrankedType() | MapType() | SequenceType() | OptionalType():
            return f"<{value}>"
        case Graph():
            return "{" + "; ".join(_lines(value, False, has_sources)) + "}"
    return str(value)


def _array(data: np.ndarray) -> str:
    if data.dtype == object:
        return json.dumps(data.ravel().tolist())
    if data.size > _INLINE_ELEMENTS or from_numpy(data.dtype) in _AS_BYTES:
        return f"base64:{base64.b64encode(np.ascontiguousarray(data).tobytes()).decode()}"
    if data.dtype.kind == "f":
        return f"[{', '.join(_float(v) for v in data.ravel())}]"
    if data.dtype.kind == "b":
        return f"[{', '.join('true' if v else 'false' for v in data.ravel())}]"
    return f"[{', '.join(str(int(v)) for v in data.ravel())}]"


def _float(value: np.floating) -> str:
    if np.isnan(value):
        return "nan"
    return np.format_float_scientific(value, trim="0") if np.isfinite(value) else ("inf" if value > 0 else "-inf")


def _strings(items: list[str]) -> np.ndarray:
    found = [json.loads(item) for item in items]
    if not all(isinstance(item, str) for item in found):
        raise ValueError("an element is no string")
    return np.array(found, object)


def parse(text: str, weights: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Parse a graph that `dump` wrote; a weight or state without data in `weights` has only its header.

    Raises LoadError, with the line, for any other text.
    """
    graph = Graph()
    states: list[tuple[str, str]] = []
    sources: dict[int, Source] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            reader = _Line(_TOKEN.findall(line), graph, states, sources, weights or {})
            reader.parse()
            if reader.peek():
                raise ValueError(f"got {reader.peek()!r} after the end")
        except (*_MALFORMED, IngotError) as error:
            raise LoadError(f"graph text, line {number}: cannot be read, got {line[:200]!r} ({error})") from error
    for name, update in states:
        if update not in graph.values:
            raise LoadError(f"graph text: state {name!r} has no update, got {update!r}, expected a value")
        types = graph.type(name), graph.values[update].type
        if not compatible(*types):
            raise LoadError(
                f"graph text: state {name!r} has another type than its update, got {types[0]} and {types[1]}"
            )
        graph.set_state(name, update)
    return graph


_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_TOKEN = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|->|base64:(?! )[A-Za-z0-9+/=]*|@\w+|-(?:inf|nan)\b|-?\d[\w.]*|[A-Za-z_][\w.]*|//|\S)'
)


class _Line:
    """A cursor over the tokens of one line."""

    def __init__(
        self,
        tokens: list[str],
        graph: Graph,
        states: list[tuple[str, str]],
        sources: dict[int, Source],
        weights: Mapping[str, np.ndarray],
    ):
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.graph = graph
        self.states = states
        self.sources = sources
        self.weights = weights

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.tokens[self.at]
        if expected is not None and token != expected:
            raise ValueError(f"got {token!r}, expected {expected!r}")
        self.at += 1
        return token

    def name(self) -> str:
        token = self.take()
        return json.loads(token) if token.startswith('"') else token

    def parse(self) -> None:
        keyword = self.peek() if self.peek(1) not in ("=", ",") else ""
        match keyword:
            case "graph":
                self.take()
                self.graph.name = self.name()
            case "input" | "weight" | "constant" | "state":
                self.declaration(self.take())
            case "source":
                self.take()
                self.source()
            case "output":
                self.take()
                external = self.name()
                self.take("=")
                if external in self.graph.outputs:
                    raise ValueError(f"output {external!r} is defined twice")
                value = self.name()
                if value not in self.graph.values:
                    raise ValueError(f"no such value, got {value!r}")
                self.graph.set_output(external, value)
            case _:
                self.node()

    def source(self) -> None:
        """Parse a node of the loaded model; the following nodes are from it."""
        position = self.position()
        self.take(":")
        fields = {"name": self.string(), "op": self.string()}
        while self.peek() in ("domain", "module"):
            key = self.take()
            self.take("=")
            fields[key] = self.string()
        if position in self.sources:
            raise ValueError(f"source {position} is defined twice")
        self.sources[position] = Source(position, **fields)

    def position(self) -> int:
        token = self.take()
        if not token.isdecimal() or len(token) > _MAX_POSITION_DIGITS:
            raise ValueError(f"bad position of a source, got {token[:100]!r}, expected a number")
        return int(token)

    def string(self) -> str:
        token = self.peek()
        if not token.startswith('"'):
            raise ValueError(f"got {token!r}, expected a text in quotes")
        return self.name()

    def declaration(self, keyword: str) -> None:
        name = self.name()
        self.take(":")
        type = self.type()
        if keyword == "input":
            self.graph.add_input(name, type)
            return
        if not isinstance(type, TensorType):
            raise ValueError(f"a {keyword} is a tensor, got {type}")
        if keyword == "weight":
            self.graph.add_weight(name, self.data(name, self.known(type)), type)
        elif keyword == "constant":
            self.take("=")
            self.graph.add_constant(name, self.array(self.known(type)))
        else:
            self.graph.add_state(name, type)
            if self.peek() == "=":
                self.take()
                self.take("given")
                self.graph.begin_state(name, self.data(name, self.known(type)))
            self.take("->")
            self.states.append((name, self.name()))

    def known(self, type: TensorType) -> TensorType:
        """Return the type of data, which must have no symbols."""
        if not type.is_static:
            raise ValueError(f"data have known dims, got {type}")
        return type

    def data(self, name: str, type: TensorType) -> np.ndarray | None:
        """Return the given data of a weight, which must be of its type."""
        data = self.weights.get(name)
        if data is not None and (data.dtype != type.dtype.numpy or data.shape != type.shape):
            raise ValueError(f"its data are {data.dtype}{list(data.shape)}, not {type}")
        return data

    def node(self) -> None:
        outputs = [self.name()]
        while self.peek() == ",":
            self.take()
            outputs.append(self.name())
        self.take("=")
        op = self.take()
        try:
            definition = OPS[op]
        except KeyError as error:
            raise ValueError(f"unknown op {op!r}") from error
        self.take("(")
        operands: list[str | None] = []
        attributes: dict[str, Any] = {}
        while self.peek() != ")":
            if self.at + 1 < len(self.tokens) and self.tokens[self.at + 1] == "=":
                key = self.take()
                self.take("=")
                attributes[key] = self.attribute()
            elif self.peek() == "none":
                self.take()
                operands.append(None)
            else:
                operands.append(self.name())
            if self.peek() == ",":
                self.take()
        self.take(")")
        self.expect_use(definition, operands, attributes, len(outputs))
        node = self.graph.add(op, operands, outputs, **attributes)
        if node.outputs != tuple(outputs):
            raise ValueError(f"a value of {', '.join(outputs)} is defined twice")
        if self.peek() == ":":  # otherwise the text is handwritten: the inferred types are used
            for i, output in enumerate(node.outputs):
                self.take("," if i else ":")
                self.graph.narrow(output, self.type())
        while self.peek() in ("from", ",") and self.peek(1).isdecimal():
            self.take()
            self.graph.name_after(node, [self.sources[self.position()]])

    def expect_use(self, op: Op, operands: list[str | None], attributes: dict[str, Any], outputs: int) -> None:
        """Raise ValueError unless an op may be used in this form, as far as can be checked before its inference."""
        wrong = op.misuse(operands, attributes)
        if wrong or outputs != (op.outputs or outputs):
            raise ValueError(wrong or f"{op.name} has {op.outputs} results, {outputs} were named")
        for key, value in attributes.items():
            if not _fits(op.attribute_types[key], value):
                expected = re.sub(
                    r"typing\.|ingot\.\w+\.|Annotated\[Any, |<class '|'>", "", str(op.attribute_types[key])
                )
                raise ValueError(f"{op.name}: bad {key}, got {_attribute(value)[:100]}, expected {expected}")
        types = [None if operand is None else self.graph.values[operand].type for operand in operands]
        for operand, type in zip(operands, types, strict=True):
            if not op.any_type and type is not None and not isinstance(type, TensorType):
                raise ValueError(f"{op.name}: {operand!r} is {type}, expected a tensor")
        if not op.outputs and outputs != len(inferred := op.infer(*types, **attributes)):
            raise ValueError(f"{op.name} has {len(inferred)} results here, {outputs} were named")

    def type(self) -> Type:
        word = self.take()
        if word in ("sequence", "optional"):
            self.take("<")
            self.enter()
            element = self.type()
            self.depth -= 1
            self.take(">")
            return SequenceType(element) if word == "sequence" else OptionalType(element)
        if word == "map":
            self.take("<")
            key, _, value = DTYPES[self.take()], self.take(","), DTYPES[self.take()]
            self.take(">")
            if key not in (i64, string) or value not in (f32, f64):
                raise ValueError(f"got {MapType(key, value)}, expected floats by i64 or string")
            return MapType(key, value)
        self.take("[")
        items = self.items()
        if items == ["..."]:
            return UnrankedType(DTYPES[word])
        return TensorType(DTYPES[word], tuple(dim.parse(text) for text in items))

    def enter(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ValueError(f"nested too deep, expected at most {_MAX_DEPTH} levels")

    def subgraph(self) -> Graph:
        """Parse a graph in braces, with lines separated by semicolons; it has no states, and its data are constants."""
        self.take("{")
        self.enter()
        outer, self.graph = self.graph, Graph()
        states = len(self.states)
        while self.peek() != "}":
            if self.peek() == "weight" and self.peek(1) not in ("=", ","):
                raise ValueError("a subgraph has no weights, expected constants")
            self.parse()
            if self.peek() != "}":
                self.take(";")
        self.take("}")
        self.depth -= 1
        if len(self.states) != states:
            raise ValueError("a subgraph has no states")
        inner, self.graph = self.graph, outer
        return inner

    def items(self) -> list[str]:
        """Return the texts between commas up to the closing bracket, which is consumed."""
        items: list[str] = []
        current, depth = "", 0
        while True:
            token = self.take()
            if token == "]" and depth == 0:
                return [*items, current] if current else items
            depth += (token in "([") - (token in ")]")
            if token == "," and depth == 0:
                items.append(current)
                current = ""
            else:
                current += token

    def attribute(self) -> Any:
        token = self.peek()
        if token == "[":
            self.take()
            values = []
            while self.peek() != "]":
                values.append(self.attribute())
                if self.peek() == ",":
                    self.take()
            self.take("]")
            return tuple(values)
        if token in ("true", "false", "none"):
            self.take()
            return {"true": True, "false": False, "none": None}[token]
        if token.startswith('"'):
            return self.name()
        if token.startswith("@"):
            return DTYPES[self.take()[1:]]
        if token == "{":
            return self.subgraph()
        if token == "<":
            self.take()
            type = self.type()
            self.take(">")
            return type
        text, depth = "", 0
        while self.at < len(self.tokens) and (depth or self.peek() not in (",", ")", "]", ";", "}")):
            token = self.take()
            depth += (token == "(") - (token == ")")
            text += token
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        return float(text) if re.fullmatch(r"-?(inf|nan|\d+\.\d*(e[+-]?\d+)?|\d+e[+-]?\d+)", text) else dim.parse(text)

    def array(self, type: TensorType) -> np.ndarray:
        token = self.take()
        if token.startswith("base64:"):
            if type.dtype is string:
                raise ValueError("strings are not written as bytes")
            raw = base64.b64decode(token[7:], validate=True)
            return np.frombuffer(raw, type.dtype.numpy).reshape(type.dims)
        items = self.items()
        if type.dtype is string:
            return _strings(items).reshape(type.dims)
        if type.dtype.kind == "b":
            return np.array([{"true": True, "false": False}[item] for item in items], bool).reshape(type.dims)
        return np.array(items, type.dtype.numpy).reshape(type.dims)

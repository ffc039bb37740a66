"""`load_onnx`: convert a parsed ONNX model to a Graph, node by node, with the table of rules.

Functions, branches of `If` with a known condition, and ops defined only by a schema body are inlined, with shared
limits on depth and number of nodes. Unsupported nodes are collected and reported in one error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import onnx
import onnx_ir
from onnx_ir.serde import SerdeError

from ingot.errors import IngotError, LimitError, LoadError, ShapeError, UnboundError, UnrankedError, UnsupportedError
from ingot.ir.graph import MAX_RANK, Graph, OptionalType, Source, TensorType, Type, UnrankedType, forget
from ingot.load.built_ops import note
from ingot.load.draws import drawing_state
from ingot.load.onnx.builder import Facts, OnnxBuilder, Totals
from ingot.load.onnx.call import Body, Call, inputs_of
from ingot.load.onnx.custom import registered
from ingot.load.onnx.parse import Parsed, parse_model
from ingot.load.onnx.random import random_state_of_iteration
from ingot.load.onnx.ranks import choose, is_unranked, of_rank
from ingot.load.onnx.registry import DESCRIBED, INGOT, find_rule, foreign_name, reason
from ingot.load.onnx.signature import check_call, signature_of
from ingot.load.onnx.symbols import Symbols
from ingot.load.onnx.tensors import DTYPES as TENSOR_DTYPES
from ingot.load.onnx.tensors import UNNAMED, array_of, count_elements, declared_type, dtype_of, shown, type_of
from ingot.ops.custom import find_onnx
from ingot.support.collector import uncollected

MAX_DEPTH = 32  # of nested functions and subgraphs
MAX_INLINED_NODES = 200_000  # of functions and subgraphs, counted each time they are inlined
MAX_RANKED_NODES = 1 << 16  # nodes that are loaded once per rank of an operand whose rank is only known at run time
MAX_LISTED = 50  # unsupported nodes in one error


def load_onnx(source: str | os.PathLike | bytes) -> Graph:
    """Load an ONNX model, given as a path or its bytes.

    Raises MissingFileError for a missing path, LoadError for malformed content (ShapeError when shapes or dtypes
    contradict each other), LimitError beyond a documented limit, and one UnsupportedError for all nodes without a rule.
    It is an UnboundError if values of the symbolic dims would make each of these nodes loadable.
    """
    return load_parsed(parse_model(source))


@uncollected()
def load_parsed(parsed: Parsed, sizes: Mapping[str, int] = {}, *, is_trained: bool = False) -> Graph:
    """Load a parsed model, as `load_onnx`; sizes: values of its symbolic dims. is_trained: small float initializers are
    weights too, so that no result of theirs is computed at load time.
    """
    with _named(parsed):
        return _Loader(parsed.model, parsed.opset, sizes, is_trained).load()


def interface_of(parsed: Parsed, sizes: Mapping[str, int]) -> tuple[Graph, dict[str, Type | None]]:
    """Return a graph of a model's inputs alone, and the declared type of each output, None where undeclared.

    sizes: the values of symbols that have one.
    """
    loader = _Loader(parsed.model, parsed.opset, sizes)
    with _named(parsed):
        loader.take_inputs()
    outputs: dict[str, Type | None] = {}
    for v in parsed.model.graph.outputs:
        where = f"onnx output {shown(v.name)}"
        outputs[v.name or ""] = None if v.type is None else declared_type(v.type, v.shape, where)
    return loader.graph, outputs


@contextlib.contextmanager
def _named(parsed: Parsed) -> Iterator[None]:
    """Prefix errors with the path of the model."""
    try:
        yield
    except IngotError as error:
        if not parsed.file:
            raise
        raise type(error)(f"onnx file {parsed.file!r}: {error}") from error


class _Missing:
    """The value of an output of an unsupported node; nodes that read it are skipped."""


_MISSING = _Missing()


class _Noted(UnsupportedError):
    """A subgraph contains, or depends on, unsupported nodes that are already recorded."""


@dataclass(slots=True)
class _Frame:
    """One activation of a graph, subgraph or function body: its values, and the attributes that the caller gave.

    is_named: whether its nodes belong to the model itself, not to a schema body. outer: the enclosing frame of a
    subgraph. captured: values of enclosing graphs -> the input that represents each, or an equal constant.
    """

    opset: int
    facts: Facts
    depth: int = 0
    values: dict[onnx_ir.Value, str | _Missing | None] = field(default_factory=dict)
    attributes: dict[str, onnx_ir.Attr] = field(default_factory=dict)
    is_named: bool = True
    outer: _Frame | None = None
    captured: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Enclosing:
    """The frame of a node, for its call. Frames reference no calls, so each call is freed at once."""

    loader: _Loader
    frame: _Frame

    def body(self, call: Call, attribute: str, types: Sequence[Type]) -> Body:
        return self.loader.body(call, self.frame, attribute, types)

    def branch(self, call: Call, attribute: str) -> Body | IngotError:
        return self.loader.fitting_branch(call, self.frame, attribute)

    def named(self, name: str) -> str:
        return _value_named(self.frame, name)


class _Loader:
    def __init__(self, model: onnx_ir.Model, opset: int, sizes: Mapping[str, int], is_trained: bool = False):
        self.model = model
        self.is_trained = is_trained
        shapes = (v.shape for v in model.graph.inputs if v.shape is not None)
        self.symbols = Symbols(shapes, sizes)
        self.graph = Graph(model.graph.name or "onnx")
        self.facts = Facts(self.graph, Totals(self.symbols), draws=partial(drawing_state, self.graph))
        self.frame = _Frame(opset, self.facts)
        self.unsupported: list[UnsupportedError] = []
        self.inlined = self.ranked = self.sources = 0

    def load(self) -> Graph:
        source = self.model.graph
        self.take_inputs()
        for name in self.graph.inputs:
            type = self.graph.values[name].type
            if isinstance(type, UnrankedType):
                expected = "its dims, each a number or a name, or a rank"
                raise UnboundError(
                    f"onnx input {shown(name)}: has no shape, got none, expected {expected} {shown(type.rank_symbol)}"
                )
        self.walk(source, self.frame)
        results = {v.name: self.lookup(v, self.frame) for v in source.outputs}
        if self.unsupported:
            self.refuse()
        for value in source.outputs:
            assert value.name is not None
            found = results[value.name]
            assert not isinstance(found, _Missing) and found is not None
            self.graph.set_output(value.name, self.returned(value, found))
        self.facts.sweep()
        return self.graph

    def take_inputs(self) -> None:
        source = self.model.graph
        for value in inputs_of(source):
            assert value.name is not None
            self.frame.values[value] = self.graph.add_input(value.name, _input_type(value, self.symbols))

    def returned(self, value: onnx_ir.Value, found: str) -> str:
        """Return the value of an output; an optional for an output that is not optional is unwrapped by the run."""
        type = self.graph.values[found].type
        may_be_absent = value.type is None or isinstance(value.type, onnx_ir.OptionalType)
        if isinstance(type, OptionalType) and not may_be_absent:
            found = OnnxBuilder(self.facts, f"{value.name}.element").get_element(found)
        _check_output(value, self.graph.values[found].type)
        return found

    def refuse(self) -> None:
        listed = [str(error) for error in self.unsupported[:MAX_LISTED]]
        if len(self.unsupported) > MAX_LISTED:
            listed.append(f"and {len(self.unsupported) - MAX_LISTED} more")
        is_unbound = self.graph.symbols and all(isinstance(error, UnboundError) for error in self.unsupported)
        raise (UnboundError if is_unbound else UnsupportedError)("\n".join(listed))

    def lookup(self, value: onnx_ir.Value | None, frame: _Frame) -> str | _Missing | None:
        if value is None:
            return None
        if value not in frame.values:
            name = value.name or "constant"
            if frame.outer is not None:
                found = self.lookup(value, frame.outer)
                frame.values[value] = _capture(found, frame, frame.outer.facts) if isinstance(found, str) else found
            else:
                assert value.const_value is not None, value.name
                build = OnnxBuilder(frame.facts, name)
                if isinstance(value.const_value, onnx_ir.ExternalTensor):  # the data is absent
                    frame.values[value] = build.without_data(type_of(value.const_value, name), name)
                else:
                    data = array_of(value.const_value, name)
                    store = (
                        build.parameter if self.is_trained and data.ndim and data.dtype.kind == "f" else build.literal
                    )
                    frame.values[value] = store(data, name)
        return frame.values[value]

    def walk(self, nodes: Iterable[onnx_ir.Node], frame: _Frame) -> None:
        """Load every node of a graph or function, in order; plain nodes get its origin and the enclosing origin."""
        graph = frame.facts.graph
        enclosing = graph.origin
        for node in nodes:
            self.inlined += frame.depth > 0
            if self.inlined > MAX_INLINED_NODES:
                raise LimitError(f"onnx model: too many nodes after inlining, expected at most {MAX_INLINED_NODES}")
            operands = [self.lookup(v, frame) for v in node.inputs]
            results: tuple[str | _Missing | None, ...] = (_MISSING,) * len(node.outputs)
            if _MISSING not in operands:
                graph.origin = enclosing + self.source(node, frame)
                results = self.visit(node, operands, frame)
                for result in results:
                    if isinstance(result, str) and (maker := graph.producer(result)) is not None:
                        graph.name_after(maker, graph.origin)  # the node may exist from an earlier rule
            elif (error := self.unknown(node, frame)) is not None:
                self.refuse_node(node, frame, error)
            for output, result in zip(node.outputs, results, strict=True):
                frame.values[output] = result
        graph.origin = enclosing

    def source(self, node: onnx_ir.Node, frame: _Frame) -> tuple[Source, ...]:
        """Return the name of a node for users."""
        if not frame.is_named:
            return ()
        self.sources += 1
        domain = "" if node.domain == "ai.onnx" else node.domain
        return (Source(self.sources - 1, node.name or "", node.op_type, domain),)

    def visit(self, node: onnx_ir.Node, operands: list, frame: _Frame) -> tuple:
        """Load one node. Every error names the node; an unsupported node is recorded and raises no error."""
        hint = node.outputs[0].name or node.op_type if node.outputs else node.op_type
        build = OnnxBuilder(frame.facts, hint)
        call = Call(node, frame.opset, operands, _resolve(node, frame), build, _Enclosing(self, frame))
        try:
            results = self.applied(call, frame)
            results = results[: len(node.outputs)]
            for output, result in zip_longest(node.outputs, results):
                if result is None and output.name:
                    raise UnsupportedError(f"output {shown(output.name)} is not supported")
        except _Noted:
            return (_MISSING,) * len(node.outputs)
        except UnsupportedError as error:
            self.refuse_node(node, frame, error)
            return (_MISSING,) * len(node.outputs)
        except IngotError as error:
            if str(error).startswith("onnx "):
                raise
            raise type(error)(f"{_where(node)} ({node.op_type}): {error}") from error
        except (ArithmeticError, LookupError, TypeError, ValueError, SerdeError) as error:
            # Rules check what they read; this catches content that no rule anticipates.
            raise LoadError(
                f"{_where(node)} ({node.op_type}): malformed, {type(error).__name__}: {str(error)[:200]}"
            ) from error
        if len(results) == 1:
            return (self.named(results[0], node.outputs[0].name, build),)
        final: dict[str | _Missing | None, str | _Missing | None] = {}  # one value may serve several outputs
        for result, output in zip(results, node.outputs, strict=True):
            final.setdefault(result, self.named(result, output.name, build))
        return tuple(final[result] for result in results)

    def refuse_node(self, node: onnx_ir.Node, frame: _Frame, error: UnsupportedError) -> None:
        """Record an unsupported node."""
        self.unsupported.append(type(error)(f"{_where(node)}: {node.op_type} (opset {frame.opset}): {error}"))

    def unknown(self, node: onnx_ir.Node, frame: _Frame) -> UnsupportedError | None:
        """Return the error for a node that has no rule and no body; None for any other node."""
        domain, op = "" if node.domain == "ai.onnx" else node.domain, node.op_type
        has_function = (node.domain, op, node.overload) in self.model.functions
        if has_function or find_onnx(domain, op) or find_rule(domain, op, frame.opset):
            return None
        signature = signature_of(op, self.version(domain, frame), domain) if domain in DESCRIBED else None
        return None if signature is not None and signature.has_function else _without_rule(domain, op)

    def version(self, domain: str, frame: _Frame) -> int:
        """Return the opset of a domain: the frame's own for the default domain, else the model's import."""
        return frame.opset if domain == "" else self.model.opset_imports.get(domain, 0)

    def named(self, result: str | _Missing | None, name: str | None, build: OnnxBuilder) -> str | _Missing | None:
        """Rename a value that this node has added to its name in the model."""
        if not isinstance(result, str) or result not in build.added or not name:
            return result
        build.added.discard(result)
        final = build.graph.fresh(name)
        build.facts.rename(result, final)
        return final

    def applied(self, call: Call, frame: _Frame) -> tuple:
        """Load a node. If its results depend on a rank that is only known at run time, add a branch for each rank."""
        try:
            return self.apply(call, frame)
        except UnrankedError:
            operand = next((o for o in call.operands if o is not None and is_unranked(call.build, o)), None)
            if self.symbols.are_open or operand is None:  # their values may fix the rank
                raise
            results = self.by_rank(call, frame, operand)
            if results is None:
                raise
            return results

    def apply(self, call: Call, frame: _Frame) -> tuple:
        own = find_onnx(call.domain, call.op)
        if own is not None:
            return registered(call, own)
        function = self.model.functions.get((call.node.domain, call.op, call.node.overload))
        rule = find_rule(call.domain, call.op, call.opset)
        if function is not None and (rule is None or call.domain != INGOT):
            return self.inline(function, call, frame)
        version = self.version(call.domain, frame)
        signature = signature_of(call.op, version, call.domain) if call.domain in DESCRIBED else None
        if signature is not None:
            check_call(call, signature)
        if call.domain == "" and call.op == "If" and call.known(0) is not None:
            return self.branch(call, frame)
        result = None if rule is None else rule(call)
        if result is not None:
            note(foreign_name(call.domain, call.op), call.build.ops)
            return result if isinstance(result, tuple) else (result,)
        if signature is not None and signature.has_function:
            return self.expand(call, version, frame)
        raise _without_rule(call.domain, call.op)

    def enter(self, frame: _Frame, what: str) -> int:
        if frame.depth >= MAX_DEPTH:
            raise LimitError(f"{what}: nested too deep, or recursive, expected at most {MAX_DEPTH} levels")
        return frame.depth + 1

    def inline(self, function: onnx_ir.Function, call: Call, frame: _Frame) -> tuple:
        """Inline a model-local function with the call's operands and attributes."""
        depth = self.enter(frame, f"function {shown(function.name)}")
        opset = function.opset_imports.get("", frame.opset)
        if len(call) > len(function.inputs) or len(call.outputs) > len(function.outputs):
            raise LoadError(f"function {shown(function.name)}: called with too many inputs or outputs")
        attributes = {name: a for name, a in function.attributes.items() if a.value is not None} | dict(call.attributes)
        inner = _Frame(opset, frame.facts, depth, attributes=attributes)
        for i, parameter in enumerate(function.inputs):
            inner.values[parameter] = call[i] if call.has(i) else None
        self.walk(function, inner)
        return tuple(self.lookup(v, inner) for v in function.outputs)

    def branch(self, call: Call, frame: _Frame) -> tuple:
        """Inline the branch that a known condition selects; it can read the enclosing values."""
        condition = call.known(0)
        if condition is None or condition.size != 1:
            raise LoadError(f"a condition of {call.type(0)}, expected one bool")
        branches = [call.subgraph(name, 0) for name in ("else_branch", "then_branch")]
        chosen = branches[bool(condition.item())]
        frame.depth = self.enter(frame, "branch")
        self.walk(chosen, frame)
        frame.depth -= 1
        return tuple(self.lookup(v, frame) for v in chosen.outputs)

    def body(self, call: Call, frame: _Frame, attribute: str, types: Sequence[Type]) -> Body:
        """Load a subgraph with inputs of the given types, followed by the captured values of enclosing graphs."""
        source: onnx_ir.Graph = call.attributes[attribute].value
        graph = Graph(source.name or attribute)
        facts = Facts(graph, self.facts.totals, nested=True)
        depth = self.enter(frame, f"subgraph {attribute!r}")
        inner = _Frame(frame.opset, facts, depth, attributes=frame.attributes, is_named=frame.is_named, outer=frame)
        facts.draws = cache(lambda: _draws_in_body(call, inner, frame))
        for value, type in zip(inputs_of(source), types, strict=True):
            inner.values[value] = graph.add_input(graph.fresh(value.name or "input"), facts.measure(type))
        return self.closed(source, source.outputs, inner, f"attribute {attribute!r}")

    def closed(
        self, nodes: Iterable[onnx_ir.Node], outputs: Sequence[onnx_ir.Value], inner: _Frame, where: str
    ) -> Body:
        """Load nodes and their results as a subgraph, in a frame created for it."""
        noted, graph = len(self.unsupported), inner.facts.graph
        self.walk(nodes, inner)
        results = [self.lookup(value, inner) for value in outputs]
        if len(self.unsupported) > noted or any(isinstance(result, _Missing) for result in results):
            raise _Noted
        for i, (value, result) in enumerate(zip(outputs, results, strict=True)):
            name = value.name or ""
            if not isinstance(result, str):
                raise LoadError(f"{where}: result {shown(name)} is not defined")
            while name in graph.outputs:  # one value may serve several results
                name += f".{i}"
            graph.set_output(name, result)
        inner.facts.sweep()
        captured = [name for name, inside in inner.captured.items() if inside in graph.inputs]
        return Body(graph, tuple(captured))

    def fitting_branch(self, call: Call, frame: _Frame, attribute: str) -> Body | IngotError:
        """Load a subgraph without inputs; return the error if the given dims may have caused it."""
        if not self.symbols.sizes:
            return self.body(call, frame, attribute, ())
        return self.attempt(partial(self.body, call, frame, attribute, ()))

    def attempt(self, load: Callable[[], Body]) -> Body | IngotError:
        """Call `load`, and return its error instead of raising it, if alternatives exist."""
        noted = len(self.unsupported)
        try:
            return load()
        except (LimitError, LoadError, UnsupportedError) as error:
            found = self.unsupported[noted:]
            del self.unsupported[noted:]
            return found[0] if found else error

    def by_rank(self, call: Call, frame: _Frame, operand: str) -> tuple | None:
        """Load a node for each rank of an operand; return the results, of a branch per rank if several fit, or None."""
        ranks = range(MAX_RANK + 1)
        found = [self.attempt(partial(self.node_of_rank, call, frame, operand, rank)) for rank in ranks]
        self.expect_few_ranks()  # a failed limit would count as an unsupported rank
        bodies = {rank: body for rank, body in enumerate(found) if isinstance(body, Body)}
        if len(bodies) > 1:
            results = iter(choose(call.build, operand, bodies))
            return tuple(next(results) if output.name else None for output in call.node.outputs)
        for rank in bodies:
            ranked = of_rank(OnnxBuilder(frame.facts, call.build.hint), operand, rank)
            return self.applied(call.replaced(*(ranked if o == operand else o for o in call.operands)), frame)
        return None

    def expect_few_ranks(self) -> None:
        if self.ranked > MAX_RANKED_NODES:
            raise LimitError(f"too many nodes for ranks known only at run time, expected at most {MAX_RANKED_NODES}")

    def node_of_rank(self, call: Call, frame: _Frame, operand: str, rank: int) -> Body:
        """Load a node as a subgraph in which an operand has a given rank."""
        self.ranked += 1
        self.expect_few_ranks()
        graph = Graph(f"{call.op}_of_rank_{rank}")
        facts = Facts(graph, self.facts.totals, nested=True)
        depth = self.enter(frame, f"op {call.op}")
        inner = _Frame(frame.opset, facts, depth, attributes=frame.attributes, is_named=frame.is_named, outer=frame)
        facts.draws = cache(lambda: _captured_draws(inner, frame))
        given = graph.add_input(graph.fresh(operand), call.build.graph.values[operand].type)
        inner.captured[operand] = of_rank(OnnxBuilder(facts, operand), given, rank)
        body = self.closed([call.node], [v for v in call.node.outputs if v.name], inner, f"op {call.op}")
        return Body(graph, (operand, *body.captured))

    def expand(self, call: Call, version: int, frame: _Frame) -> tuple:
        """Inline the schema body of an op without a rule, at a version of its domain."""
        depth = self.enter(frame, f"op {call.op}")
        schema = onnx.defs.get_schema(call.op, version, call.domain)
        body, attributes = _schema_body(call, schema, version)
        inner = _Frame(
            body.opset_imports.get("", call.opset),
            frame.facts,
            depth,
            attributes=attributes | dict(call.attributes),
            is_named=False,
        )
        for i, parameter in enumerate(body.inputs):
            inner.values[parameter] = call.get(i)
        self.walk(body, inner)
        results = {v.name: self.lookup(v, inner) for v in body.outputs}
        return tuple(results.get(formal.name) for formal, _ in zip(schema.outputs, call.outputs, strict=False))


def _where(node: onnx_ir.Node) -> str:
    """Return the name of a node for errors."""
    return f"onnx node {shown(node.name or next((o.name for o in node.outputs), ''))}"


def _without_rule(domain: str, op: str) -> UnsupportedError:
    return UnsupportedError(f"op {f'{domain}.{op}' if domain else op} {reason(domain, op)}")


def _value_named(frame: _Frame, name: str) -> str:
    """Return the value with a name in a frame. Raises LoadError unless an earlier node has defined it."""
    found = next((found for value, found in frame.values.items() if value.name == name), None)
    if not isinstance(found, str):
        raise LoadError(f"value {shown(name)} is not known, expected one that is defined earlier")
    return found


def _capture(name: str, frame: _Frame, outer: Facts) -> str:
    """Represent an enclosing value inside a subgraph: an input with the same known facts, or an equal constant."""
    if name not in frame.captured:
        inner, value = frame.facts, outer.graph.values[name]
        if value.kind == "constant" and value.data is not None:
            frame.captured[name] = OnnxBuilder(inner, name).constant(value.data, name)
            return frame.captured[name]
        inside = frame.captured[name] = inner.graph.add_input(inner.graph.fresh(name), value.type)
        if name in outer.symbolic:
            inner.symbolic[inside] = outer.symbolic[name]
        if name in outer.sizes:
            inner.sizes[inside] = outer.sizes[name]
    return frame.captured[name]


def _captured_draws(inner: _Frame, outer: _Frame) -> str:
    """Return the state that `draw_uniform` reads in a subgraph that runs once: that of the enclosing graph."""
    assert outer.facts.draws is not None
    return _capture(outer.facts.draws(), inner, outer.facts)


def _draws_in_body(call: Call, inner: _Frame, outer: _Frame) -> str:
    """Return the state that `draw_uniform` reads in a subgraph of a node; in the body of a `Loop`, it differs in each
    iteration.
    """
    if call.op in ("Scan", "SequenceMap"):
        raise UnsupportedError(f"a random op in the body of a {call.op}: no seed, expected the attribute seed")
    captured = _captured_draws(inner, outer)
    if call.op != "Loop":
        return captured
    return random_state_of_iteration(OnnxBuilder(inner.facts, call.build.hint), captured, inner.facts.graph.inputs[0])


def _resolve(node: onnx_ir.Node, frame: _Frame) -> dict[str, onnx_ir.Attr]:
    """Return the node's attributes; references to attributes of the function are resolved, or dropped when not
    given.
    """
    resolved = {}
    for name, attribute in node.attributes.items():
        if not attribute.is_ref():
            resolved[name] = attribute
        elif attribute.ref_attr_name in frame.attributes:
            given = frame.attributes[attribute.ref_attr_name]
            resolved[name] = onnx_ir.Attr(name, given.type, given.value)
    return resolved


def _schema_body(call: Call, schema: Any, version: int) -> tuple[onnx_ir.Function, dict[str, onnx_ir.Attr]]:
    """Return the schema body for the given operands, and the defaults of its attributes.

    ONNX generates some bodies for the dtypes, ranks and presence of operands, and omits unused outputs.
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
    defined = {*body.input, *(name for inner in body.node for name in inner.output)}
    if unknown := {name for inner in body.node for name in inner.input if name} - defined:
        raise LoadError(f"wrong attributes or inputs: the body in ONNX's schema does not define {min(unknown)!r}")
    outputs_defined = [name for name in body.output if name in defined]
    del body.output[:]
    body.output.extend(outputs_defined)
    return onnx_ir.from_proto(body), {name: onnx_ir.serde.deserialize_attribute(a) for name, a in defaults.items()}


def _newest(versions: list[int], opset: int) -> int:
    """Return the newest version of a body up to an opset; if all are newer, the oldest one."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _type_proto(type: TensorType) -> onnx.TypeProto:
    number = next(n for n, d in TENSOR_DTYPES.items() if d is type.dtype)
    shape = [d if isinstance(d, int) else str(d) for d in type.shape]
    return onnx.helper.make_tensor_type_proto(number, shape)


def _input_type(value: onnx_ir.Value, symbols: Symbols) -> Type:
    where = f"onnx input {shown(value.name)}"
    if not isinstance(value.type, onnx_ir.TensorType):
        return forget(declared_type(value.type, value.shape, where))
    dtype = dtype_of(value.type.dtype.value, where)
    if value.shape is None:
        rank = symbols.fresh(f"{value.name}_rank")
        if rank not in symbols.sizes:
            return UnrankedType(dtype, rank)
        if symbols.sizes[rank] > MAX_RANK:
            raise LimitError(f"{where}: rank too high, got {symbols.sizes[rank]}, expected at most {MAX_RANK}")
        sizes = [symbols.sizes.get(f"{rank}.{i}", UNNAMED) for i in range(symbols.sizes[rank])]
        return TensorType(dtype, tuple(symbols.dim(size, f"{value.name}_{i}") for i, size in enumerate(sizes)))
    count_elements([d for d in value.shape if isinstance(d, int) and d != UNNAMED], where)
    dims = [symbols.dim(d, f"{value.name}_{i}") for i, d in enumerate(value.shape)]
    return TensorType(dtype, tuple(dims))


def _check_output(value: onnx_ir.Value, type: Type) -> None:
    where = f"onnx output {shown(value.name)}"
    if value.type is None:
        return
    declared = declared_type(value.type, value.shape, where)
    if declared.onnx != type.onnx:
        raise ShapeError(f"{where}: declared dtype contradicts the graph, got {declared.onnx}, expected {type.onnx}")

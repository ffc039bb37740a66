"""`export_onnx`: convert a Graph to an ONNX model, node by node with the table of rules."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

import ingot
from ingot.emit.onnx.builder import ML, Builder, Names, value_info
from ingot.emit.onnx.registry import GAPS, RULES
from ingot.errors import KindError, LoadError, OutputError, UnsupportedError
from ingot.ir.graph import Graph, Node, TensorType
from ingot.ir.text import dump
from ingot.load.onnx.registry import INGOT
from ingot.ops.custom import CUSTOM, Custom
from ingot.ops.define import expand_node
from ingot.ops.source import DRAWS
from ingot.support.files import written

VERSIONS = {
    "": 26,
    ML: 5,
}  # opsets by domain, the newest that ONNX Runtime 1.31 supports, like the IR version; 1 for other domains
IR_VERSION = 13
INLINE_BYTES = 1 << 30  # of weights: larger ones are in a separate file; protobuf is limited to 2 GiB
_OUTSIDE_BYTES = 1024  # the smallest tensor in that file
_HEAD_BYTES = 64  # of a model file, with the producer name


def export_onnx(
    graph: Graph, path: str | os.PathLike[str] | None = None, kernels: Mapping[str, str] | None = None
) -> onnx.ModelProto:
    """Convert a Graph to an ONNX model; return it, and write it to `path` if given.

    Symbolic dims become dim_params, weights and constants initializers. A state becomes an input and the output
    `state:<name>`. An op without an ONNX equivalent is a function of the domain "ingot" with a body of plain ops. The
    weights of large models are written to `<name>.data` next to the path. Nodes have metadata, which Netron shows:
    `ingot.op`, `ingot.source` and `ingot.module` (the nodes of the loaded model and their modules), and `ingot.kernel`
    for nodes in `kernels`, by the name of the first output.

    Raises UnsupportedError naming every op that cannot be converted, LoadError for a weight without data, OutputError
    when the path cannot be written, and KindError when `graph` is no Graph.
    """
    if not isinstance(graph, Graph):
        got = type(graph).__name__
        raise KindError(f"export_onnx: a graph is needed, got {got}, expected a session's `graph`")
    model = _Export(graph, kernels or {}).model()
    if path is not None:
        _write(model, Path(path))
    return model


def expect_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError if the file, or its weights file, exists and was not written by `export_onnx`."""
    target, is_own = Path(path), False
    if os.path.lexists(target):
        try:
            with open(target, "rb") as file:
                is_own = re.match(rb"\x08.\x12" + _written_by(INGOT), file.read(_HEAD_BYTES), re.DOTALL) is not None
        except IsADirectoryError as error:
            raise OutputError(f"{target}: cannot be written ({error.strerror})") from error
        except OSError as error:
            raise OutputError(f"{target}: cannot be read ({error.strerror})") from error
    for each in (target, target.with_name(f"{target.name}.data")):
        if os.path.lexists(each) and not is_own:
            raise OutputError(
                f"{each}: exists and is no model that Ingot wrote, expected a free name, or force to replace it"
            )


def _written_by(producer: str) -> bytes:
    """Return the bytes of a producer name as they follow the version in a model file."""
    return bytes([len(producer)]) + producer.encode()


def _write(model: onnx.ModelProto, path: Path) -> None:
    if sum(tensor.ByteSize() for tensor in model.graph.initializer) <= INLINE_BYTES:
        with written(path) as file:
            file.write(model.SerializeToString())
        return
    outside, offset = f"{path.name}.data", 0
    inside = onnx.ModelProto()
    _copy(model, inside, "graph")
    _copy(model.graph, inside.graph, "initializer")
    with written(path.with_name(outside)) as file:
        for tensor in model.graph.initializer:
            row = inside.graph.initializer.add()
            if tensor.ByteSize() < _OUTSIDE_BYTES:
                row.CopyFrom(tensor)
                continue
            _copy(tensor, row, "raw_data")
            row.data_location = onnx.TensorProto.EXTERNAL
            count = file.write(tensor.raw_data)
            for key, value in (("location", outside), ("offset", offset), ("length", count)):
                row.external_data.add(key=key, value=str(value))
            offset += count
    with written(path) as file:
        file.write(inside.SerializeToString())


def _copy(source: Any, target: Any, left_out: str) -> None:
    """Copy all fields of a message except one, which may be too large to copy."""
    for field, value in source.ListFields():
        if field.name == left_out:
            continue
        if isinstance(value, (int, str, bytes)):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).extend(value)


class _Export:
    """A model under construction, with its functions."""

    def __init__(self, graph: Graph, kernels: Mapping[str, str]):
        self.graph = graph
        self.kernels = kernels
        self.functions: dict[str, onnx.FunctionProto] = {}  # by the text of their bodies
        self.missing: dict[str, str] = {}  # op -> why
        self.domains: set[str] = set()  # of all nodes

    def model(self) -> onnx.ModelProto:
        graph = self.graph
        states = [name for name in graph.states if name != DRAWS]
        results = {f"state:{name}": graph.states[name] for name in states}
        results = {**graph.outputs, **results}
        names = Names([*graph.inputs, *graph.states, *results])
        builder = self.builder(graph, names)
        builder.values.update({name: name for name in [*graph.inputs, *states]})
        if DRAWS in graph.states:  # ONNX's random ops do not read it; bodies of loops may
            builder.values[DRAWS] = builder.constant(np.zeros(2, np.int64))
        for external, name in results.items():
            if external in builder.values and name != external:
                raise UnsupportedError(f"export: output {external!r} has the name of an input, expected another")
            if graph.values[name].producer is not None:
                builder.values.setdefault(name, external)
        self.write(builder)
        for external, name in results.items():
            if builder.values[name] != external:
                builder.nodes.append(helper.make_node("Identity", [builder.values[name]], [external], name=external))
        if self.missing:
            listed = ", ".join(f"{op} {why}" for op, why in sorted(self.missing.items()))
            raise UnsupportedError(f"export: ops that ONNX does not have: {listed}")
        _sweep(builder, set(results))
        onnx_graph = helper.make_graph(
            builder.nodes,
            graph.name or "graph",
            [value_info(name, graph.values[name]) for name in [*graph.inputs, *states]],
            [value_info(external, graph.values[name]) for external, name in results.items()],
            value_info=[value_info(builder.values[o], graph.values[o]) for o in self.described(builder, set(results))],
        )
        model = self.assembled(onnx_graph)
        model.graph.initializer.extend(builder.initializers)  # which may be too large to be copied with the graph
        return model

    def described(self, builder: Builder, declared: set[str]) -> list[str]:
        """Return the values besides inputs and outputs whose types are written."""
        produced = {name for node in builder.nodes for name in node.output} - declared
        names = [name for node in self.graph.nodes for name in node.outputs]
        return [n for n in names if isinstance(self.graph.values[n].type, TensorType) and builder.values[n] in produced]

    def assembled(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        return helper.make_model(
            graph,
            functions=list(self.functions.values()),
            opset_imports=_opsets(self.domains),
            ir_version=IR_VERSION,
            producer_name=INGOT,
            producer_version=ingot.__version__,
        )

    def builder(
        self, graph: Graph, names: Names, outer: Builder | None = None, *, is_function: bool = False
    ) -> Builder:
        builder = Builder(graph, names, self.domains, outer, is_function=is_function)
        builder.call = lambda node: self.call(builder, node)
        builder.define = self.define
        builder.body = lambda inner, given: self.body(builder, inner, given)
        return builder

    def write(self, builder: Builder) -> None:
        """Write every weight, constant and node of a builder's graph."""
        for name, value in builder.graph.values.items():
            if value.kind not in ("weight", "constant") or not (value.users or builder.graph.is_output(name)):
                continue
            if value.data is None:
                raise LoadError(f"export: weight {name!r} has no data, got only its type {value.type}")
            builder.values[name] = builder.store(builder.names.fresh(name), value.data)
        for node in builder.graph.nodes:
            self.visit(builder, node)

    def visit(self, builder: Builder, node: Node) -> None:
        """Write one node; an error of its rule names it."""
        names = [builder.values.get(name) or builder.names.fresh(name) for name in node.outputs]
        builder.values.update(zip(node.outputs, names, strict=True))
        own = CUSTOM.get(node.op.name)
        rule = RULES.get(node.op.name) if own is None else _custom(own)
        if rule is None:
            self.missing[node.op.name] = GAPS[node.op.name] if own is None else "is registered without an ONNX name"
            return
        builder.hint, start = names[0], len(builder.nodes)
        operands = [None if o is None else builder.values[o] for o in node.operands]
        try:
            results = rule(builder, node, *operands)
        except UnsupportedError as error:
            raise UnsupportedError(f"export: node {node.outputs[0]!r} ({node.op.name}): {error}") from error
        for result, name in zip((results,) if isinstance(results, str) else results, names, strict=True):
            _rename(builder, builder.nodes[start:], result, name)
        for each in builder.nodes[start:]:
            _describe(each, node, self.kernels.get(node.outputs[0], "") if builder.graph is self.graph else "")

    def call(self, builder: Builder, node: Node) -> tuple[str, ...]:
        """Write a node as the call of a function whose body is the op's expansion."""
        inner = Graph(node.op.name)
        operands = []
        for i, operand in enumerate(node.operands):
            named = node.op.operand_names[min(i, len(node.op.operand_names) - 1)]
            kind = None if operand is None else builder.graph.values[operand].type
            operands.append(None if kind is None else inner.add_input(inner.fresh(named), kind))
        node_added = inner.add(node.op.name, operands, "y", **node.attributes)
        for name in expand_node(inner, node_added):
            inner.set_output(name, name)
        key = dump(inner, has_sources=False)
        if key not in self.functions:
            self.functions[key] = self.function(node.op.name, inner)
        given = [None if o is None else builder.values[o] for o in node.operands]
        given = [name for name in given if name is not None]
        return builder.add_all(self.functions[key].name, len(node.outputs), *given, domain=INGOT)

    def define(self, text: str) -> str:
        """Return the name of a function defined by its text, with the model's opsets."""
        if text not in self.functions:
            function = self.functions[text] = onnx.parser.parse_function(text)
            function.opset_import.extend(_opsets({""}))
        return self.functions[text].name

    def function(self, name: str, graph: Graph) -> onnx.FunctionProto:
        builder = self.builder(graph, Names(graph.inputs), is_function=True)
        builder.values.update({name: name for name in graph.inputs})
        self.write(builder)
        used = {function.name for function in self.functions.values()}
        return helper.make_function(
            INGOT,
            Names(tuple(used)).fresh(name),
            graph.inputs,
            [builder.values[value] for value in graph.outputs.values()],
            builder.nodes,
            _opsets(self.domains),
        )

    def body(self, outer: Builder, graph: Graph, given: Mapping[str, str]) -> onnx.GraphProto:
        """Return a subgraph. given: inputs that are values of the outer graph; the others are its own inputs."""
        builder = self.builder(graph, outer.names, outer)
        own = [name for name in graph.inputs if name not in given]
        builder.values.update(given)
        builder.values.update({name: builder.names.fresh(name) for name in own})
        self.write(builder)
        results = []
        for external, name in graph.outputs.items():
            result = builder.names.fresh(external)
            builder.nodes.append(helper.make_node("Identity", [builder.values[name]], [result], name=result))
            results.append(value_info(result, graph.values[name], named=False))
        inputs = [value_info(builder.values[name], graph.values[name], named=False) for name in own]
        return helper.make_graph(
            builder.nodes, builder.names.fresh(graph.name or "body"), inputs, results, builder.initializers
        )


def _opsets(domains: set[str]) -> list[onnx.OperatorSetIdProto]:
    """Return the opset versions of domains."""
    return [helper.make_opsetid(domain, VERSIONS.get(domain, 1)) for domain in sorted({"", *domains})]


def _describe(onnx_node: onnx.NodeProto, node: Node, kernel: str) -> None:
    """Add the metadata of a node; a node of a subgraph has its own already."""
    sources = [source for source in node.sources if source.name]
    facts = {
        "ingot.op": node.op.name,
        "ingot.source": ", ".join(f"{source.op} {source.name}" for source in sources),
        "ingot.module": ", ".join(dict.fromkeys(source.module for source in sources if source.module)),
        "ingot.kernel": kernel,
    }
    for key, value in facts.items():
        if value:
            onnx_node.metadata_props.add(key=key, value=value)


def _custom(own: Custom) -> Callable[..., tuple[str, ...]] | None:
    """Return the rule of a registered op with an ONNX name: a node of that name with its attributes."""
    if own.onnx is None:
        return None
    domain, op_type = own.onnx

    def rule(builder: Builder, node: Node, *operands: str | None) -> tuple[str, ...]:
        kinds = node.op.attribute_types
        given = {key: _attribute(key, kinds[key], value) for key, value in node.attributes.items()}
        return builder.add_all(op_type, len(node.outputs), *operands, domain=domain, **given)

    return rule


def _attribute(name: str, kind: Any, value: Any) -> onnx.AttributeProto:
    """Return an attribute of its annotated type: a float may be an integer here, and an empty list has no type."""
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        types = {float: onnx.AttributeProto.FLOATS, str: onnx.AttributeProto.STRINGS}
        return helper.make_attribute(name, [*map(element, value)], None, types.get(element, onnx.AttributeProto.INTS))
    return helper.make_attribute(name, int(value) if kind is bool else kind(value))


def _sweep(builder: Builder, wanted: set[str]) -> None:
    """Remove unused nodes and initializers, such as a product that was merged into a recurrent layer."""
    live = []
    for node in reversed(builder.nodes):
        if wanted.intersection(node.output):
            live.append(node)
            wanted.update(_read(node))
    builder.nodes = live[::-1]
    builder.initializers = [tensor for tensor in builder.initializers if tensor.name in wanted]


def _read(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node and its subgraphs read."""
    inner = (each for attribute in node.attribute for each in attribute.g.node)
    results = (result.name for attribute in node.attribute for result in attribute.g.output)
    return {*node.input, *results}.union(*map(_read, inner))


def _rename(builder: Builder, nodes: list[onnx.NodeProto], result: str, name: str) -> None:
    """Rename a rule's result to the expected name; a value that other nodes may read is copied instead."""
    if not builder.is_shared(result):
        for node in nodes:
            if result in node.output:
                for other in nodes:
                    for names in (other.input, other.output):
                        names[:] = [name if each == result else each for each in names]
                return
    builder.nodes.append(helper.make_node("Identity", [result], [name], name=name))

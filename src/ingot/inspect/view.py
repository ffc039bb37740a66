"""A common form of a model at any stage, as plain data: nodes or steps in order, and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.compile import Compiled, CompiledSegment
from ingot.errors import InputError
from ingot.ir.dtype import DType
from ingot.ir.graph import Graph, Source, TensorType, UnrankedType, Value
from ingot.ir.text import dump
from ingot.lower import Lowered, step_cost
from ingot.lower.lowered import Pointer, Step, Tensor
from ingot.plan.memory import Plan

_CLOSE = 3  # similar names that an error suggests


@dataclass(slots=True)
class Item:
    """A node of a graph, or a step of a program.

    name: the first value that it computes. op: for a step, the kernel, or the op that the reference computes.
    attributes: for a step, the numbers of its argument struct. facts: keys that only steps have. sources: the nodes of
    the loaded model that it was built from.
    """

    name: str
    op: str
    operands: list[str | None]
    results: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()

    def is_from(self, name: str) -> bool:
        """Return whether a source node of the loaded model has this name."""
        return any(source.name == name for source in self.sources)


@dataclass(slots=True)
class Edge:
    """A tensor, or another value. kind: as in the graph or program. nbytes: None if a dim has no value.

    facts: for a program, its region and offset. data: of a weight or constant, if it is loaded.
    """

    name: str
    type: str
    dtype: str
    shape: list[int | str | None] | None
    kind: str
    nbytes: int | None
    producer: str | None = None
    users: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    data: np.ndarray | None = field(default=None, repr=False)

    def document(self) -> dict[str, Any]:
        """Return the tensor as JSON, without data."""
        row = {"name": self.name, "type": self.type, "dtype": self.dtype, "shape": self.shape, "kind": self.kind}
        return row | {"bytes": self.nbytes, "producer": self.producer, "users": self.users} | self.facts


@dataclass(slots=True)
class View:
    """A model at a stage: items by name, in order, and tensors by name. source: the graph or program; facts: keys of a
    program.
    """

    name: str
    items: dict[str, Item]
    edges: dict[str, Edge]
    inputs: list[str]
    outputs: dict[str, str]
    states: dict[str, str]
    symbols: list[str]
    source: Graph | Compiled
    facts: dict[str, Any] = field(default_factory=dict)

    def item(self, name: str) -> Item:
        """Return the item that computes a value, or the last item from a source node of this name.

        Raises InputError, with similar names, for an unknown name.
        """
        edge = self.edges.get(name)
        if edge is not None and edge.producer is not None:
            return self.items[edge.producer]
        if name in self.items:
            return self.items[name]
        if from_it := self.items_from(name):
            return from_it[-1]
        kind = "" if edge is None else f", {'an' if edge.kind[0] in 'aiu' else 'a'} {edge.kind}"
        what = f"no such node, got {name!r}{kind}"
        known = dict.fromkeys([*self.items, *(s.name for item in self.items.values() for s in item.sources)])
        raise InputError(f"{what}, expected {close_names(name, known) or 'a name that `ingot list-nodes` prints'}")

    def items_from(self, name: str) -> list[Item]:
        """Return the items from a source node of this name."""
        return [item for item in self.items.values() if item.is_from(name)] if name else []

    def edge(self, name: str) -> Edge:
        """Return a tensor by name. Raises InputError, with similar names, for an unknown name."""
        if name not in self.edges:
            expected = close_names(name, self.edges) or "a name that `ingot list-nodes` prints"
            raise InputError(f"no such tensor, got {name!r}, expected {expected}")
        return self.edges[name]


def close_names(name: str, names: Iterable[str]) -> str:
    """Return names that contain a name or are similar to it, as text; "" if there are none."""
    from difflib import get_close_matches

    names = list(names)
    found = [each for each in names if name in each][:_CLOSE] or get_close_matches(name, names, _CLOSE)
    return " or ".join(map(repr, found))


def view_of_graph(graph: Graph) -> View:
    """Return the view of a graph, before or after the passes."""
    items = {
        node.outputs[0]: Item(
            node.outputs[0], node.op.name, list(node.operands), list(node.outputs),
            {key: plain(value) for key, value in node.attributes.items()}, sources=node.sources,
        )
        for node in graph.nodes
    }  # fmt: skip
    edges = {name: _edge(value) for name, value in graph.values.items()}
    return View(
        graph.name, items, edges, list(graph.inputs), dict(graph.outputs), dict(graph.states), graph.symbols, graph
    )


def _edge(value: Value) -> Edge:
    type = value.type
    shape = list(map(plain, type.shape)) if isinstance(type, TensorType) else None
    nbytes = type.nbytes if isinstance(type, TensorType) and type.is_static else None
    dtype = type.dtype.name if isinstance(type, TensorType | UnrankedType) else str(type)
    producer = None if value.producer is None else value.producer.outputs[0]
    users = [user.outputs[0] for user in value.users]
    return Edge(value.name, str(type), dtype, shape, value.kind, nbytes, producer, users, {}, value.data)


def plain(value: Any) -> Any:
    """Return an attribute or dim in JSON types: numbers stay numbers; dtypes and dims with symbols become text."""
    if value.__class__ is int:  # the most frequent case
        return value
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case tuple() | list():
            return [plain(each) for each in value]
        case np.generic():
            return value.item()
        case Graph():
            return dump(value, is_short=True)
        case DType():
            return value.name
    return str(value)


def view_of_program(compiled: Compiled, *, is_planned: bool) -> View:
    """Return the view of a program: steps, and nodes run by the reference. is_planned: in run order, with addresses."""
    graph = compiled.graph
    view = View(
        graph.name, {}, {}, list(graph.inputs), dict(graph.outputs), dict(graph.states), [], compiled,
        {"mode": compiled.mode.name, "reference": compiled.fallback},
    )  # fmt: skip
    for segment in compiled.segments:
        if segment.native is None:
            _add_reference(view, segment)
        else:
            _add_steps(view, segment.lowered, segment.plan if is_planned else None)
    for item in view.items.values():
        for name in item.results:
            view.edges[name].producer = item.name
        for operand in dict.fromkeys(item.operands):
            if operand is not None:
                view.edges[operand].users.append(item.name)
    return view


def _add_reference(view: View, segment: CompiledSegment) -> None:
    """Add the nodes of a segment without native kernels."""
    kernels = {choice.node: choice.candidates[-1][0] for choice in segment.external}
    part = view_of_graph(segment.graph)
    for name, edge in part.edges.items():
        if name not in view.edges:
            edge.producer, edge.users = None, []
            view.edges[name] = edge
    for name, item in part.items.items():
        item.facts["kernel"] = kernels.get(name, "reference")
        view.items[name] = item


def _add_steps(view: View, lowered: Lowered, plan: Plan | None) -> None:
    labels = _labels(view, lowered)
    for tensor in lowered.tensors.values():
        label = labels[tensor.id]
        if label not in view.edges:
            view.edges[label] = _placed(label, tensor, lowered, plan)
    steps = lowered.steps if plan is None else plan.steps
    for number, step in enumerate(steps):
        item = _step(step, lowered, labels)
        if plan is not None:
            item.facts |= {"step": number, "barrier": plan.barriers[number]}
        view.items[item.name if item.name not in view.items else _fresh(item, view)] = item


def _fresh(item: Item, view: View) -> str:
    """Give a further step of a node a unique name; return it."""
    number = 2
    while f"{item.name}#{number}" in view.items:
        number += 1
    item.name = f"{item.name}#{number}"
    return item.name


def _labels(view: View, lowered: Lowered) -> dict[str, str]:
    """Return a unique name for each tensor: of several with one name, those after the first get their id appended.

    A tensor that one segment passes to another is one tensor.
    """
    borders = {v.tensor for views in (lowered.inputs, lowered.outputs) for v in views.values()}
    labels: dict[str, str] = {}
    used: set[str] = set()
    for tensor in lowered.tensors.values():
        is_used = tensor.name in used or (tensor.name in view.edges and tensor.id not in borders)
        labels[tensor.id] = f"{tensor.name}#{tensor.id}" if is_used else tensor.name
        used.add(labels[tensor.id])
    return labels


def _placed(label: str, tensor: Tensor, lowered: Lowered, plan: Plan | None) -> Edge:
    shape: list[int | str | None] = [int(dim) for dim in tensor.shape]
    facts: dict[str, Any] = {"id": tensor.id}
    if tensor.packed_weight is not None:
        facts["packed_weight"] = tensor.packed_weight.key
        facts["packed_of"] = list(dict.fromkeys(source.name for source in tensor.packed_weight.sources()))
    if plan is not None and tensor.id in plan.addresses:
        address = plan.addresses[tensor.id]
        facts |= {"region": address.region, "offset": address.offset}
        if tensor.id in plan.live:
            facts["birth"], facts["death"] = plan.live[tensor.id]
    type = f"{tensor.dtype}[{', '.join(map(str, shape))}]"
    return Edge(label, type, tensor.dtype.name, shape, tensor.kind, int(tensor.nbytes), facts=facts)


def _step(step: Step, lowered: Lowered, labels: dict[str, str]) -> Item:
    cost = step_cost(lowered, step)
    numbers = {key: plain(value) for key, value in step.fields.items() if value is not None and not _points(value)}
    facts = {"parts": step.parts, "flops": cost.flops, "bytes": cost.weight_bytes + cost.other_bytes}
    reads, writes = ([labels[view.tensor] for view in views] for views in (step.reads, step.writes))
    sources = lowered.sources.get(step.node, ())
    return Item(step.node, step.kernel, list(reads), list(dict.fromkeys(writes)), numbers, facts, sources)


def _points(field: Any) -> bool:
    return isinstance(field, Pointer) or (isinstance(field, tuple) and any(isinstance(each, Pointer) for each in field))


def around(view: View, item: Item) -> tuple[list[str], list[str]]:
    """Return the names of the producers of an item's operands, and of the consumers of its results."""
    above = (view.edges[operand].producer for operand in item.operands if operand is not None)
    below = (user for result in item.results for user in view.edges[result].users)
    return list(dict.fromkeys(name for name in above if name is not None)), list(dict.fromkeys(below))


def programs_of(view: View) -> Iterator[CompiledSegment]:
    """Yield the native segments of a program."""
    if isinstance(view.source, Compiled):
        yield from (segment for segment in view.source.segments if segment.native is not None)

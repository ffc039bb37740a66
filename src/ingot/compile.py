"""Graph + modes + Target -> executable programs: the only module that chains all stages from bind to verify.

Sessions, language models, `memory`, saved programs, emitted C and benchmarks all use the programs compiled here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from ingot.errors import ShapeError, UnsizedError, UnsupportedError
from ingot.ir.dim import AtMost, grows, size_at, sizes_in
from ingot.ir.graph import Graph, Node, TensorType
from ingot.lower import Backend, Lowered, Lowering, Target, lower, segments
from ingot.lower.lowered import Choice
from ingot.ops.control import inner_graphs
from ingot.ops.custom import kernel_of, refusal_of
from ingot.passes import optimize
from ingot.passes.precision import F32, Precision, round_operands
from ingot.plan.memory import Placement, Plan, plan
from ingot.plan.verify import verify
from ingot.support.config import check
from ingot.support.spans import span


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run a graph.

    sizes: the values of its symbols; a `dim.AtMost` for a size of which a run may use only a prefix. outputs: the
    external names of the outputs to compute; None for all. every_row: inputs of row indices that are 0, 1, 2, ... in
    this mode, so that a gather by such an input is removed. state: "replace" allows an update to be copied over its
    state if it cannot be computed in place; "append" refuses that, because the state is too large to be copied in each
    run. precision: the precision of products.
    """

    name: str = "infer"
    sizes: Mapping[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    every_row: tuple[str, ...] = ()
    state: Literal["replace", "append"] = "replace"
    precision: Precision = F32

    def graph(self, whole: Graph, passes: tuple[str, ...] | None = None) -> Graph:
        """Return the static graph of this mode: a copy, bound, optimised and rounded. `whole` must have been optimised.

        Raises ShapeError when the sizes contradict an op.
        """
        graph = self._bound(whole, passes) if self.sizes or self.outputs or self.every_row else whole.copy()
        round_operands(graph, self.precision)
        return graph

    def _bound(self, whole: Graph, passes: tuple[str, ...] | None) -> Graph:
        graph = whole.bind(self.sizes)
        for name in list(graph.outputs):
            if self.outputs is not None and name not in self.outputs:
                graph.remove_output(name)
        for node in list(graph.nodes):
            if node.op.name == "gather" and node.operands[1] in self.every_row:
                graph.replace(node, str(node.operands[0]))
        optimize(graph, passes)
        return graph


@dataclass(frozen=True, slots=True)
class CompiledSegment:
    """A part of a static graph. native: its steps and their plan, or None if only the reference can compute it.

    inner: for an interpreted segment, the compiled subgraphs with known shapes of its nodes, by the first result of the
    node and the attribute. A compiled subgraph may have fewer inputs: weights of the graph are weights in it. device:
    the kind of device it is compiled for.
    """

    graph: Graph
    native: tuple[Lowered, Plan] | None
    inner: Mapping[tuple[str, str], Compiled] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def lowered(self) -> Lowered:
        """The steps of a native segment."""
        assert self.native is not None
        return self.native[0]

    @property
    def plan(self) -> Plan:
        """The plan of a native segment."""
        assert self.native is not None
        return self.native[1]

    @property
    def fallback(self) -> list[str]:
        """The titles of the nodes that the reference computes, with the reason if their op has a kernel of the user.

        For an `if` of two programs, these are the nodes of its branches. A branch that refuses computes nothing.
        """
        if self.native is not None:
            return []
        found = []
        for node in self.graph.nodes:
            branches = [self.inner.get((node.outputs[0], each.attribute)) for each in inner_graphs(node)]
            if node.op.name == "if" and None not in branches:
                found += [text for branch in branches if branch is not None for text in branch.fallback]
            elif node.op.name != "refuse" and kernel_of(self.graph, node, self.device) is None:
                refusal = refusal_of(self.graph, node, self.device)
                found.append(f"{node.title} ({refusal})" if refusal else node.title)
        return found

    @property
    def external(self) -> list[Choice]:
        """The nodes that kernels of the user compute."""
        if self.native is not None:
            return []
        found = ((node, kernel_of(self.graph, node, self.device)) for node in self.graph.nodes)
        choices = [Choice(n.outputs[0], n.op.name, ((str(kernel), ""),)) for n, kernel in found if kernel is not None]
        return choices + [choice for inner in self.inner.values() for choice in inner.external]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled mode, ready to run or emit: its static graph, and that graph's segments in order.

    least: the smallest possible size of each AtMost symbol, set by `compile_at_most`.
    """

    mode: Mode
    graph: Graph
    segments: tuple[CompiledSegment, ...]
    least: Mapping[str, int] = field(default_factory=dict)

    @property
    def fallback(self) -> list[str]:
        """The titles of the nodes that run on the reference."""
        return [text for segment in self.segments for text in segment.fallback]

    @property
    def external(self) -> list[Choice]:
        """The nodes that kernels of the user compute."""
        return [choice for segment in self.segments for choice in segment.external]

    @property
    def choosing(self) -> list[str]:
        """The titles of the nodes that select a native program at run time."""
        nodes = (node for segment in self.segments if segment.native is None for node in segment.graph.nodes)
        return [node.title for node in nodes if node.op.name in ("if", "refuse")]

    @property
    def native(self) -> tuple[Lowered, Plan]:
        """The steps and plan of the only segment. Raises UnsupportedError for an op without a kernel."""
        if len(self.segments) > 1 or self.segments[0].native is None:
            external = [f"{choice.op} {choice.node!r}" for choice in self.external]
            missing = ", ".join([*self.fallback, *external] or self.choosing)
            raise UnsupportedError(f"{self.mode.name}: no kernel, got {missing}, expected one for each node")
        return self.segments[0].native


def compile_mode(
    graph: Graph,
    target: Target,
    mode: Mode = Mode(),
    *,
    placement: Placement | None = None,
    passes: tuple[str, ...] | None = None,
) -> Compiled:
    """Compile one mode of a graph that has been through `passes.optimize`. Reads no weight.

    placement: the location of weights and states that modes share; those of this mode are added. passes: the names of
    the passes that a mode may repeat; None for all.

    Raises ShapeError when sizes contradict an op, LimitError for a tensor larger than the target allows, and
    UnsupportedError for a state that cannot be updated as the mode requires.
    """
    placement = Placement() if placement is None else placement
    with span("bind sizes"):
        static = mode.graph(graph, passes)
    with span("choose kernels"):
        chosen = segments(static, target)
    parts = []
    for segment in chosen:
        if not segment.native:
            inner = _compile_inner(segment.graph, target, Mode(mode.name, precision=mode.precision), placement, passes)
            parts.append(CompiledSegment(segment.graph, None, inner, target.device))
            continue
        begun = segment.lowering
        parts.append(compile_segment(segment.graph, target, mode.name, placement=placement, begun=begun))
    compiled = Compiled(mode, static, tuple(parts))
    if mode.state == "append":
        _expect_in_place(compiled)
    return compiled


def compile_at_most(
    graph: Graph,
    target: Target,
    mode: Mode,
    *,
    placement: Placement | None = None,
    passes: tuple[str, ...] | None = None,
) -> Compiled:
    """As `compile_mode`, for a mode with an AtMost: one native program for every size from `least` to the planned one.

    For each size, its results are bit-identical to those of the mode of exactly that size. The graph planned for the
    smallest sizes must be the same; otherwise a computation or a choice depends on the number. Raises UnsizedError with
    the reason if there is no such program, and the errors of `compile_mode`.
    """
    assert any(isinstance(size, AtMost) for size in mode.sizes.values())
    compiled = compile_mode(graph, target, mode, placement=placement, passes=passes)
    lowered, _ = compiled.native
    planned = {symbol: size for symbol, size in mode.sizes.items() if isinstance(size, AtMost)}
    least = _least(graph, mode, planned)
    small = {symbol: max(least[symbol], 2) for symbol in planned}
    others = {s: AtMost(small[s] + (small[s] == int(size)), s) for s, size in planned.items()}
    twin = segments(replace(mode, sizes={**mode.sizes, **others}).graph(graph, passes), target)
    if difference := _difference(compiled.segments[0].graph, twin[0].graph):
        raise UnsizedError(f"{mode.name}: {difference}")
    if lowered.avoided:
        raise UnsizedError(f"{mode.name}: not {lowered.avoided[0]}")
    attributes = [tuple(node.attributes.values()) for node in compiled.graph.nodes]
    for size in dict.fromkeys([*sizes_in(tuple(attributes)), *_sizes(lowered)]):
        if not grows(size.dim, least) or size_at(size, least) < 0:
            raise UnsizedError(f"{mode.name}: {size.dim} is not largest at the largest values of its symbols")
    return replace(compiled, least=least)


class Compiler:
    """Compiles the modes of one graph. Its passes run once, with symbolic sizes, and change the graph.

    placement: the location of weights and states, equal in all modes; each compiled mode adds to it.
    """

    def __init__(self, graph: Graph, target: Target):
        optimize(graph)
        self.graph = graph
        self.target = target
        self.placement = Placement()

    def compile(self, mode: Mode) -> Compiled:
        """Compile one mode. Raises as `compile_mode`."""
        return compile_mode(self.graph, self.target, mode, placement=self.placement)


def _compile_inner(
    graph: Graph, target: Target, mode: Mode, placement: Placement, passes: tuple[str, ...] | None
) -> dict[tuple[str, str], Compiled]:
    """Compile the subgraphs of a graph's nodes; a subgraph with a dim that a run measures is left to the reference."""
    compiled = {}
    for node in graph.nodes:
        for inner in inner_graphs(node):
            if not all(isinstance(v.type, TensorType) and v.type.is_static for v in inner.graph.values.values()):
                continue
            body = inner.graph.copy()
            for name, operand in inner.captured.items():
                if graph.values[operand].data is not None:
                    body.fix_input(name, graph.values[operand])
            optimize(body, passes)
            key = (node.outputs[0], inner.attribute)
            compiled[key] = compile_mode(body, target, mode, placement=placement, passes=passes)
    return compiled


def compile_segment(
    graph: Graph,
    target: Target,
    mode: str = "infer",
    *,
    placement: Placement | None = None,
    backend: Backend | None = None,
    begun: Lowering | None = None,
) -> CompiledSegment:
    """Lower, plan and verify a static graph in which every node has a kernel.

    mode: the name of the mode, printed in the head of the lowered text. backend: the kernels to choose from; None for
    the device's backend. begun: the graph's lowering as started by `segments`.

    Raises LimitError for a tensor larger than the target allows.
    """
    with span("lower"):
        lowered = lower(graph, target, mode, backend, begun)
    with span("plan memory"):
        planned = plan(lowered, placement, canaries=check() >= 3)
    with span("verify"):
        verify(lowered, planned)
    return CompiledSegment(graph, (lowered, planned))


def _expect_in_place(compiled: Compiled) -> None:
    """Raise UnsupportedError when a state is replaced by a copy."""
    lowered, planned = compiled.native
    for step in planned.steps:
        copied = [v.tensor for v in step.writes if lowered.tensors[v.tensor].kind == "update"]
        if copied and step.kernel.startswith("copy_"):
            name = lowered.tensors[copied[0]].name
            raise UnsupportedError(f"{compiled.mode.name}: state {name!r} is copied by {step.node!r}, not updated")


def _difference(planned: Graph, other: Graph) -> str:
    """Describe where graphs of one form that are planned for different sizes differ; "" if they are equal."""
    for a, b in zip_longest(planned.nodes, other.nodes):
        if a is None or b is None or _form(planned, a) != _form(other, b):
            return f"node {(a or b).outputs[0]!r} differs for another size"
    for name, value in planned.values.items():
        data, twin = value.data, other.values[name].data
        if data is twin or data is None or twin is None:
            continue
        if not np.array_equal(data, twin, equal_nan=data.dtype.kind == "f"):
            return f"constant {name!r} is computed from a size"
    return ""


def _form(graph: Graph, node: Node) -> tuple[Any, ...]:
    types = tuple(graph.values[name].type for name in node.outputs)
    return node.op, node.operands, node.outputs, node.attributes, types


def _least(graph: Graph, mode: Mode, planned: Mapping[str, int]) -> dict[str, int]:
    """Return the smallest possible size of each planned symbol: 1, unless windows do not fit.

    Raises UnsizedError if sizes that fit one by one do not fit together.
    """

    def misfit(**sizes: int) -> str:
        try:
            graph.bind({**mode.sizes, **sizes})
        except ShapeError as error:
            return str(error)
        return ""

    least = dict.fromkeys(planned, 1)
    if misfit(**least):
        for symbol, size in planned.items():
            others = {other: int(most) for other, most in planned.items() if other != symbol}
            fits = bisect_left(range(1, int(size)), True, key=lambda n: not misfit(**{symbol: n, **others}))
            least[symbol] = 1 + fits
    if reason := misfit(**least):
        raise UnsizedError(f"{mode.name}: not every size fits: {reason}")
    return least


def _sizes(lowered: Lowered) -> Iterator[AtMost]:
    """Yield the run-time sizes that a program's memory and steps are computed from."""
    for tensor in lowered.tensors.values():
        yield from sizes_in(tensor.shape)
    for step in lowered.steps:
        yield from sizes_in(tuple(step.fields.values()))
        for view in (*step.reads, *step.writes):
            yield from sizes_in((view.offset, view.shape, view.strides))


def sharing_weights(target: Target, compiled: Compiled) -> Target:
    """Return the target for further programs over the weights of a compiled one.

    A matrix that the compiled program reads without packing stays unpacked in further programs.
    """
    packed_weights = (
        tensor.packed_weight for tensor in compiled.native[0].tensors.values() if tensor.packed_weight is not None
    )
    unpacked = {
        packed_weight.value.name
        for packed_weight in packed_weights
        if packed_weight.layout == "raw" and packed_weight.value.is_weight
    }
    return replace(target, unpacked=target.unpacked | unpacked)

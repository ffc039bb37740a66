"""Graph + modes + Target -> what runs: the only place where bind, passes, segments, lower, plan and verify follow one
another. Sessions, language models, `memory`, saved programs, emitted C and benchmarks all take what is made here.
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
from ingot.ops.custom import kernel_of
from ingot.passes import optimize
from ingot.passes.precision import F32, Precision, round_operands
from ingot.plan.memory import Placement, Plan, plan
from ingot.plan.verify import verify
from ingot.support.config import check


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run a graph.

    sizes: what its symbols are bound to, `dim.AtMost` for what a run may use a beginning of. outputs: the external
    names that it keeps; None for all. every_row: inputs of row indices that are 0, 1, 2, ... in this mode, so that a
    gather by one of them takes every row in order and goes. state: "replace" lets an update take a state's place by a
    copy where it cannot be made in place; "append" refuses that, because the state is too large to be copied each run.
    precision: what the operands of products are rounded to.
    """

    name: str = "infer"
    sizes: Mapping[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    every_row: tuple[str, ...] = ()
    state: Literal["replace", "append"] = "replace"
    precision: Precision = F32

    def graph(self, whole: Graph, passes: tuple[str, ...] | None = None) -> Graph:
        """The static graph of this mode: a copy, bound, optimised and rounded. `whole` has been through the passes.

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
    """A part of a static graph. native: its steps and their places, or None where only the reference can compute it.

    inner: then, the subgraphs of its nodes whose shapes are known, each as a program of its own; by the first result of
    the node and the attribute. Their inputs may be fewer: weights are weights there. device: what it is compiled for.
    """

    graph: Graph
    native: tuple[Lowered, Plan] | None
    inner: Mapping[tuple[str, str], Compiled] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def lowered(self) -> Lowered:
        """The steps, of a native one."""
        assert self.native is not None
        return self.native[0]

    @property
    def plan(self) -> Plan:
        """Where they find what they read, of a native one."""
        assert self.native is not None
        return self.native[1]

    @property
    def fallback(self) -> list[str]:
        """The titles of the nodes that the reference computes. An `if` of two programs is what these fall back to,
        and a branch that refuses computes nothing.
        """
        if self.native is not None:
            return []
        found = []
        for node in self.graph.nodes:
            branches = [self.inner.get((node.outputs[0], each.attribute)) for each in inner_graphs(node)]
            if node.op.name == "if" and None not in branches:
                found += [text for branch in branches if branch is not None for text in branch.fallback]
            elif node.op.name != "refuse" and kernel_of(self.graph, node, self.device) is None:
                found.append(node.title)
        return found

    @property
    def external(self) -> list[Choice]:
        """The nodes that kernels of the user compute."""
        if self.native is not None:
            return []
        found = ((node, kernel_of(self.graph, node, self.device)) for node in self.graph.nodes)
        made = [Choice(n.outputs[0], n.op.name, ((str(kernel), ""),)) for n, kernel in found if kernel is not None]
        return made + [choice for inner in self.inner.values() for choice in inner.external]


@dataclass(frozen=True, slots=True)
class Compiled:
    """One mode, ready to be run or emitted: its static graph, and that graph's segments in order.

    least: of sizes that are an AtMost, the smallest that the graph can have, where `compile_at_most` has looked.
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
        """What runs by kernels of the user."""
        return [choice for segment in self.segments for choice in segment.external]

    @property
    def choosing(self) -> list[str]:
        """The titles of the nodes that choose between native programs at a run."""
        nodes = (node for segment in self.segments if segment.native is None for node in segment.graph.nodes)
        return [node.title for node in nodes if node.op.name in ("if", "refuse")]

    @property
    def native(self) -> tuple[Lowered, Plan]:
        """The steps and places of the only segment. Raises UnsupportedError where an op has no kernel."""
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
    """Compiles one mode of a graph that has been through `passes.optimize`. Reads no weight.

    placement: where weights and states lie that other modes have, too; what this mode adds is noted in it. passes: the
    names of those that a mode may repeat; None for all.

    Raises ShapeError when sizes contradict an op, LimitError for a tensor larger than the target allows, and
    UnsupportedError for a state that cannot be treated as the mode asks.
    """
    placement = Placement() if placement is None else placement
    static = mode.graph(graph, passes)
    parts = []
    for segment in segments(static, target):
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
    """As `compile_mode`, for a mode with an AtMost: one program, all native, for every size from `least` up to what is
    planned, that gives at each the bits of the mode of exactly that size.

    What is planned for the smallest sizes must be the same graph, else something was computed of the number, or chosen
    for it. Raises UnsizedError where there is no such program, and says why; and what `compile_mode` raises.
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
            raise UnsizedError(f"{mode.name}: {size.dim} is not largest where its symbols are")
    return replace(compiled, least=least)


class Compiler:
    """Compiles the modes of one graph. Its passes run once, with all its symbols, and change it.

    placement: where weights and states lie, alike in all modes; it grows with each that is compiled.
    """

    def __init__(self, graph: Graph, target: Target):
        optimize(graph)
        self.graph = graph
        self.target = target
        self.placement = Placement()

    def compile(self, mode: Mode) -> Compiled:
        """One of them. Raises as `compile_mode`."""
        return compile_mode(self.graph, self.target, mode, placement=self.placement)


def _compile_inner(
    graph: Graph, target: Target, mode: Mode, placement: Placement, passes: tuple[str, ...] | None
) -> dict[tuple[str, str], Compiled]:
    """Compiles the subgraphs of a graph's nodes; those with a dim that a run measures are left to the reference."""
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
    """Lowers, plans and verifies a static graph all of whose nodes have a kernel.

    mode: the name of the mode, printed in the head of the lowered text. backend: what to choose from; None for all
    that the device has. begun: the graph's lowering as `segments` left it.

    Raises LimitError for a tensor larger than the target allows.
    """
    lowered = lower(graph, target, mode, backend, begun)
    planned = plan(lowered, placement, canaries=check() >= 3)
    verify(lowered, planned)
    return CompiledSegment(graph, (lowered, planned))


def _expect_in_place(compiled: Compiled) -> None:
    """Raises UnsupportedError when a state is replaced by a copy."""
    lowered, planned = compiled.native
    for step in planned.steps:
        copied = [v.tensor for v in step.writes if lowered.tensors[v.tensor].kind == "update"]
        if copied and step.kernel.startswith("copy_"):
            name = lowered.tensors[copied[0]].name
            raise UnsupportedError(f"{compiled.mode.name}: state {name!r} is copied by {step.node!r}, not updated")


def _difference(planned: Graph, other: Graph) -> str:
    """Where graphs of one form differ that are planned for different sizes; "" where they do not."""
    for a, b in zip_longest(planned.nodes, other.nodes):
        if a is None or b is None or _form(planned, a) != _form(other, b):
            return f"node {(a or b).outputs[0]!r} is another one for another size"
    for name, value in planned.values.items():
        data, twin = value.data, other.values[name].data
        if data is twin or data is None or twin is None:
            continue
        if not np.array_equal(data, twin, equal_nan=data.dtype.kind == "f"):
            return f"constant {name!r} is computed of a size"
    return ""


def _form(graph: Graph, node: Node) -> tuple[Any, ...]:
    types = tuple(graph.values[name].type for name in node.outputs)
    return node.op, node.operands, node.outputs, node.attributes, types


def _least(graph: Graph, mode: Mode, planned: Mapping[str, int]) -> dict[str, int]:
    """The smallest size of each planned symbol that the graph can have: 1, but for windows that do not fit.

    Raises UnsizedError where sizes that fit one by one do not fit together.
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
    """The sizes of a run in a program: what its memory and its steps are computed of."""
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

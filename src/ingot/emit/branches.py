"""Flatten a model with run-time branches into one list of steps, each guarded by the conditions of its branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ingot.compile import Compiled, CompiledSegment, Mode, compile_mode
from ingot.ir.graph import Graph, Node, TensorType
from ingot.lower.lowered import Lowered, Tensor, moved, moved_field
from ingot.lower.target import Target
from ingot.lower.view import View, contiguous_strides
from ingot.ops.control import inner_graphs
from ingot.plan.memory import Address, Plan

Guard = tuple[tuple[str, bool], ...]  # the tensors that must be true, or false, for a step to run

_ALIGNMENT = 64


def is_joinable(compiled: Compiled) -> bool:
    """Return whether all segments are native, or an `if` of native branches, and none reads or writes a state."""
    return not compiled.graph.states and all(
        segment.native is not None
        or (
            not segment.graph.measured
            and len(segment.graph) > 0
            and all(node.op.name == "if" and None not in _branches(segment, node) for node in segment.graph.nodes)
            and all(map(is_joinable, segment.inner.values()))
        )
        for segment in compiled.segments
    )


def _branches(segment: CompiledSegment, node: Node) -> list[Compiled | None]:
    return [segment.inner.get((node.outputs[0], each.attribute)) for each in inner_graphs(node)]


def joined(compiled: Compiled) -> tuple[Lowered, Plan, tuple[Guard, ...]]:
    """Return the steps and plan of all segments of a program that `is_joinable`, and the guard of each step.

    Values that cross from one segment to another are stored after the arena.
    """
    joiner = _Joiner(next(_targets(compiled)))
    graph = compiled.graph
    inputs = {name: joiner.port(name, graph.type(name), "input") for name in graph.inputs}
    outputs = [joiner.port(name, graph.type(value), "output") for name, value in graph.outputs.items()]
    joiner.add(compiled, inputs, outputs, ())
    return joiner.done()


def _targets(compiled: Compiled) -> Iterator[Target]:
    for segment in compiled.segments:
        if segment.native is not None:
            yield segment.lowered.target
        for inner in segment.inner.values():
            yield from _targets(inner)


class _Joiner:
    def __init__(self, target: Target):
        self._lowered, self._plan, self._guards = Lowered(target), Plan(), list[Guard]()
        self._crossing: list[Tensor] = []

    def port(self, name: str, type: TensorType, kind: str) -> str:
        """Add an input or output of the whole program; return its id."""
        tensor = self._tensor(name, type, kind)
        view = View(tensor.id, tensor.dtype, 0, type.dims, contiguous_strides(type.dims))
        (self._lowered.inputs if kind == "input" else self._lowered.outputs)[name] = view
        self._plan.addresses[tensor.id] = Address(f"{kind}:{name}", 0)
        self._plan.regions[f"{kind}:{name}"] = tensor.nbytes
        return tensor.id

    def _tensor(self, name: str, type: TensorType, kind: str) -> Tensor:
        id, dtype = f"t{len(self._lowered.tensors)}", type.dtype.held
        tensor = Tensor(id, name, dtype, type.dims, kind, dtype.nbytes(type.size))
        self._lowered.tensors[id] = tensor
        return tensor

    def add(self, compiled: Compiled, inputs: Mapping[str, str], outputs: Sequence[str], guard: Guard) -> None:
        """Add a program. inputs: the tensors of its inputs by name; outputs: those of its outputs, in order."""
        graph = compiled.graph
        if len(compiled.segments) == 1 and compiled.segments[0].native is not None:
            self._steps(compiled.segments[0], inputs, dict(zip(graph.outputs, outputs, strict=True)), guard)
            return
        ids, again = dict(inputs), []
        for value, id in zip(graph.outputs.values(), outputs, strict=True):
            if value in ids:
                again.append((graph.type(value), ids[value], id))
            else:
                ids[value] = id
        for segment in compiled.segments:
            computed = segment.graph.outputs.values()
            for name in computed if segment.native else [name for n in segment.graph.nodes for name in n.outputs]:
                if name not in ids:
                    tensor = self._tensor(name, segment.graph.type(name), "activation")
                    self._crossing.append(tensor)
                    ids[name] = tensor.id
            if segment.native is not None:
                self._steps(segment, ids, ids, guard)
                continue
            for node in segment.graph.nodes:
                self._choose(segment, node, ids, guard)
        for type, source, id in again:
            self._copy(type, source, id, guard)

    def _copy(self, type: TensorType, source: str, target: str, guard: Guard) -> None:
        """Copy an input that is an output, or an output that is returned twice."""
        graph = Graph("copy")
        graph.set_output("y", graph.add_input("x", type))
        (segment,) = compile_mode(graph, self._lowered.target, Mode()).segments
        self._steps(segment, {"x": source}, {"y": target}, guard)

    def _choose(self, segment: CompiledSegment, node: Node, ids: Mapping[str, str], guard: Guard) -> None:
        condition = ids[str(node.operands[0])]
        for branch in inner_graphs(node):
            inner = segment.inner[node.outputs[0], branch.attribute]
            captured = {name: ids[branch.captured[name]] for name in inner.graph.inputs}
            is_then = branch.attribute == "then_branch"
            self.add(inner, captured, [ids[name] for name in node.outputs], (*guard, (condition, is_then)))

    def _steps(
        self, segment: CompiledSegment, inputs: Mapping[str, str], outputs: Mapping[str, str], guard: Guard
    ) -> None:
        lowered, planned = segment.lowered, segment.plan
        aside = {view.tensor: inputs[name] for name, view in lowered.inputs.items()}
        aside |= {view.tensor: outputs[name] for name, view in lowered.outputs.items()}
        for id, tensor in lowered.tensors.items():
            if id not in aside:
                aside[id] = f"t{len(self._lowered.tensors)}"
                self._lowered.tensors[aside[id]] = replace(tensor, id=aside[id])
                if id in planned.addresses:
                    self._plan.addresses[aside[id]] = planned.addresses[id]
        for name, size in planned.regions.items():
            if not name.startswith(("input:", "output:")):
                self._plan.regions[name] = max(self._plan.regions.get(name, 0), size)
        for index, step in enumerate(planned.steps):
            self._plan.steps.append(
                replace(
                    step,
                    fields={name: moved_field(field, aside) for name, field in step.fields.items()},
                    reads=tuple(moved(view, aside) for view in step.reads),
                    writes=tuple(moved(view, aside) for view in step.writes),
                    scratch=None if step.scratch is None else aside[step.scratch],
                )
            )
            self._plan.barriers.append(index == 0 or planned.barriers[index])
            self._guards.append(guard)

    def done(self) -> tuple[Lowered, Plan, tuple[Guard, ...]]:
        """Return the joined program; values that cross segments have addresses."""
        end = self._plan.regions.get("arena0", 0)
        for tensor in self._crossing:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            self._plan.addresses[tensor.id] = Address("arena0", begin)
            end = begin + tensor.nbytes
        if end:
            self._plan.regions["arena0"] = end
        self._lowered.steps = self._plan.steps
        return self._lowered, self._plan, tuple(self._guards)

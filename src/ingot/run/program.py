"""A Program: segments joined by values. A static model is one native segment, and then a run is one C call."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingot.config import check, debug
from ingot.ir import Graph
from ingot.lower import Lowered, Target, lower, segments
from ingot.lower.weights import WeightStore
from ingot.plan import Plan, plan
from ingot.run.arena import Arena
from ingot.run.interpret import interpret
from ingot.run.native import NativeProgram
from ingot.verify import verify


@dataclass(slots=True)
class InterpretedSegment:
    """Nodes that only the reference can compute."""

    graph: Graph

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Runs the nodes; inputs and results in graph order."""
        results = interpret(self.graph, dict(zip(self.graph.inputs, inputs, strict=True)))
        return [np.asarray(results[name], order="C") for name in self.graph.outputs]


class Program:
    """Segments in order, for one binding of the symbols. `graph` is the whole, static.

    `single` is the one native segment of a model that needs nothing else.
    """

    def __init__(self, graph: Graph, segments: list[NativeProgram | InterpretedSegment]):
        self.graph = graph
        self.segments = segments
        first = segments[0]
        self.single = first if isinstance(first, NativeProgram) and len(segments) == 1 else None

    @property
    def native(self) -> list[NativeProgram]:
        return [s for s in self.segments if isinstance(s, NativeProgram)]

    @property
    def fallback(self) -> list[str]:
        """What runs on the reference: `op 'value'` for each node."""
        parts = [s.graph for s in self.segments if isinstance(s, InterpretedSegment)]
        return [f"{node.op.name} {node.outputs[0]!r}" for graph in parts for node in graph.nodes]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Runs every segment. inputs: row-major arrays in graph order; returns fresh arrays in output order."""
        if self.single is not None:
            return self.single.run(inputs)
        values = dict(zip(self.graph.inputs, inputs, strict=True))
        for segment in self.segments:
            results = segment.run([values[name] for name in segment.graph.inputs])
            values.update(zip(segment.graph.outputs, results, strict=True))
        return [np.copy(values[value]) for value in self.graph.outputs.values()]


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A part of a static graph: lowered and planned, or left to the reference."""

    graph: Graph
    native: tuple[Lowered, Plan] | None


def plan_segments(graph: Graph, target: Target, mode: str = "infer") -> list[PlannedSegment]:
    """Lowers, plans and verifies a static graph, which it may change. Reads no weight."""
    planned = []
    for segment in segments(graph, target):
        if not segment.native:
            planned.append(PlannedSegment(segment.graph, None))
            continue
        lowered = lower(segment.graph, target, mode)
        result = plan(lowered, canaries=check() >= 3)
        verify(lowered, result)
        planned.append(PlannedSegment(segment.graph, (lowered, result)))
    return planned


def compile_program(
    graph: Graph,
    target: Target,
    weights: WeightStore,
    arena: Arena,
    state: Arena | None = None,
    mode: str = "infer",
) -> Program:
    """Plans a static graph (which it may change), and makes it ready to run.

    state: where the graph's states lie; in the arena unless it is given.
    """
    whole = graph.copy()
    parts: list[NativeProgram | InterpretedSegment] = []
    for segment in plan_segments(graph, target, mode):
        if segment.native is None:
            parts.append(InterpretedSegment(segment.graph))
        else:
            parts.append(NativeProgram(segment.graph, *segment.native, weights, arena, state))
    program = Program(whole, parts)
    if debug() >= 1 and program.fallback:
        print(f"on the reference: {', '.join(program.fallback)}", file=sys.stderr)
    return program


def print_checksums(program: Program, outputs: Sequence[np.ndarray]) -> None:
    """One line per tensor of the last run; meaningful when the plan shares no memory."""
    tensors = [
        (part.lowered.tensors[id].name, part.tensor(id))
        for part in program.native
        for id in part.plan.live
        if part.lowered.tensors[id].kind == "activation"
    ]
    for name, data in [*tensors, *zip(program.graph.outputs, outputs, strict=True)]:
        print(f"{name}: {data.dtype}{list(data.shape)} sum {np.sum(data, dtype=np.float64)!r}", file=sys.stderr)

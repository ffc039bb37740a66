"""A Program: segments joined by values. A static model is one native segment, and then a run is one C call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ingot.compile import Compiled, CompiledSegment
from ingot.ir.graph import Graph
from ingot.ops.control import inner_graphs
from ingot.ops.custom import kernel_of
from ingot.run.arena import Arena
from ingot.run.external import bound
from ingot.run.interpret import bind_symbols, first_states, fresh, interpret
from ingot.run.native import NativeProgram
from ingot.run.store import WeightStore
from ingot.support.config import debug

if TYPE_CHECKING:
    from ingot.run.webgpu import WebgpuProgram


@dataclass(slots=True)
class InterpretedSegment:
    """Nodes without a kernel of Ingot: the reference or a kernel of the user computes them.

    inner: their compiled subgraphs. device: where kernels of the user run.
    """

    graph: Graph
    inner: Mapping[tuple[str, str], InnerProgram]
    device: str = "cpu"
    kernels: Mapping[str, Callable[..., Any]] = field(init=False)
    reference_share: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        found = ((node, kernel_of(self.graph, node, self.device)) for node in self.graph.nodes)
        self.kernels = {node.outputs[0]: bound(node.op, kernel) for node, kernel in found if kernel is not None}

    @property
    def programs(self) -> list[Program]:
        """The programs of subgraphs."""
        return [inner.program for inner in self.inner.values()]

    def run(self, inputs: Sequence[Any], symbols: dict[str, int]) -> list[Any]:
        """Run the nodes; inputs and results in graph order.

        symbols: the dims measured so far; dims measured here are added.
        """
        feeds = dict(zip(self.graph.inputs, inputs, strict=True))
        results = interpret(self.graph, feeds, symbols=symbols, inner=self.inner, kernels=self.kernels)
        return [results[name] for name in self.graph.outputs]


class BranchSegment:
    """An `if` whose branches are both programs: a run is a run of one of them."""

    def __init__(self, graph: Graph, inner: Mapping[tuple[str, str], InnerProgram]):
        """graph: of one node, an `if`. inner: as in InterpretedSegment."""
        (node,) = graph.nodes
        self.graph = graph
        self.reference_share = 0.0
        self._condition = graph.inputs.index(str(node.operands[0]))
        self._branches: list[tuple[Program, list[int]]] = []  # the branch for false first, with indices of its inputs
        for branch in reversed(inner_graphs(node)):
            program = inner[node.outputs[0], branch.attribute].program
            indices = [graph.inputs.index(branch.captured[name]) for name in program.graph.inputs]
            self._branches.append((program, indices))

    @property
    def programs(self) -> list[Program]:
        """The programs of the branches."""
        return [program for program, _ in self._branches]

    @staticmethod
    def fits(graph: Graph, inner: Mapping[tuple[str, str], InnerProgram]) -> bool:
        """Return whether a segment is such an `if`, and no run has to measure its results."""
        nodes = list(graph.nodes)
        return len(nodes) == 1 and nodes[0].op.name == "if" and len(inner) == 2 and not graph.measured

    def run(self, inputs: Sequence[Any], symbols: dict[str, int]) -> list[Any]:
        """As `InterpretedSegment.run`."""
        program, indices = self._branches[bool(inputs[self._condition].item())]
        results = program.run([inputs[i] for i in indices])
        self.reference_share = program.reference_share
        return results


class InnerProgram:
    """A compiled subgraph as a function of the arrays of its inputs, for its op's reference; see `interpret`."""

    def __init__(self, graph: Graph, program: Program):
        """graph: the subgraph. program: compiled from the subgraph, possibly with fewer inputs."""
        self.program = program
        self.inputs, self.outputs = len(graph.inputs), len(graph.outputs)
        self.types = [graph.type(name) for name in graph.outputs.values()]
        self._graph = graph
        self._expected = [(graph.type(name).dims, graph.type(name).dtype.numpy) for name in graph.inputs]
        self._input_indices = [graph.inputs.index(name) for name in program.graph.inputs]

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Raises InputError for arrays that do not fit its inputs."""
        if [(array.shape, array.dtype) for array in arrays] != self._expected:
            bind_symbols(self._graph, dict(zip(self._graph.inputs, arrays, strict=True)))
        return tuple(self.program.run([np.require(arrays[i], requirements=("C", "A")) for i in self._input_indices]))


class Program:
    """A compiled and bound mode. `graph` is the complete static graph; `segments` run in order.

    sizes: the values of its symbols; least: as in `Compiled`. only: the only segment, unless it is interpreted or a
    branch; single: the only segment, if it is native on the CPU. carried: the states of a graph that had to be split,
    otherwise None.
    """

    def __init__(self, compiled: Compiled, weights: WeightStore, arena: Arena, state: Arena | None = None):
        """arena: the memory of runs, which programs may share. state: the arena of states; by default `arena`."""
        self.graph, self.fallback, self.external = compiled.graph, compiled.fallback, compiled.external
        self.sizes, self.least = compiled.mode.sizes, compiled.least
        self.segments: list[NativeProgram | WebgpuProgram | BranchSegment | InterpretedSegment] = []
        for segment in compiled.segments:
            if segment.native is None:
                attributes = {n.outputs[0]: n.attributes for n in segment.graph.nodes}
                inner = {
                    (name, key): InnerProgram(attributes[name][key], Program(each, weights, arena))
                    for (name, key), each in segment.inner.items()
                }
                if BranchSegment.fits(segment.graph, inner):
                    self.segments.append(BranchSegment(segment.graph, inner))
                else:
                    self.segments.append(InterpretedSegment(segment.graph, inner, segment.device))
            else:
                self.segments.append(_bind_segment(segment, weights, arena, state))
        first = self.segments[0]
        is_one = len(self.segments) == 1
        self.only = first if not isinstance(first, BranchSegment | InterpretedSegment) and is_one else None
        self.single = first if isinstance(first, NativeProgram) and is_one else None
        self.carried = None if self.only is not None or not self.graph.states else (state or arena).carried
        self.reference_share = 0.0  # of the last run's time
        if debug() >= 1 and self.fallback:
            print(f"on the reference: {', '.join(self.fallback)}", file=sys.stderr)

    @property
    def native(self) -> list[NativeProgram | WebgpuProgram]:
        """The native segments, including those of subgraphs."""
        found: list[NativeProgram | WebgpuProgram] = []
        for segment in self.segments:
            if not isinstance(segment, BranchSegment | InterpretedSegment):
                found.append(segment)
            else:
                found += [native for program in segment.programs for native in program.native]
        return found

    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int] = {}) -> list[Any]:
        """Run every segment. inputs: row-major arrays in graph order; returns fresh arrays in output order.

        sizes: the values of AtMost symbols in this run, for a program of one segment.
        """
        if self.only is not None:
            return self.only.run(inputs, sizes)
        values = dict(zip(self.graph.inputs, inputs, strict=True))
        if self.carried is None:
            return self._run_segments(values)
        with self.carried.lock.once():
            values |= first_states(self.graph, {}, self.carried.arrays)
            outputs = self._run_segments(values)
            left = {name: fresh(values[update]) for name, update in self.graph.states.items()}
            self.carried.arrays = {**self.carried.arrays, **left}
        return outputs

    def _run_segments(self, values: dict[str, Any]) -> list[Any]:
        """Run the segments in order. values: the inputs and states by name; values between segments are added."""
        symbols: dict[str, int] = {}
        began, on_reference = perf_counter_ns(), 0.0
        for segment in self.segments:
            operands = [values[name] for name in segment.graph.inputs]
            if not isinstance(segment, BranchSegment | InterpretedSegment):
                results = segment.run(operands)
            else:
                entered = perf_counter_ns()
                results = segment.run(operands, symbols)
                on_reference += segment.reference_share * (perf_counter_ns() - entered)
            values.update(zip(segment.graph.outputs, results, strict=True))
        self.reference_share = on_reference / max(perf_counter_ns() - began, 1)
        return [fresh(values[value]) for value in self.graph.outputs.values()]


def _bind_segment(
    segment: CompiledSegment, weights: WeightStore, arena: Arena, state: Arena | None
) -> NativeProgram | WebgpuProgram:
    """Bind a native segment on the device of its target."""
    if segment.lowered.target.device == "webgpu":
        from ingot.run.webgpu import WebgpuProgram

        return WebgpuProgram(segment.graph, segment.lowered, segment.plan, weights, state or arena)
    return NativeProgram(segment.graph, segment.lowered, segment.plan, weights, arena, state)


def print_checksums(program: Program, outputs: Sequence[np.ndarray]) -> None:
    """Print one line per tensor of the last run; meaningful when the plan shares no memory."""
    tensors = [
        (part.lowered.tensors[id].name, part.tensor(id))
        for part in program.segments
        if isinstance(part, NativeProgram)
        for id in part.plan.live
        if part.lowered.tensors[id].kind == "activation"
    ]
    for name, data in [*tensors, *zip(program.graph.outputs, outputs, strict=True)]:
        print(f"{name}: {_checksum(data)}", file=sys.stderr)


def _checksum(data: Any) -> str:
    """Return a checksum of numbers; for strings and values that are not arrays, a description."""
    if not isinstance(data, np.ndarray):
        return f"a list of {len(data)}" if isinstance(data, list) else type(data).__name__
    total = "" if data.dtype == object else f" sum {np.sum(data, dtype=np.float64)!r}"
    return f"{data.dtype}{list(data.shape)}{total}"

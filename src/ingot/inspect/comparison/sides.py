"""The two sides of a comparison: each runs a model on the same inputs, and shows its values by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np

from ingot.compile import Compiled, CompiledSegment
from ingot.errors import InputError
from ingot.ir.graph import Graph, Source, TensorType, Type
from ingot.lower.view import View
from ingot.plan.gpu_dispatch import device_array
from ingot.run.arena import Arena
from ingot.run.interpret import first_states, fresh, interpret
from ingot.run.native import NativeProgram
from ingot.run.program import InterpretedSegment, Program
from ingot.run.store import WeightStore
from ingot.run.webgpu import WebgpuProgram

_SHOWN = 4  # names in an error

Arrays = Mapping[str, Any]
Watch = Callable[[Arrays], Arrays]


@dataclass(frozen=True, slots=True)
class Maker:
    """The origin of a value on a side: an op, the kernel that runs it, and the nodes of the model's file."""

    op: str
    kernel: str
    sources: tuple[Source, ...] = ()


class Side(Protocol):
    """One way to run a model. The inputs are fixed; every run starts with the same states.

    title: for reports. graph: whose values it shows. makers: of the values that it shows, in the order of a run.
    can_replace: whether a watched run continues with the values that its watch returns. is_foreign: whether another
    project computes the values. rounding: the precision to which it rounds products, "" for none.
    """

    title: str
    graph: Graph
    makers: dict[str, Maker]
    can_replace: bool
    is_foreign: bool
    rounding: str

    def run(self) -> dict[str, Any]:
        """Run once without a watch. Return the outputs by external name, and each state's update as `state:<name>`."""

    def run_watched(self, watch: Watch) -> dict[str, Any]:
        """As `run`; watch(arrays) gets the values that are complete, by name, and returns those to replace.

        Arrays are valid during the call only.
        """


class Reference:
    """The interpreter. float64: computes f32 values in f64."""

    can_replace, is_foreign, rounding = True, False, ""

    def __init__(self, graph: Graph, feeds: Arrays, *, float64: bool = False):
        self.graph, self._feeds, self._float64 = graph, feeds, float64
        self.title = "float64" if float64 else "interpret"
        within = _names_within(graph)
        self.makers = {
            name: Maker(node.op.name, self.title, node.sources)
            for node in graph.nodes
            for name in node.outputs
            if name not in within
        }

    def run(self) -> dict[str, Any]:
        """As `Side.run`."""
        return interpret(self.graph, self._feeds, float64=self._float64)

    def run_watched(self, watch: Watch) -> dict[str, Any]:
        """As `Side.run_watched`."""

        def each(name: str, array: Any) -> Any:
            return watch({name: array}).get(name) if name in self.makers else None

        return interpret(self.graph, self._feeds, float64=self._float64, watch=each)


class Recorded:
    """Values that were recorded: every run gives them again, and computes nothing."""

    can_replace, is_foreign, rounding = False, True, ""
    title: str = "recorded"

    def __init__(self, graph: Graph, feeds: Arrays, arrays: Arrays):
        """arrays: by the names of values; an output may have its external name. Raises InputError if none is known."""
        named = {value: arrays[external] for external, value in graph.outputs.items() if external in arrays}
        named |= {name: array for name, array in arrays.items() if name in graph.values}
        self.graph = graph
        self.makers = {
            name: Maker(node.op.name, self.title, node.sources)
            for node in graph.nodes
            for name in node.outputs
            if name in named
        }
        if not self.makers:
            expected = ", ".join([*graph.outputs][:_SHOWN])
            raise InputError(f"compare: no recorded value is one of the model, got {[*arrays][:_SHOWN]}, "
                             f"expected names such as {expected}")  # fmt: skip
        self._arrays = {name: as_declared(named[name], graph.values[name].type) for name in self.makers}

    def run(self) -> dict[str, Any]:
        """As `Side.run`."""
        return {external: self._arrays[name] for external, name in self.graph.outputs.items() if name in self._arrays}

    def run_watched(self, watch: Watch) -> dict[str, Any]:
        """As `Side.run_watched`."""
        for name, array in self._arrays.items():
            watch({name: array})
        return self.run()


def as_declared(array: np.ndarray, declared: Type) -> np.ndarray:
    """Return an array of a numpy file with the declared dtype, if numpy lacks that: files have bytes or text for it."""
    if not isinstance(declared, TensorType) or not isinstance(array, np.ndarray):
        return array
    if array.dtype.kind == "V" and array.dtype.itemsize == declared.dtype.numpy.itemsize:
        return array.view(declared.dtype.numpy)
    return array.astype(object) if array.dtype.kind == "U" else array


class Planned:
    """A compiled program on the CPU or on a WebGPU device, run step by step where it is watched."""

    can_replace, is_foreign = True, False

    def __init__(self, compiled: Compiled, feeds: Arrays, threads: int = 0, weights: WeightStore | None = None):
        """feeds: of the inputs, and of states that do not start with their initial values."""
        self._program = Program(compiled, weights or WeightStore(threads or 1), Arena())
        self.graph = compiled.graph
        self.rounding = rounding_of(compiled)
        self._inputs = [np.require(feeds[name], requirements=("C", "A")) for name in self.graph.inputs]
        self._states = first_states(self.graph, {}, feeds)
        targets = [segment.lowered.target for segment in compiled.segments if segment.native is not None]
        device = targets[0].device if targets else "cpu"
        self.title = f"webgpu, {compiled.mode.precision.name}" if device == "webgpu" else self._native_title(compiled)
        self._completed = [completed_values(segment) for segment in compiled.segments]
        self.makers: dict[str, Maker] = {}
        for segment, completed in zip(compiled.segments, self._completed, strict=True):
            for name, maker in makers_of(segment, completed):
                if name in self.graph.values:  # not added by lowering
                    self.makers.setdefault(name, maker)

    @staticmethod
    def _native_title(compiled: Compiled) -> str:
        isas = [segment.lowered.target.isa for segment in compiled.segments if segment.native is not None]
        return ", ".join(["native", compiled.mode.precision.name, *isas[:1]])

    def run(self) -> dict[str, Any]:
        """As `Side.run`."""
        self._begin()
        outputs = self._program.run(self._inputs)
        return dict(zip(self.graph.outputs, outputs, strict=True)) | self._updates()

    def run_watched(self, watch: Watch) -> dict[str, Any]:
        """As `Side.run_watched`."""
        self._begin()
        program, symbols = self._program, dict[str, int]()
        values = {**dict(zip(self.graph.inputs, self._inputs, strict=True)), **self._states}
        for segment, completed in zip(program.segments, self._completed, strict=True):
            inputs = [values[name] for name in segment.graph.inputs]
            if isinstance(segment, (NativeProgram, WebgpuProgram)):
                results = self._run_steps(segment, inputs, completed, watch)
            elif isinstance(segment, InterpretedSegment):
                results = self._run_nodes(segment, inputs, symbols, watch)
            else:
                results = segment.run(inputs, symbols)
                found = dict(zip(segment.graph.outputs, results, strict=True))
                results = list({**found, **watch(found)}.values())
            values.update(zip(segment.graph.outputs, results, strict=True))
        is_only = program.only is not None  # its results have the external names
        returned = {name: values[name if is_only else value] for name, value in self.graph.outputs.items()}
        outputs = {name: fresh(value) for name, value in returned.items()}
        if program.carried is not None:
            return outputs | {f"state:{name}": values[update] for name, update in self.graph.states.items()}
        return outputs | self._updates()

    def _run_steps(
        self,
        segment: NativeProgram | WebgpuProgram,
        inputs: list[np.ndarray],
        completed: Mapping[int, list[str]],
        watch: Watch,
    ) -> list[Any]:
        views = segment.lowered.views

        def after(step: int, memory: Callable[[View], np.ndarray]) -> None:
            arrays = {name: memory(views[name]) for name in completed.get(step, ())}
            if not arrays:
                return
            for name, replacement in watch(arrays).items():
                if arrays[name].flags.writeable:
                    arrays[name][...] = replacement

        return segment.run_watched(inputs, after)

    def _run_nodes(
        self, segment: InterpretedSegment, inputs: list[Any], symbols: dict[str, int], watch: Watch
    ) -> list[Any]:
        def each(name: str, array: Any) -> Any:
            return watch({name: array}).get(name) if name in self.makers else None

        feeds = dict(zip(segment.graph.inputs, inputs, strict=True))
        results = interpret(
            segment.graph, feeds, symbols=symbols, inner=segment.inner, kernels=segment.kernels, watch=each
        )
        return [results[name] for name in segment.graph.outputs]

    def _begin(self) -> None:
        """Set the states that every run starts with."""
        if self._program.carried is not None:
            self._program.carried.arrays = dict(self._states)
            return
        for name, memory in self._state_memory().items():
            memory[...] = self._states[name]
        only = self._program.only
        if isinstance(only, WebgpuProgram):
            dtypes = {t.name: t.dtype for t in only.lowered.tensors.values() if t.kind == "state"}
            for name, array in self._states.items():
                values = np.atleast_1d(device_array(array, dtypes[name], f"state {name!r}", InputError))
                only.write_state(name, np.arange(len(values)), values)

    def _updates(self) -> dict[str, Any]:
        if self._program.carried is not None:
            arrays = self._program.carried.arrays
        elif isinstance(self._program.only, WebgpuProgram) and self._states:
            arrays = self._program.only.read_states()
        else:
            arrays = self._state_memory()
        return {f"state:{name}": np.array(arrays[name]) for name in self._states}

    def _state_memory(self) -> dict[str, np.ndarray]:
        """Return the states of the CPU's arena by name."""
        single = self._program.single
        if single is None:
            return {}
        return {t.name: single.tensor(t.id) for t in single.lowered.tensors.values() if t.kind == "state"}


def rounding_of(compiled: Compiled) -> str:
    """Return the precision of a program that rounds products, else ""."""
    precision = compiled.mode.precision
    return "" if precision.weights is None else precision.name


def makers_of(segment: CompiledSegment, completed: Mapping[int, list[str]]) -> list[tuple[str, Maker]]:
    """Return the makers of a segment's values, in the order of a run."""
    if segment.native is None:
        within = _names_within(segment.graph)
        return [
            (name, Maker(node.op.name, "reference", node.sources))
            for node in segment.graph.nodes
            for name in node.outputs
            if name not in within
        ]
    steps, found = segment.plan.steps, []
    for index, names in completed.items():
        for name in names:
            node = segment.graph.producer(name)
            assert node is not None
            sources = segment.lowered.sources.get(steps[index].node, node.sources)
            found.append((name, Maker(node.op.name, steps[index].kernel, sources)))
    return found


def completed_values(segment: CompiledSegment) -> dict[int, list[str]]:
    """Return the values of a native segment's graph that are complete after a step, by the step's index, in order.

    A value is complete after the last step that writes some of its elements. Values inside of fused programs are never
    in memory, and values that are computed before the run are complete before the first step: neither is listed.
    """
    if segment.native is None:
        return {}
    lowered, steps = segment.lowered, segment.plan.steps
    writes: dict[str, list[tuple[int, View]]] = {}
    for index, step in enumerate(steps):
        for write in step.writes:
            writes.setdefault(write.tensor, []).append((index, write))
    found: dict[int, list[str]] = {}
    for name in chain.from_iterable(node.outputs for node in segment.graph.nodes):
        view = lowered.views.get(name)
        if view is None or view.dtype.bits % 8 or not _is_stored(lowered.tensors[view.tensor].kind):
            continue
        indices = [index for index, write in writes.get(view.tensor, ()) if _overlap(view, write)]
        if indices:
            found.setdefault(max(indices), []).append(name)
    return dict(sorted(found.items()))


def _is_stored(kind: str) -> bool:
    return kind in ("activation", "output", "update", "state")


def _overlap(a: View, b: View) -> bool:
    """Return whether two views of a tensor have elements in common."""
    (first, past), (other_first, other_past) = a.extent, b.extent
    if first >= other_past or other_first >= past:
        return False
    if a.is_contiguous or b.is_contiguous or a.dtype is not b.dtype:
        return True
    low, high = min(first, other_first), max(past, other_past)
    memory = np.empty(high - low, np.uint8)  # addresses alone count
    first_array, second_array = (
        np.ndarray(v.shape, np.uint8, memory.data, int(v.offset) - low, v.strides) for v in (a, b)
    )
    return np.shares_memory(first_array, second_array)


def _names_within(graph: Graph) -> set[str]:
    """Return the names of values of subgraphs, at any depth."""
    found: set[str] = set()
    for body in graph.bodies:
        found |= body.values.keys() | _names_within(body)
    return found

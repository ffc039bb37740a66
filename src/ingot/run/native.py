"""Run a Plan: one C call over prepared argument structs. No decisions are left at this stage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.errors import InputError, LoadError, ResourceError, StoppedError
from ingot.ir.dim import bind, size_at
from ingot.ir.graph import Graph
from ingot.ir.node import shown_sources
from ingot.ir.sized import has_sizes
from ingot.ir.text import index_location
from ingot.lower.lowered import Lowered, sizes_of
from ingot.lower.view import View
from ingot.plan.memory import Plan, canaries
from ingot.run.arena import Arena, Memory, memory_view
from ingot.run.arguments import Arguments
from ingot.run.library import Library, load
from ingot.run.store import WeightStore
from ingot.support import abi
from ingot.support.config import check, debug
from ingot.support.files import mapped_files
from ingot.support.spans import span

CANARY = 0xC5
_STOPPED = abi.constant("INGOT_STOPPED")


@dataclass(slots=True)
class BindingTable:
    """The input and output pointers and the sizes of a run, and its fault record."""

    rows: Any
    fault: Any
    sizes: Any
    owned: list[Any]


@dataclass(frozen=True, slots=True)
class _Ready:
    """The argument structs of a program, filled for one state of the arena: these regions at these addresses."""

    arena: dict[str, int]
    state: dict[str, int]
    program: Any
    arguments: Arguments


class NativeProgram:
    """One Lowered and Plan bound to an arena: its argument structs are filled and its kernels resolved.

    Runs of all programs of an arena are serialised, inside the C call: while a run holds the arena, its thread executes
    no Python code. state: the arena of the states, if they outlive this arena. stop: an `int32_t *` that ends a run
    soon while it is not 0, possibly within a step; the outputs are then partially written.
    """

    def __init__(
        self,
        graph: Graph,
        lowered: Lowered,
        plan: Plan,
        weights: WeightStore,
        arena: Arena,
        state: Arena | None = None,
        stop: Any = None,
    ):
        self.library: Library = load()
        assert lowered.target.isa in self.library.isas(), f"steps for {lowered.target.isa}, which this CPU lacks"
        self._stop = self.library.ffi.NULL if stop is None else stop
        self.graph, self.lowered, self.plan = graph, lowered, plan
        self._arena, self._state = arena, state or arena
        self._checking = check() >= 3
        bound = {name: f"input:{lowered.tensors[v.tensor].name}" for name, v in lowered.inputs.items()}
        self._slots = {region: i for i, region in enumerate(bound.values())}
        for view in lowered.outputs.values():
            self._slots[f"output:{lowered.tensors[view.tensor].name}"] = len(self._slots)
        self._sizes = {name: size for name, size in plan.regions.items() if name == "state" or name.startswith("arena")}
        self._outputs = list(lowered.outputs.values())
        self._output_types = [(v.shape, v.dtype.numpy) for v in self._outputs]
        self._tables: list[BindingTable] = []  # not used by any run now
        sizes = sizes_of(lowered) if has_sizes(graph) else ()
        self._run_sizes = {size: slot_index for slot_index, size in enumerate(dict.fromkeys(sizes))}
        self._from_buffer = self.library.ffi.from_buffer
        self._run = self.library.entry.ingot_run
        self._run_sampled = self.library.entry.ingot_run_sampled
        if debug() >= 1:
            for step in plan.steps:
                print(f"{step.node}: {step.kernel}.{lowered.target.isa} x{step.parts}", file=sys.stderr)
        packed_weights = [t.packed_weight for t in lowered.tensors.values() if t.packed_weight is not None]
        with span("pack weights"):
            self._weights = weights.prepare(packed_weights)  # the store drops weights that no program references
        self._mapped = mapped_files(self._weights.values())
        with span("fill arguments"):
            self._prepare()

    def run(self, inputs: Sequence[np.ndarray], symbols: Mapping[str, int] = {}) -> list[np.ndarray]:
        """Run once. inputs: row-major arrays of the bound shapes, in graph order; returns fresh arrays.

        symbols: the values of AtMost symbols in this run. Raises InputError for an index outside a table, ResourceError
        when there is no memory for the results.
        """
        try:
            outputs = [np.empty(shape, dtype) for shape, dtype in self.output_types(symbols)]
        except MemoryError as error:
            raise ResourceError(f"run: no memory for the results, {error}") from error
        self.run_into(inputs, outputs, symbols)
        return outputs

    def output_types(self, symbols: Mapping[str, int]) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Return the shapes and dtypes of the results of a run, in order; symbols as in `run`."""
        if not symbols:
            return self._output_types
        return [(tuple(size_at(dim, symbols) for dim in v.shape), v.dtype.numpy) for v in self._outputs]

    def run_into(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        symbols: Mapping[str, int] = {},
        codes: list[int] | None = None,
    ) -> None:
        """Run into row-major arrays of the output shapes; otherwise as `run`.

        codes: the exit code of the C call is appended as the call returns. An interrupted caller finds it there, or
        knows that nothing has run.
        """
        table = self._tables.pop() if self._tables else self.pointers(())
        rows, from_buffer = table.rows, self._from_buffer
        # The arrays outlive the call, so their buffers need no reference.
        for slot, array in enumerate((*inputs, *outputs)):
            rows[slot] = from_buffer(array if array.ndim else array.reshape(1))
        if symbols:
            self.resize(table, symbols)
        self.call(table, codes=codes)
        self._tables.append(table)

    def resize(self, table: BindingTable, symbols: Mapping[str, int]) -> None:
        """Set the values of AtMost symbols for runs with a table; they must not exceed the planned sizes."""
        sizes = table.sizes
        for size, slot_index in self._run_sizes.items():
            sizes[slot_index] = bind(size, symbols)

    def _buffer(self, array: np.ndarray) -> Any:
        # cffi accepts no array of rank 0.
        return self._from_buffer(array if array.ndim else array.reshape(1))

    def pointers(self, arrays: Sequence[np.ndarray], symbols: Mapping[str, int] = {}) -> BindingTable:
        """Return a binding table of inputs and outputs, in order; it keeps the arrays alive. symbols: as in `run`."""
        rows = self.library.new("void*[]", len(self._slots) + 1)
        owned = [self._buffer(array) for array in arrays]
        for slot, buffer in enumerate(owned):
            rows[slot] = buffer
        sizes = rows[len(self._slots)] = self.library.new("int64_t[]", max(1, len(self._run_sizes)))
        table = BindingTable(rows, self.library.new("ingot_fault"), sizes, owned)
        if symbols:
            self.resize(table, symbols)
        return table

    def call(
        self, table: BindingTable, samplers: Any = None, sampler_count: int = 0, codes: list[int] | None = None
    ) -> None:
        """Make the C call with a table that no other call uses.

        samplers: an array of `ingot_sampler *`; each samples from its row of the first output, in the same call. codes:
        as in `run_into`, for a call without samplers.
        """
        memory, state = self._arena.memory, self._state.memory
        ready = self._ready
        if ready.arena is not memory.addresses or ready.state is not state.addresses:
            ready, memory, state = self._prepare()
        for file in self._mapped:
            file.expect_unchanged()
        if self._checking:
            code = self._run_checked(ready, memory, table, samplers, sampler_count, codes)
        elif codes is not None:
            code = self._run_noted(ready, table, codes)
        elif samplers is None:
            code = self._run(ready.program, table.rows, table.fault)
        else:
            code = self._run_sampling(ready, table, samplers, sampler_count)
        if code:
            self._raise_fault(table)

    def _run_noted(self, ready: _Ready, table: BindingTable, codes: list[int]) -> int:
        """Run and record the exit code in one call of a C function, without Python code for Ctrl-C to strike."""
        codes.extend(map(self._run, (ready.program,), (table.rows,), (table.fault,)))
        return codes[-1]

    def _run_sampling(self, ready: _Ready, table: BindingTable, samplers: Any, sampler_count: int) -> int:
        slot = len(self.lowered.inputs)
        return int(self._run_sampled(ready.program, table.rows, table.fault, slot, samplers, sampler_count))

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena, which this program may share with others."""
        return self._arena.nbytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the states, and of everything that shares their region."""
        return self._state.nbytes

    @property
    def program(self) -> Any:
        """The `ingot_program *` for the current addresses."""
        return self._ready.program

    def profile(self, inputs: Sequence[np.ndarray], runs: int = 1, symbols: Mapping[str, int] = {}) -> np.ndarray:
        """Return the nanoseconds of each step, int64[runs, steps], with a barrier after each. symbols: as in `run`."""
        _outputs, found = self._timed(inputs, runs, symbols, is_separate=True)
        times = found[:, :, 0]
        return times[:, :, 1] - times[:, :, 0]  # type: ignore[no-any-return]

    def trace(
        self, inputs: Sequence[np.ndarray], runs: int = 1, symbols: Mapping[str, int] = {}
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the outputs of the last run, and when each thread begins and ends its tasks of each step.

        The second is int64[runs, steps, threads, 2], in nanoseconds of `time.monotonic_ns`; 0 where a thread takes no
        part. symbols: as in `run`.
        """
        return self._timed(inputs, runs, symbols, is_separate=False)

    def _timed(
        self, inputs: Sequence[np.ndarray], runs: int, symbols: Mapping[str, int], is_separate: bool
    ) -> tuple[list[np.ndarray], np.ndarray]:
        outputs = [np.empty(shape, dtype) for shape, dtype in self.output_types(symbols)]
        table = self.pointers([*inputs, *outputs], symbols)
        steps, threads = len(self.plan.steps), self.lowered.target.threads
        times = np.zeros((runs, max(1, steps), threads, 2), np.int64)
        ready, *_memory = self._prepare()
        for file in self._mapped:
            file.expect_unchanged()
        for row in times:
            pointer = self.library.cast("int64_t*", row.ctypes.data)
            if self.library.entry.ingot_run_timed(ready.program, table.rows, table.fault, pointer, is_separate):
                self._raise_fault(table)
        return outputs, times[:, :steps]

    def run_watched(
        self, inputs: Sequence[np.ndarray], watch: Callable[[int, Callable[[View], np.ndarray]], None]
    ) -> list[np.ndarray]:
        """Run one step at a time, with the kernels, tasks and addresses of `run`, whose bits the results have.

        watch(step, memory) is called after each step; memory(view) is the memory of a view, which the caller may
        change. Raises as `run` does.
        """
        outputs = [np.empty(shape, dtype) for shape, dtype in self._output_types]
        table = self.pointers([*inputs, *outputs])
        ready, memory, state = self._prepare()
        whole, regions = ready.program, {**memory.regions, **state.regions}
        arrays = dict(zip(self._slots, [*inputs, *outputs], strict=True))

        def memory_of(view: View) -> np.ndarray:
            tensor, address = self.lowered.tensors[view.tensor], self.plan.addresses[view.tensor]
            if tensor.packed_weight is not None:
                return memory_view(self._weights[tensor.packed_weight.key].reshape(-1).view(np.uint8), 0, view)
            if address.region in arrays:
                return memory_view(arrays[address.region].reshape(-1).view(np.uint8), 0, view)
            return memory_view(regions[address.region], address.offset, view)

        for index in range(len(self.plan.steps)):
            step = self.library.new("ingot_program", whole[0])
            step.steps, step.step_count = whole.steps + index, 1
            if self._run(step, table.rows, table.fault):
                self._raise_fault(table)
            watch(index, memory_of)
        return outputs

    def tensor(self, id: str) -> np.ndarray:
        """Return a root tensor of the arena as a view of its memory."""
        tensor, address = self.lowered.tensors[id], self.plan.addresses[id]
        region = self._home(address.region).memory.regions[address.region]
        data = region[address.offset : address.offset + tensor.nbytes]
        return data.view(tensor.dtype.numpy).reshape(tensor.shape)

    # -- preparing ----------------------------------------------------------------------------------------------

    def _prepare(self) -> tuple[_Ready, Memory, Memory]:
        """Fill every argument struct for the current addresses of arena and state.

        Returns the structs, and the memory that must stay alive while they are used.
        """
        if self._state is self._arena:
            memory = state = self._arena.reserve(self._sizes)
        else:
            memory = self._arena.reserve({name: size for name, size in self._sizes.items() if name != "state"})
            state = self._state.reserve({name: size for name, size in self._sizes.items() if name == "state"})
        self._begin_states(state)
        arguments = Arguments(
            self.library, self.lowered, self.plan, self._weights,
            memory.addresses | state.addresses, self._slots, self._run_sizes,
        )  # fmt: skip
        run_lock = self.library.cast("uint32_t*", self._arena.run_lock.ctypes.data)
        ready = _Ready(memory.addresses, state.addresses, arguments.program(run_lock, self._stop), arguments)
        self._ready = ready
        return ready, memory, state

    def _begin_states(self, state: Memory) -> None:
        """Write the initial values of states once per address: memory that moved has lost its contents."""
        address = state.addresses.get("state", 0)
        if self._state.begun == address:
            return
        roots = {t.name: t.id for t in self.lowered.tensors.values() if t.kind == "state"}
        for name, data in {**self._state.beginnings, **self.graph.initial}.items():
            if data is None:
                raise LoadError(f"state {name!r}: has no data, got only its type {self.graph.type(name)}")
            if name in roots:
                self.tensor(roots[name])[...] = data
        self._state.begun = address

    def _home(self, region: str) -> Arena:
        return self._state if region == "state" else self._arena

    # -- checking -----------------------------------------------------------------------------------------------

    def _raise_fault(self, table: BindingTable) -> None:
        fault = table.fault
        node = self.plan.steps[fault.step].node
        if fault.code == _STOPPED:
            raise StoppedError(f"run: stopped before node {node!r} was done")
        raise index_error(self.graph, self.lowered, node, fault.code, fault.index, fault.limit)

    def _run_checked(
        self,
        ready: _Ready,
        memory: Memory,
        table: BindingTable,
        samplers: Any,
        sampler_count: int,
        codes: list[int] | None,
    ) -> int:
        """Run over memory filled with NaN, so that a read before the write shows, with canaries after each tensor."""
        locations = canaries(self.lowered, self.plan)
        with self._arena.checking.once():
            for name, size in self._sizes.items():
                if name.startswith("arena"):
                    memory.regions[name][:size] = 0xFF
            for region, start in locations:
                memory.regions[region][start : start + self.plan.canary_bytes] = CANARY
            if samplers is None:
                code = self._run_noted(ready, table, [] if codes is None else codes)
            else:
                code = self._run_sampling(ready, table, samplers, sampler_count)
            for region, start in locations if not code else ():
                found = memory.regions[region][start : start + self.plan.canary_bytes]
                assert (found == CANARY).all(), f"a kernel wrote past a tensor, at {region}+{start}"
        return code


def index_error(graph: Graph, lowered: Lowered, node: str, code: int, index: int, limit: int) -> InputError:
    """Return the error of a fault that a kernel has reported, in the reference's words.

    code 1: of an index that may count from the end.
    """
    expected = f"{-limit * (code == 1)}..{limit - 1}{shown_sources(lowered.sources.get(node, ()), node)}"
    return InputError(f"node {index_location(graph, node)}: index out of range, got {index}, expected {expected}")

"""Runs a Plan: one C call over prepared argument structs. No decisions are left here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.config import check, debug
from ingot.dim import AtMost
from ingot.errors import InputError
from ingot.ir import Graph
from ingot.lower.lowered import FAULT, Lowered, Pointer, Step
from ingot.lower.weights import WeightStore
from ingot.plan import Address, Plan
from ingot.run.arena import Arena
from ingot.run.library import Library, load

_CANARY = 0xC5


def pack_panels(data: np.ndarray, packed: np.ndarray, transposed: bool) -> None:
    """Packs a f32 or bf16 matrix [k, n] ([n, k] when transposed) into panels; see `lower.weights.Recipe`."""
    library = load()
    kernel = "pack_f32" if data.itemsize == 4 else "pack_bf16"
    rows, columns = (stride // data.itemsize for stride in data.strides)
    n_stride, k_stride = (rows, columns) if transposed else (columns, rows)
    k, n = reversed(data.shape) if transposed else data.shape
    ffi = library.ffi
    source = ffi.cast("void*", data.ctypes.data)
    target = ffi.cast("void*", packed.ctypes.data)
    args = {"src": source, "dst": target, "n": n, "k": k, "n_stride": n_stride, "k_stride": k_stride, "scale": 1.0}
    library.kernel(kernel, library.isa())(ffi.new(library.types["pack_args"], args), 0, 1)


@dataclass(slots=True)
class _BindingTable:
    rows: Any
    held: list[Any]


class NativeProgram:
    """One Lowered and Plan made ready on an arena: argument structs filled, kernels looked up, inputs and outputs late.

    Calls queue on a lock: the arena holds one run at a time. state: where states lie, if they outlive this arena.
    """

    def __init__(
        self,
        graph: Graph,
        lowered: Lowered,
        plan: Plan,
        weights: WeightStore,
        arena: Arena,
        state: Arena | None = None,
    ):
        self.library: Library = load()
        self.graph, self.lowered, self.plan = graph, lowered, plan
        self._arena, self._state = arena, state or arena
        self._lock = threading.Lock()
        self._checking = check() >= 3
        bound = {name: f"input:{lowered.tensors[v.tensor].name}" for name, v in lowered.inputs.items()}
        self._slots = {region: i for i, region in enumerate(bound.values())}
        for view in lowered.outputs.values():
            self._slots[f"output:{lowered.tensors[view.tensor].name}"] = len(self._slots)
        self._sizes = {name: size for name, size in plan.regions.items() if name == "state" or name.startswith("arena")}
        self._output_types = [(v.shape, v.dtype.numpy) for v in lowered.outputs.values()]
        self.bindings = self.library.ffi.new("void*[]", max(1, len(self._slots)))
        self._generation = (-1, -1)
        self.planned = _planned_sizes(lowered)
        self._symbols = list(self.planned)
        self._sizes_now = self.library.ffi.new("int64_t[]", list(self.planned.values()) or 1)
        self._from_buffer = self.library.ffi.from_buffer
        self._run = self.library.entry.ingot_run
        self._run_sampled = self.library.entry.ingot_run_sampled
        if debug() >= 1:
            for step in plan.steps:
                print(f"{step.node}: {step.kernel}.{lowered.target.isa} x{step.parts}", file=sys.stderr)
        recipes = [t.recipe for t in lowered.tensors.values() if t.recipe is not None]
        self._weights = weights.prepare(graph, recipes)  # held here: the store forgets what no program holds
        self._prepare()

    def resize(self, symbol: str, size: int) -> None:
        """Says how much of a dim that was bound to an AtMost the next runs use: rows from there on are left alone."""
        assert 0 <= size <= self.planned[symbol], f"{symbol}: {size} is more than the planned {self.planned[symbol]}"
        self._sizes_now[self._symbols.index(symbol)] = size

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Runs once. inputs: row-major arrays of the bound shapes, in graph order; returns fresh arrays.

        Raises InputError for an index outside a table.
        """
        outputs = [np.empty(shape, dtype) for shape, dtype in self._output_types]
        self.run_into(inputs, outputs)
        return outputs

    def run_into(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """As `run`, into row-major arrays of the output shapes."""
        bindings, from_buffer, slot = self.bindings, self._from_buffer, 0
        with self._lock:
            for array in (*inputs, *outputs):  # the arrays outlive the call, so that their buffers need no holding
                bindings[slot] = from_buffer(array if array.ndim else array.reshape(1))
                slot += 1
            self.call()

    def _buffer(self, array: np.ndarray) -> Any:
        # cffi takes no array without dims.
        return self._from_buffer(array if array.ndim else array.reshape(1))

    def pointers(self, arrays: Sequence[np.ndarray]) -> _BindingTable:
        """A binding table of inputs and outputs, in order; it keeps the arrays alive."""
        table = self.library.ffi.new("void*[]", max(1, len(self._slots)))
        held = [self._buffer(array) for array in arrays]
        for slot, buffer in enumerate(held):
            table[slot] = buffer
        return _BindingTable(table, held)

    def call(self, table: _BindingTable | None = None, samplers: Any = None, sampler_count: int = 0) -> None:
        """The C call, with the lock held and `bindings`, or another table, filled.

        samplers: an array of `ingot_sampler *`; each draws from its row of the first output, in the same call.
        """
        if self._generation != (self._arena.generation, self._state.generation):
            self._prepare()
        if self._checking:
            self._poison()
        bindings = self.bindings if table is None else table.rows
        if samplers is None:
            code = self._run(self.program, bindings)
        else:
            code = self._run_sampled(self.program, bindings, len(self.lowered.inputs), samplers, sampler_count)
        if code:
            self._raise_fault()
        if self._checking:
            self._verify_canaries()

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena, which this program may share with others."""
        return self._arena.nbytes

    @property
    def lock(self) -> threading.Lock:
        """Held by whoever fills `bindings` and calls."""
        return self._lock

    def profile(self, inputs: Sequence[np.ndarray], runs: int = 1) -> np.ndarray:
        """Nanoseconds of each step, int64[runs, steps], a barrier after each."""
        outputs = [np.empty(shape, dtype) for shape, dtype in self._output_types]
        table = self.pointers([*inputs, *outputs])
        times = np.zeros((runs, max(1, len(self.plan.steps))), np.int64)
        with self._lock:
            if self._generation != (self._arena.generation, self._state.generation):
                self._prepare()
            for row in times:
                nanoseconds = self.library.ffi.cast("int64_t*", row.ctypes.data)
                if self.library.entry.ingot_run_profiled(self.program, table.rows, nanoseconds):
                    self._raise_fault()
        return times[:, : len(self.plan.steps)]

    def tensor(self, id: str) -> np.ndarray:
        """A root tensor of the arena as it lies now, for checksums and tests."""
        tensor, address = self.lowered.tensors[id], self.plan.addresses[id]
        data = self._home(address.region).regions[address.region][address.offset : address.offset + tensor.nbytes]
        return data.view(tensor.dtype.numpy).reshape(tensor.shape)

    # -- preparing ----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Fills every argument struct for where the arena lies now."""
        ffi = self.library.ffi
        for name, size in self._sizes.items():
            self._home(name).reserve({name: size})
        self._generation = (self._arena.generation, self._state.generation)
        self._fault = ffi.new(self.library.types["ingot_fault"])
        self._bases = {name: self._home(name).regions[name].ctypes.data for name in self._sizes}
        self._keep: list[Any] = []
        self._patches: list[tuple[Any, int, int]] = []
        self._resizes: list[tuple[Any, int, int]] = []
        isa = self.lowered.target.isa
        self._steps = ffi.new("ingot_step[]", max(1, len(self.plan.steps)))
        for index, step in enumerate(self.plan.steps):
            row = self._steps[index]
            row.kernel = self.library.kernel(step.kernel, isa)
            row.args = self._arguments(step, index)
            row.parts, row.barrier = step.parts, self.plan.barriers[index]
        self._patch_rows = ffi.new("ingot_patch[]", max(1, len(self._patches)))
        for row, (where, slot, offset) in zip(self._patch_rows, self._patches, strict=False):
            row.where, row.slot, row.byte_offset = where, slot, offset
        self._resize_rows = ffi.new("ingot_resize[]", max(1, len(self._resizes)))
        for row, (where, symbol, factor) in zip(self._resize_rows, self._resizes, strict=False):
            row.where, row.symbol, row.factor = where, symbol, factor
        self.program = ffi.new(
            self.library.types["ingot_program"],
            {
                "steps": self._steps, "patches": self._patch_rows, "resizes": self._resize_rows,
                "sizes": self._sizes_now, "fault": self._fault,
                "step_count": len(self.plan.steps), "patch_count": len(self._patches),
                "resize_count": len(self._resizes), "threads": self.lowered.target.threads,
            },
        )  # fmt: skip

    def _home(self, region: str) -> Arena:
        return self._state if region == "state" else self._arena

    def _arguments(self, step: Step, index: int) -> Any:
        ffi = self.library.ffi
        args = ffi.new(self.library.types[step.args_type])
        self._keep.append(args)
        for name, value in step.fields.items():
            if isinstance(value, Pointer):
                self._point(args, name, value, index)
            elif isinstance(value, tuple):
                array = getattr(args, name)
                for i, element in enumerate(value):
                    if isinstance(element, Pointer):
                        array[i] = self._address(args, element, name, i)
                    else:
                        array[i] = element
                        self._note_size(args, element, name, i)
            elif value is not None:
                setattr(args, name, value)
                self._note_size(args, value, name)
        return args

    def _note_size(self, args: Any, value: Any, *field: str | int) -> None:
        """A field that counts rows of a run is set at each run."""
        if isinstance(value, AtMost):
            kind, offset = self.library.ffi.typeof(args).item, self.library.ffi.offsetof
            where = self.library.ffi.cast("int64_t*", self.library.ffi.cast("char*", args) + offset(kind, *field))
            self._resizes.append((where, self._symbols.index(value.symbol), value.factor))

    def _point(self, args: Any, name: str, pointer: Pointer, index: int) -> None:
        if pointer.tensor == FAULT:
            args.fault, args.step = self._fault, index
        else:
            setattr(args, name, self._address(args, pointer, name))

    def _address(self, args: Any, pointer: Pointer, *field: str | int) -> Any:
        """Where a pointer points; null for one that is set at each run, which is noted as a patch of the field."""
        ffi = self.library.ffi
        tensor, address = self.lowered.tensors[pointer.tensor], self.plan.addresses[pointer.tensor]
        if address.region not in self._slots:
            return ffi.cast("void*", self._base(tensor.id, address) + pointer.byte_offset)
        where = ffi.cast("void**", ffi.cast("char*", args) + ffi.offsetof(ffi.typeof(args).item, *field))
        self._patches.append((where, self._slots[address.region], pointer.byte_offset))
        return ffi.NULL

    def _base(self, id: str, address: Address) -> int:
        recipe = self.lowered.tensors[id].recipe
        if recipe is None:
            return self._bases[address.region] + address.offset
        return self._weights[recipe.key].ctypes.data

    # -- checking -----------------------------------------------------------------------------------------------

    def _raise_fault(self) -> None:
        fault = self._fault
        node = self.plan.steps[fault.step].node
        lowest = -fault.limit if fault.code == 1 else 0
        raise InputError(f"node {node!r}: index out of range, got {fault.index}, expected {lowest}..{fault.limit - 1}")

    def _poison(self) -> None:
        """NaN everywhere, so that a read before the write shows; canaries behind each tensor."""
        for name in self._sizes:
            if name.startswith("arena"):
                self._arena.regions[name][: self._sizes[name]] = 0xFF
        for region, start in self._canaries():
            self._arena.regions[region][start : start + self.plan.canary_bytes] = _CANARY

    def _verify_canaries(self) -> None:
        for region, start in self._canaries():
            found = self._arena.regions[region][start : start + self.plan.canary_bytes]
            assert (found == _CANARY).all(), f"a kernel wrote past a tensor, at {region}+{start}"

    def _canaries(self) -> list[tuple[str, int]]:
        """Where canaries stand: behind every arena tensor whose gap no other tensor covers."""
        covered = [
            (a.region, a.offset, a.offset + self.lowered.tensors[t].nbytes)
            for t, a in self.plan.addresses.items()
            if t in self.plan.live
        ]
        places = []
        for region, _, end in covered:
            gap_end = end + self.plan.canary_bytes
            if not any(r == region and low < gap_end and end < high for r, low, high in covered):
                places.append((region, end))
        return places


def _planned_sizes(lowered: Lowered) -> dict[str, int]:
    """The symbols whose sizes a run may lower, with what was planned for them."""
    dims = [dim for view in lowered.inputs.values() for dim in view.shape if isinstance(dim, AtMost)]
    return {dim.symbol: int(dim) // dim.factor for dim in dims}

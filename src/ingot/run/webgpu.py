"""Run a Plan on a WebGPU device: one submit over buffers, pipelines and a bind group that are created once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np

from ingot.errors import InputError, LimitError, LoadError
from ingot.ir.dim import Expr, Values, size_at
from ingot.ir.dtype import DType
from ingot.ir.graph import Graph
from ingot.lower.lowered import Lowered
from ingot.lower.view import View
from ingot.plan.gpu_dispatch import FAULT_BYTES, Allocation, Dispatches, device_array, dispatches, grid
from ingot.plan.memory import Address, Plan, canaries
from ingot.run.arena import Arena, memory_view
from ingot.run.device import PARAMETER_BYTES, READ, Device, encodable, encode, mapped, open_device
from ingot.run.native import CANARY, index_error
from ingot.run.store import WeightStore
from ingot.support.config import check

_LEAST_BYTES = 256  # of a buffer for an empty region
_SHARED = ("weights", "state")  # prefixes of the regions that several programs may share


class WebgpuProgram:
    """One Lowered and Plan bound to a device: weights written, shaders compiled, parameters laid out.

    state: the owner of the states; programs with the same one share them.

    Raises LimitError for a region larger than a binding or for a weight outside of 32 bits, LoadError for a state
    without data, ResourceError when the device is out of memory, and the errors of `open_device`.
    """

    def __init__(self, graph: Graph, lowered: Lowered, plan: Plan, weights: WeightStore, state: Arena):
        self.graph, self.lowered, self.plan = graph, lowered, plan
        self.dispatches = dispatches(lowered, plan)
        self._device, built = open_device(), self.dispatches
        self._device.expect_bindable(built.regions)
        self._inputs = [(name, built.inputs[name].offset) for name in graph.inputs]
        self._outputs = [(name, graph.type(graph.outputs[name]).dtype, v) for name, v in lowered.outputs.items()]
        self._staging = np.zeros(built.regions["inputs"], np.uint8)
        self.weights = device_weights(weights, [(lowered, plan)])
        with self._device.lock.once(), self._device.guarded():
            own = {region: size for region, size in built.regions.items() if not region.startswith(_SHARED)}
            self._buffers = {region: _buffer(self._device, size) for region, size in own.items()}
            self._buffers |= {**self.weights.buffers, **self._states(state)}
            self._parameters, self._parameter_buffer = self._laid_out(built)
            groups = {bindings: self._bound(bindings) for bindings in {step.bindings for step in built.steps}}
            self._groups = list(groups.values())  # `_steps` keeps none alive
            pipelines = [self._device.pipeline(built.shaders[step.shader], step.bindings) for step in built.steps]
            self._steps = [
                encodable(pipeline, groups[step.bindings], number * PARAMETER_BYTES)
                for number, (pipeline, step) in enumerate(zip(pipelines, built.steps, strict=True))
            ]
            self._found = self._device.buffer(built.regions["outputs"], *READ)
        self._grids = [step.groups for step in built.steps]
        self._canaries = canaries(lowered, plan) if check() >= 3 else []
        self._resizes = self._resized_words()
        self._sizes: dict[str, int] = {}  # the symbols that parameters and grids are set for

    def run(self, inputs: Sequence[np.ndarray], symbols: Mapping[str, int] = {}) -> list[np.ndarray]:
        """Run once. inputs: row-major arrays of the bound shapes, in graph order; returns fresh arrays.

        symbols: the values of AtMost symbols in this run. Raises InputError for an index outside a table and for an
        integer outside of 32 bits, ResourceError for a lost device.
        """
        narrow = [
            device_array(array, self.lowered.inputs[name].dtype, f"input {name!r}", InputError)
            for (name, _), array in zip(self._inputs, inputs, strict=True)
        ]
        with self._device.lock.once(), self._device.guarded():
            for (_, offset), array in zip(self._inputs, narrow, strict=True):
                self._staging[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
            found = self._call(self._staging, symbols, self._found.size)
        return [self._output(found, *each, symbols) for each in self._outputs]

    def call(self, inputs: np.ndarray, symbols: Mapping[str, int], nbytes: int) -> np.ndarray:
        """Run once on the bytes of all inputs, laid out as in `dispatches`. symbols: as in `run`.

        Returns the first bytes of all outputs. Raises as `run` does.
        """
        with self._device.lock.once(), self._device.guarded():
            return self._call(inputs, symbols, nbytes)

    def _call(self, inputs: np.ndarray, symbols: Mapping[str, int], nbytes: int) -> np.ndarray:
        if symbols:
            self._resize(symbols)
        if inputs.size:
            self._device.gpu.queue.write_buffer(self._buffers["inputs"], 0, inputs)
        if self._canaries:
            self._poison()
        encoder = self._device.gpu.create_command_encoder()
        encoder.clear_buffer(self._buffers["outputs"], 0, FAULT_BYTES)
        compute = encoder.begin_compute_pass()
        encode(compute, self._steps, self._grids)
        compute.end()
        found = self._read(encoder, nbytes)
        self._raise_fault(found[:FAULT_BYTES].view(np.int32))
        if self._canaries:
            self._expect_canaries()
        return found

    def _poison(self) -> None:
        """Fill memory with NaN, so that a read before the write is visible, and write canaries after each tensor."""
        for region in {region for region, _ in self._canaries}:
            content = np.full(self._buffers[region].size, 0xFF, np.uint8)
            for start in (start for name, start in self._canaries if name == region):
                content[start : start + self.plan.canary_bytes] = CANARY
            self._device.gpu.queue.write_buffer(self._buffers[region], 0, content)

    def _expect_canaries(self) -> None:
        found = {region: self._copied(region) for region in {region for region, _ in self._canaries}}
        for region, start in self._canaries:
            here = found[region][start : start + self.plan.canary_bytes]
            assert (here == CANARY).all(), f"a kernel wrote past a tensor, at {region}+{start}"

    def run_watched(
        self, inputs: Sequence[np.ndarray], watch: Callable[[int, Callable[[View], np.ndarray]], None]
    ) -> list[np.ndarray]:
        """Run one dispatch at a time; as `NativeProgram.run_watched`. Changed memory is written back to the device."""
        with self._device.lock.once(), self._device.guarded():
            for (name, offset), array in zip(self._inputs, inputs, strict=True):
                narrow = device_array(array, self.lowered.inputs[name].dtype, f"input {name!r}", InputError)
                self._staging[offset : offset + narrow.nbytes] = narrow.reshape(-1).view(np.uint8)
            if self._staging.size:
                self._device.gpu.queue.write_buffer(self._buffers["inputs"], 0, self._staging)
            last = {number: i for i, step in enumerate(self.dispatches.steps) for number in step.numbers}
            encoder = self._device.gpu.create_command_encoder()
            encoder.clear_buffer(self._buffers["outputs"], 0, FAULT_BYTES)
            self._device.gpu.queue.submit([encoder.finish()])
            for index, step in enumerate(self.dispatches.steps):
                encoder = self._device.gpu.create_command_encoder()
                compute = encoder.begin_compute_pass()
                encode(compute, self._steps[index : index + 1], self._grids[index : index + 1])
                compute.end()
                self._device.gpu.queue.submit([encoder.finish()])
                for number in (number for number in dict.fromkeys(step.numbers) if last[number] == index):
                    self._watch(number, watch)
            found = self._copied("outputs")
            self._raise_fault(found[:FAULT_BYTES].view(np.int32))
        return [self._output(found, *each, {}) for each in self._outputs]

    def _watch(self, number: int, watch: Callable[[int, Callable[[View], np.ndarray]], None]) -> None:
        """Call a watch with the memory of the device, and write what it changed."""
        regions: dict[str, tuple[np.ndarray, bytes]] = {}
        locations = {v.tensor: self.dispatches.inputs[name] for name, v in self.lowered.inputs.items()}
        locations |= {v.tensor: self.dispatches.outputs[name] for name, v in self.lowered.outputs.items()}

        def memory(view: View) -> np.ndarray:
            address = locations.get(view.tensor) or self.plan.addresses[view.tensor]
            if address.region not in regions:
                content = self._copied(address.region)
                regions[address.region] = content.copy(), content.tobytes()
            return memory_view(regions[address.region][0], address.offset, view)

        watch(number, memory)
        for region, (content, before) in regions.items():
            if content.tobytes() != before:
                self._device.gpu.queue.write_buffer(self._buffers[region], 0, content)

    def outputs(self) -> np.ndarray:
        """Return the bytes of all outputs of the last run."""
        with self._device.lock.once(), self._device.guarded():
            return self._read(self._device.gpu.create_command_encoder(), self._found.size)

    def _resize(self, symbols: Mapping[str, int]) -> None:
        """Set the parameters and grids that depend on the sizes of a run."""
        if self._sizes == symbols:
            return
        values = Values(symbols)
        for dim, rows, words in self._resizes:
            self._parameters[rows, words] = values.of(dim)
        self._device.gpu.queue.write_buffer(self._parameter_buffer, 0, self._parameters)
        self._grids = [grid(size_at(step.workgroups, values)) for step in self.dispatches.steps]
        self._sizes = dict(symbols)

    def profile(self, inputs: Sequence[np.ndarray], runs: int = 1, symbols: Mapping[str, int] = {}) -> np.ndarray:
        """Return nanoseconds per step on the device's clock, int64[runs, steps]; steps of a dispatch share its time.

        symbols: as in `run`. Raises UnsupportedError for a device without a clock, and as `run` does.
        """
        self.run(inputs, symbols)
        times = np.zeros((runs, len(self.plan.steps)), np.int64)
        with self._device.lock.once(), self._device.guarded():
            for row in times:
                found = self._device.timed(self._steps, self._grids)
                for step, nanoseconds in zip(self.dispatches.steps, found.tolist(), strict=True):
                    row[list(step.numbers)] += nanoseconds // len(step.numbers)
        return times

    def _read(self, encoder: Any, nbytes: int) -> np.ndarray:
        """Submit the encoded commands, and wait for the first bytes of all outputs."""
        if self._found.map_state != "unmapped":  # an interrupt came while a run waited for it
            self._found = self._device.buffer(self._found.size, *READ)
        encoder.copy_buffer_to_buffer(self._buffers["outputs"], 0, self._found, 0, nbytes)
        self._device.gpu.queue.submit([encoder.finish()])
        return mapped(self._found, nbytes)

    def _output(self, found: np.ndarray, name: str, dtype: DType, view: View, symbols: Mapping[str, int]) -> np.ndarray:
        """Return a fresh array of an output, in the graph's dtype."""
        shape = tuple(size_at(dim, symbols) for dim in view.shape)
        offset = self.dispatches.outputs[name].offset
        data = found[offset : offset + view.dtype.nbytes(math.prod(shape))].view(view.dtype.numpy)
        return data.reshape(shape).astype(dtype.numpy)

    def _raise_fault(self, slot: np.ndarray) -> None:
        code, step, index, limit = (int(number) for number in slot[:4])
        if code:
            raise index_error(self.graph, self.lowered, self.plan.steps[step].node, code, index, limit)

    # -- states -------------------------------------------------------------------------------------------------

    def state_locations(self) -> dict[str, Allocation]:
        """Return the location of each state, by name."""
        roots = [(t, self.plan.addresses[t.id]) for t in self.lowered.tensors.values() if t.kind == "state"]
        return {t.name: Allocation(address.offset, t.nbytes, address.region) for t, address in roots}

    @property
    def state_bytes(self) -> int:
        """Bytes of the states, and of everything that shares their region."""
        return sum(size for region, size in self.plan.regions.items() if region.startswith("state"))

    @property
    def arena_bytes(self) -> int:
        """Bytes of activations."""
        return self.plan.arena_bytes

    def read_states(self) -> dict[str, np.ndarray]:
        """Return copies of all states, by name."""
        locations = self.state_locations()
        with self._device.lock.once(), self._device.guarded():
            found = {region: self._copied(region) for region in {location.region for location in locations.values()}}
        roots = {t.name: t for t in self.lowered.tensors.values() if t.kind == "state"}
        return {
            name: found[region][begin : begin + nbytes].view(roots[name].dtype.numpy).reshape(roots[name].shape)
            for name, (begin, nbytes, region) in locations.items()
        }

    def _copied(self, region: str) -> np.ndarray:
        source = self._buffers[region]
        target = self._device.buffer(source.size, *READ)
        encoder = self._device.gpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, 0, target, 0, source.size)
        self._device.gpu.queue.submit([encoder.finish()])
        return mapped(target, source.size)

    def write_state(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows of a state, which are indices of its first axis."""
        location, nbytes = self.state_locations()[name], values[:1].nbytes
        if not nbytes:  # a device refuses writes of nothing
            return
        with self._device.lock.once(), self._device.guarded():
            for row, value in zip(rows.tolist(), values, strict=True):
                where = location.offset + row * nbytes
                self._device.gpu.queue.write_buffer(self._buffers[location.region], where, np.ascontiguousarray(value))

    # -- preparing ----------------------------------------------------------------------------------------------

    def _states(self, state: Arena) -> dict[str, Any]:
        """Return the buffers of the states by region; a new buffer gets the initial values."""
        sizes = {region: size for region, size in self.dispatches.regions.items() if region.startswith("state")}
        buffers = self._device.states.get(state)
        if buffers is None:
            buffers = self._device.states[state] = {name: _buffer(self._device, size) for name, size in sizes.items()}
            locations = self.state_locations()
            for name, data in self.graph.initial.items():
                if data is None:
                    raise LoadError(f"state {name!r}: has no data, got only its type {self.graph.type(name)}")
                dtype = self.lowered.views[name].dtype
                array = device_array(np.ascontiguousarray(data), dtype, f"state {name!r}", LimitError)
                if array.size:
                    self._device.gpu.queue.write_buffer(buffers[locations[name].region], locations[name].offset, array)
        assert all(buffers[region].size >= size for region, size in sizes.items()), "who shares states has all of them"
        return buffers

    def _laid_out(self, built: Dispatches) -> tuple[np.ndarray, Any]:
        """Return the parameters of every step, on the host and on the device."""
        parameters = np.zeros((max(1, len(built.steps)), PARAMETER_BYTES // 4), np.uint32)
        for row, step in zip(parameters, built.steps, strict=False):
            row[: len(step.words)] = step.words
        buffer = self._device.buffer(parameters.nbytes, "UNIFORM", "COPY_DST")
        self._device.gpu.queue.write_buffer(buffer, 0, parameters)
        return parameters, buffer

    def _bound(self, bindings: Sequence[str]) -> Any:
        """Return a bind group of steps: their parameters, addressed by an offset, and regions."""
        resources = [{"buffer": self._parameter_buffer, "offset": 0, "size": PARAMETER_BYTES}]
        for region in bindings:  # a region that the program lacks needs some buffer
            if region not in self._buffers:
                self._buffers[region] = _buffer(self._device, 0)
            resources.append({"buffer": self._buffers[region], "offset": 0})
        entries = [{"binding": i, "resource": resource} for i, resource in enumerate(resources)]
        return self._device.gpu.create_bind_group(layout=self._device.bind_layout(bindings), entries=entries)

    def _resized_words(self) -> list[tuple[Expr, list[int], list[int]]]:
        """Return the parameters that depend on run-time sizes: their expressions, and their dispatches and words."""
        found: dict[Expr, tuple[list[int], list[int]]] = {}
        for number, step in enumerate(self.dispatches.steps):
            for word, dim in step.resizes:
                rows, words = found.setdefault(dim, ([], []))
                rows.append(number)
                words.append(word)
        return [(dim, *indices) for dim, indices in found.items()]


@dataclass(frozen=True, eq=False)
class DeviceWeights:
    """Weights on a device.

    buffers: by region. addresses: by packed-weight key. nbytes: of all weights, without the gaps
    between them.
    """

    buffers: Mapping[str, Any]
    addresses: Mapping[str, Address]
    nbytes: int


def device_weights(weights: WeightStore, programs: Iterable[tuple[Lowered, Plan]]) -> DeviceWeights:
    """Return the weights of programs that were planned together: existing ones at the same addresses, else new ones.

    They live as long as their holder. Raises as `WebgpuProgram` does.
    """
    device, wanted = open_device(), {}
    sizes: dict[str, int] = {}
    for lowered, plan in programs:
        for region in (name for name in plan.regions if name.startswith("weights")):
            sizes[region] = max(sizes.get(region, 0), plan.regions[region])
        for tensor in lowered.tensors.values():
            if tensor.packed_weight is not None:
                wanted[tensor.packed_weight.key] = tensor, tensor.packed_weight, plan.addresses[tensor.id]
    addresses = {key: address for key, (_, _, address) in wanted.items()}
    with device.lock.once(), device.guarded():
        shared = device.weights.setdefault(weights, WeakSet())
        for each in shared:
            if addresses.items() <= each.addresses.items():
                return each
        buffers = {region: _buffer(device, size) for region, size in sizes.items()}
        built = DeviceWeights(buffers, addresses, sum(packed_weight.nbytes for _, packed_weight, _ in wanted.values()))
        for tensor, packed_weight, address in wanted.values():
            array = device_array(weights.array(packed_weight), tensor.dtype, f"weight {tensor.name!r}", LimitError)
            if array.size:
                data = array.view(np.uint8)
                data = np.pad(data, (0, -data.size % 4)) if data.size % 4 else data  # writes have complete words
                device.gpu.queue.write_buffer(built.buffers[address.region], address.offset, data)
        shared.add(built)
        weights.elsewhere.add(built)
        return built


def _buffer(device: Device, nbytes: int) -> Any:
    """Return the buffer of a region; of the minimum size for a region that a program lacks."""
    return device.buffer(max(_LEAST_BYTES, nbytes), "STORAGE", "COPY_DST", "COPY_SRC")

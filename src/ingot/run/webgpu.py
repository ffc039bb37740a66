"""Runs a Plan on a device of WebGPU: one submit over buffers, pipelines and a bind group that are made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ingot.dispatch import FAULT_BYTES, Dispatches, dispatches
from ingot.dtype import DType, i64
from ingot.errors import IngotError, InputError, LimitError, UnsupportedError
from ingot.ir import Graph, has_sizes
from ingot.lower.lowered import Lowered
from ingot.lower.view import View
from ingot.lower.wgpu.wgsl import REGIONS
from ingot.plan import Plan
from ingot.run.device import PARAMETER_BYTES, Device, open_device
from ingot.run.store import WeightStore

_LEAST_BYTES = 256  # of a buffer that nothing lies in


class WebgpuProgram:
    """One Lowered and Plan made ready on a device: weights written, shaders compiled, parameters laid out.

    Raises UnsupportedError for a plan for several sizes or with states, LimitError for what is larger than a binding or
    for a weight outside of 32 bits, ResourceError where the device has no memory, and what `open_device` raises.
    """

    def __init__(self, graph: Graph, lowered: Lowered, plan: Plan, weights: WeightStore):
        if has_sizes(graph):
            raise UnsupportedError("webgpu: one program for several sizes, got dims with limits, expected exact ones")
        self.graph, self.lowered, self.plan = graph, lowered, plan
        self._device = open_device()
        made = dispatches(lowered, plan)
        self._places = made
        self._inputs = [(name, made.inputs[name].offset) for name in graph.inputs]
        self._outputs = [(name, graph.type(graph.outputs[name]).dtype, v) for name, v in lowered.outputs.items()]
        with self._device.turn.once(), self._device.guarded():
            self._buffers = _buffers(self._device, made) | {"weights": self._weights(weights, made)}
            self._group = self._bound(made)
            self._steps = [
                (self._device.pipeline(made.shaders[step.shader]), [number * PARAMETER_BYTES], *step.groups)
                for number, step in enumerate(made.steps)
            ]
            self._found = self._device.buffer(made.regions["outputs"], "MAP_READ", "COPY_DST")

    def run(self, inputs: Sequence[np.ndarray], symbols: Mapping[str, int] = {}) -> list[np.ndarray]:
        """Runs once. inputs: row-major arrays of the bound shapes, in graph order; returns fresh arrays.

        Raises InputError for an index outside a table and for an integer outside of 32 bits, ResourceError for a device
        that is lost.
        """
        device, queue = self._device, self._device.gpu.queue
        narrow = [
            held(array, self.graph.type(name).dtype, f"input {name!r}", InputError)
            for (name, _), array in zip(self._inputs, inputs, strict=True)
        ]
        with device.turn.once(), device.guarded():
            queue.write_buffer(self._buffers["outputs"], 0, bytes(FAULT_BYTES))
            for (_, offset), array in zip(self._inputs, narrow, strict=True):
                if array.size:
                    queue.write_buffer(self._buffers["inputs"], offset, array)
            queue.submit([self._encoded()])
            self._found.map_sync("READ")
            try:
                found = np.frombuffer(self._found.read_mapped(copy=False), np.uint8)
                self._raise_fault(found[:FAULT_BYTES].view(np.int32))
                return [self._output(found, *each) for each in self._outputs]
            finally:
                self._found.unmap()

    def _encoded(self) -> Any:
        encoder = self._device.gpu.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for pipeline, place, width, height in self._steps:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, self._group, place)
            compute.dispatch_workgroups(width, height)
        compute.end()
        encoder.copy_buffer_to_buffer(self._buffers["outputs"], 0, self._found, 0, self._found.size)
        return encoder.finish()

    def _output(self, found: np.ndarray, name: str, dtype: DType, view: View) -> np.ndarray:
        """A fresh array of an output, of the graph's dtype."""
        offset, nbytes = self._places.outputs[name]
        data = found[offset : offset + nbytes].view(view.dtype.numpy).reshape(view.shape)
        return data.astype(dtype.numpy)

    def _raise_fault(self, slot: np.ndarray) -> None:
        code, step, index, limit = (int(number) for number in slot[:4])
        if code:
            node = self.plan.steps[step].node
            raise InputError(f"node {node!r}: index out of range, got {index}, expected {-limit}..{limit - 1}")

    # -- preparing ----------------------------------------------------------------------------------------------

    def _weights(self, weights: WeightStore, made: Dispatches) -> Any:
        """The buffer of the weights, which all programs share that have the same ones in the same places."""
        found = [(t.name, t.recipe, made.weights[t.id].offset) for t in self.lowered.tensors.values() if t.recipe]
        shared = self._device.weights.setdefault(weights, WeakValueDictionary())
        key = tuple((recipe.key, offset) for _, recipe, offset in found)
        buffer = shared.get(key)
        if buffer is None:
            buffer = _buffer(self._device, made, "weights")
            for name, recipe, offset in found:
                array = held(weights.array(recipe), recipe.dtype, f"weight {name!r}", LimitError)
                if array.size:
                    self._device.gpu.queue.write_buffer(buffer, offset, array)
            shared[key] = buffer
        return buffer

    def _bound(self, made: Dispatches) -> Any:
        """The bind group of every step: its parameters, found by an offset, and all regions."""
        parameters = np.zeros((max(1, len(made.steps)), PARAMETER_BYTES // 4), np.uint32)
        for row, step in zip(parameters, made.steps, strict=False):
            row[: len(step.words)] = step.words
        buffer = self._device.buffer(parameters.nbytes, "UNIFORM", "COPY_DST")
        self._device.gpu.queue.write_buffer(buffer, 0, parameters)
        resources = [{"buffer": buffer, "offset": 0, "size": PARAMETER_BYTES}]
        resources += [{"buffer": self._buffers[region], "offset": 0} for region in REGIONS]
        entries = [{"binding": i, "resource": resource} for i, resource in enumerate(resources)]
        return self._device.gpu.create_bind_group(layout=self._device.bind_layout, entries=entries)


def _buffers(device: Device, made: Dispatches) -> dict[str, Any]:
    """A buffer for each region but the weights'."""
    return {region: _buffer(device, made, region) for region in REGIONS if region != "weights"}


def _buffer(device: Device, made: Dispatches, region: str) -> Any:
    """The buffer of a region; the smallest there may be for one that a program lacks."""
    return device.buffer(max(_LEAST_BYTES, made.regions.get(region, 0)), "STORAGE", "COPY_DST", "COPY_SRC")


def held(array: np.ndarray, dtype: DType, what: str, error: type[IngotError]) -> np.ndarray:
    """An array as the device has it, four bytes an element. Raises `error` for integers that do not fit in 32 bits."""
    if dtype.kind == "f":
        return array
    if dtype is i64 and array.size:
        low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        for value in (int(array.min()), int(array.max())):
            if not low <= value <= high:
                raise error(f"{what}: webgpu has integers of 32 bits, got {value}, expected {low}..{high}")
    return np.ascontiguousarray(array, np.int32)

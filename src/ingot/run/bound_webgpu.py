"""A mode of a graph on a WebGPU device, bound once: a run is one upload, one submit and one readback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingot.compile import Compiled
from ingot.errors import StoppedError
from ingot.run.arena import Arena
from ingot.run.sampler import NativeSampler
from ingot.run.store import WeightStore
from ingot.run.webgpu import WebgpuProgram


class BoundWebgpuProgram:
    """As `run.modes.BoundProgram`. `output`, the last output, is read from the device on demand or for sampling.

    If there are outputs before it, they are the indices of the largest logits and these logits, which greedy samplers
    read.

    Raises UnsupportedError for an op without a kernel, and the errors of `WebgpuProgram`.
    """

    def __init__(self, compiled: Compiled, weights: WeightStore, state: Arena, stop: Any):
        lowered, plan = compiled.native
        self.native = WebgpuProgram(compiled.segments[0].graph, lowered, plan, weights, state)
        self._stop = stop
        built = self.native.dispatches
        self._staging = np.zeros(built.regions["inputs"], np.uint8)
        self.inputs: dict[str, np.ndarray] = {}
        for name, view in lowered.inputs.items():
            location = built.inputs[name]
            data = self._staging[location.offset : location.offset + location.nbytes]
            self.inputs[name] = data.view(view.dtype.numpy).reshape(view.shape)
        *chosen, self._name = lowered.outputs
        self._chosen = [built.outputs[name] for name in chosen]
        self._allocation, self._view = built.outputs[self._name], lowered.outputs[self._name]
        self._last = np.zeros(0, np.uint8)  # the bytes read from the last run's outputs

    @property
    def output(self) -> np.ndarray:
        """The output of the last run."""
        if self._last.size <= self._allocation.offset:
            self._last = self.native.outputs()
        data = self._last[self._allocation.offset : self._allocation.offset + self._allocation.nbytes]
        return data.view(self._view.dtype.numpy).reshape(self._view.shape)

    def run(self, sizes: Mapping[str, int], samplers: Sequence[NativeSampler] = ()) -> None:
        """Run once over the arrays. sizes: the value of each run-time symbol; unknown symbols are ignored.

        samplers: each samples from its row of the output. Raises StoppedError if runs are asked to stop.
        """
        if self._stop[0]:
            raise StoppedError("run: stopped before the first node")
        is_chosen = bool(self._chosen) and all(sampler.is_greedy for sampler in samplers)
        end = self._allocation.offset + (0 if is_chosen else self._allocation.nbytes * bool(samplers))
        self._last = self.native.call(self._staging, sizes, end)
        if is_chosen:
            tokens, best = (self._last[p.offset : p.offset + p.nbytes] for p in self._chosen)
            for sampler, token, logit in zip(samplers, tokens.view(np.int32), best.view(np.float32), strict=False):
                sampler.take(int(token), float(logit))
            return
        for sampler, row in zip(samplers, self.output if samplers else (), strict=False):
            sampler.draw(row)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device."""
        return self.native.weights.nbytes

    @property
    def state_bytes(self) -> int:
        """Bytes of all states."""
        return self.native.state_bytes

    def read_states(self, indices: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return copies of some elements of each state, by its name; indices: of the first axis of each state."""
        return {name: state[indices[name]] for name, state in self.native.read_states().items()}

    def write_states(self, indices: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
        """Write the result of `read_states` back."""
        for name, rows in values.items():
            self.native.write_state(name, indices[name], rows)

"""The modes of one graph, bound to one set of weights and one state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ingot.compile import Compiled
from ingot.lower import Target
from ingot.run.arena import Arena
from ingot.run.library import load
from ingot.run.native import NativeProgram
from ingot.run.sampler import NativeSampler
from ingot.run.store import WeightStore

if TYPE_CHECKING:
    from ingot.run.bound_webgpu import BoundWebgpuProgram


class BoundProgram:
    """A mode with fixed arrays, bound once: `inputs` by name, and `output`, the only one.

    Not thread-safe: the arrays belong to one run. stop: see `NativeProgram`.

    Raises UnsupportedError for an op without a kernel.
    """

    def __init__(self, compiled: Compiled, weights: WeightStore, state: Arena | None = None, stop: Any = None):
        lowered, plan = compiled.native
        self.native = NativeProgram(compiled.segments[0].graph, lowered, plan, weights, Arena(), state, stop)
        self._weights = weights
        self.inputs = {name: np.zeros(view.shape, view.dtype.numpy) for name, view in lowered.inputs.items()}
        (output,) = lowered.outputs.values()
        self.output = np.zeros(output.shape, output.dtype.numpy)
        self._table = self.native.pointers([*self.inputs.values(), self.output])
        self._samplers = self.native.library.new("ingot_sampler*[]", max(1, len(self.output)))

    def run(self, sizes: Mapping[str, int], samplers: Sequence[NativeSampler] = ()) -> None:
        """Run once over the arrays. sizes: the value of each run-time symbol; unknown symbols are ignored.

        samplers: each samples from its row of the output, f32[rows, vocabulary], in the same call.
        """
        self.native.resize(self._table, sizes)
        if not samplers:
            self.native.call(self._table)
            return
        for row, sampler in enumerate(samplers):
            self._samplers[row] = sampler.struct
        self.native.call(self._table, self._samplers, len(samplers))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights."""
        return self._weights.nbytes

    @property
    def state_bytes(self) -> int:
        """Bytes of all states."""
        return self.native.state_bytes

    def states(self) -> dict[str, np.ndarray]:
        """Return the states as views of their memory, by name."""
        roots = [tensor for tensor in self.native.lowered.tensors.values() if tensor.kind == "state"]
        return {tensor.name: self.native.tensor(tensor.id) for tensor in roots}

    def read_states(self, indices: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return copies of some elements of each state, by its name; indices: of the first axis of each state."""
        states = self.states()
        return {name: states[name][index] for name, index in indices.items()}

    def write_states(self, indices: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
        """Write the result of `read_states` back, or some of its arrays."""
        states = self.states()
        for name, value in values.items():
            states[name][indices[name]] = value


Bound: TypeAlias = "BoundProgram | BoundWebgpuProgram"


class BoundModes:
    """The programs of several modes of a graph, by name; they share every weight and the graph's states."""

    def __init__(self, target: Target):
        self._target = target
        self._weights = WeightStore(target.threads)
        self._state = Arena()
        self._programs: dict[str, Bound] = {}
        # Runs read it concurrently: numpy stores a number atomically, cffi copies byte by byte.
        self._stopping = np.zeros(1, np.int32)
        self._stop = load().ffi.from_buffer("int32_t[]", self._stopping)

    @property
    def is_stopping(self) -> bool:
        """Whether runs are asked to stop with a StoppedError; stays set until it is reset. Any thread may set it."""
        return bool(self._stopping[0])

    @is_stopping.setter
    def is_stopping(self, value: bool) -> None:
        self._stopping[0] = value

    def add(self, modes: Iterable[Compiled]) -> None:
        """Bind modes. The weights of one are packed while the next is compiled."""
        with ThreadPoolExecutor(1) as executor:
            packed = []
            for compiled in modes:
                packed_weights = [
                    t.packed_weight for t in compiled.native[0].tensors.values() if t.packed_weight is not None
                ]
                packed.append((compiled, executor.submit(self._weights.prepare, packed_weights)))
            references: list[Any] = [weights.result() for _, weights in packed]
        bound: type[Bound] = BoundProgram
        if self._target.device == "webgpu":
            from ingot.run.bound_webgpu import BoundWebgpuProgram
            from ingot.run.webgpu import device_weights

            bound = BoundWebgpuProgram
            references.append(device_weights(self._weights, [compiled.native for compiled, _ in packed]))
        self._programs |= {c.mode.name: bound(c, self._weights, self._state, self._stop) for c, _ in packed}
        del references  # the programs have references now

    def __getitem__(self, name: str) -> Bound:
        return self._programs[name]

    def __contains__(self, name: str) -> bool:
        return name in self._programs

    def items(self) -> Iterable[tuple[str, Bound]]:
        """Return names and programs, in the order in which they were bound."""
        return self._programs.items()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights."""
        return next(iter(self._programs.values())).weight_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of all states."""
        return next(iter(self._programs.values())).state_bytes

    def read_states(self, indices: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return copies of some elements of each state, by its name; indices: of the first axis of each state."""
        return next(iter(self._programs.values())).read_states(indices)

    def copy_states(self, names: Iterable[str], source: int, target: int) -> None:
        """Copy an element of the first axis of some states to another one."""
        copied = self.read_states(dict.fromkeys(names, np.array([source])))
        self.write_states(dict.fromkeys(copied, np.array([target])), copied)

    def write_states(self, indices: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
        """Write the result of `read_states` back."""
        next(iter(self._programs.values())).write_states(indices, values)

"""The programs of a trainer by name, with shared states, weights and arena."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.compile import Compiled, Mode, compile_mode, sharing_weights
from ingot.ir.graph import Graph
from ingot.lower import Target
from ingot.plan.memory import Placement
from ingot.run.arena import Arena
from ingot.run.native import NativeProgram
from ingot.run.store import WeightStore


class TrainingPrograms:
    """Programs that are compiled one by one; the values of states move when a new program extends their memory.

    states: views of the states by name, valid until the next program is added.
    """

    def __init__(self, target: Target):
        self.target = target
        self.placement = Placement()
        self.weights = WeightStore(target.threads)
        self.state = Arena()
        self.compiled: dict[str, Compiled] = {}
        self.states: dict[str, np.ndarray] = {}
        self._arena = Arena()
        self._natives: dict[str, NativeProgram] = {}
        self._followed = self.state.memory, 0  # the memory and number of programs that `states` refer to

    def __contains__(self, name: str) -> bool:
        return name in self._natives

    def add(self, name: str, graph: Graph) -> None:
        """Compile a graph. The first graph contains every state with initial data.

        Raises UnsupportedError for an op without a kernel.
        """
        compiled = compile_mode(graph, self.target, Mode(name), placement=self.placement)
        lowered, plan = compiled.native
        native = NativeProgram(compiled.segments[0].graph, lowered, plan, self.weights, self._arena, self.state)
        self.target = sharing_weights(self.target, compiled)
        self.compiled[name], self._natives[name] = compiled, native
        self.follow()

    def follow(self) -> None:
        """Copy the values of states to their present addresses. Must be called before states are read.

        Repeated calls are harmless, and needed because `add` may have been interrupted.
        """
        memory, _ = now = self.state.memory, len(self._natives)
        if self._followed == now:
            return
        found: dict[str, np.ndarray] = {}
        for program in self._natives.values():
            roots = (tensor for tensor in program.lowered.tensors.values() if tensor.kind == "state")
            found |= {tensor.name: program.tensor(tensor.id) for tensor in roots}
        if memory is not self._followed[0] and self.states:
            for name, array in self.states.items():
                found[name][...] = array
            self.state.begun = memory.addresses["state"]  # no program may initialize the states again
        self.states, self._followed = found, now

    def run(
        self, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], codes: list[int] | None = None
    ) -> None:
        """Run a program on row-major arrays in its graph's order; codes and errors as in `NativeProgram.run_into`."""
        self.follow()
        self._natives[name].run_into(inputs, outputs, codes=codes)

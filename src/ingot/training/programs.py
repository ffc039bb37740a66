"""The programs of a trainer, by name: over one set of states, one set of weights, and one arena."""

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
    """Programs that are compiled one by one; what states hold goes along when there are more of them.

    states: by name, as they lie in memory, until the next program is added.
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
        self._followed = self.state.memory, 0  # the memory and the number of programs that `states` are of

    def __contains__(self, name: str) -> bool:
        return name in self._natives

    def add(self, name: str, graph: Graph) -> None:
        """Compiles a graph. The first has every state that begins with data.

        Raises UnsupportedError where an op has no kernel.
        """
        compiled = compile_mode(graph, self.target, Mode(name), placement=self.placement)
        lowered, plan = compiled.native
        native = NativeProgram(compiled.segments[0].graph, lowered, plan, self.weights, self._arena, self.state)
        self.target = sharing_weights(self.target, compiled)
        self.compiled[name], self._natives[name] = compiled, native
        self.follow()

    def follow(self) -> None:
        """Takes along what states hold to where they lie now: to be done before they are read there, as often as one
        likes, because adding a program may have been interrupted.
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
            self.state.begun = memory.addresses["state"]  # no program is to begin anew
        self.states, self._followed = found, now

    def run(
        self, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], codes: list[int] | None = None
    ) -> None:
        """Runs one, on row-major arrays in the order of its graph; codes and errors: as `NativeProgram.run_into` has
        them.
        """
        self.follow()
        self._natives[name].run_into(inputs, outputs, codes=codes)

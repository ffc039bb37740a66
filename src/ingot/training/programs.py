"""The programs of a trainer, by name: over one set of states, one set of weights, and one arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ingot.compile import Compiled, Mode, compile_mode
from ingot.ir import Graph
from ingot.lower import Target
from ingot.plan import Placement
from ingot.run.arena import Arena
from ingot.run.native import NativeProgram
from ingot.run.store import WeightStore


def beside(target: Target, compiled: Compiled) -> Target:
    """What further programs over the weights of one are lowered for: they pack no matrix that it reads as it lies."""
    recipes = (tensor.recipe for tensor in compiled.native[0].tensors.values() if tensor.recipe is not None)
    unpacked = {recipe.value.name for recipe in recipes if recipe.layout == "raw" and recipe.value.is_weight}
    return replace(target, unpacked=target.unpacked | unpacked)


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

    def __contains__(self, name: str) -> bool:
        return name in self._natives

    def add(self, name: str, graph: Graph) -> None:
        """Compiles a graph. The first has every state that begins with data.

        Raises UnsupportedError where an op has no kernel.
        """
        compiled = compile_mode(graph, self.target, Mode(name), placement=self.placement)
        lowered, plan = compiled.native
        moves = plan.regions.get("state", 0) > self.state.nbytes
        held = {state: array.copy() for state, array in self.states.items()} if moves else {}
        native = NativeProgram(compiled.segments[0].graph, lowered, plan, self.weights, self._arena, self.state)
        self.compiled[name], self._natives[name] = compiled, native
        self.target = beside(self.target, compiled)
        for program in self._natives.values():
            roots = (tensor for tensor in program.lowered.tensors.values() if tensor.kind == "state")
            self.states |= {tensor.name: program.tensor(tensor.id) for tensor in roots}
        for state, array in held.items():
            self.states[state][...] = array

    def run(self, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Runs one, on row-major arrays in the order of its graph. Raises what `NativeProgram.run_into` does."""
        self._natives[name].run_into(inputs, outputs)

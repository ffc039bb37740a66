"""A program with arrays of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.errors import UnsupportedError
from ingot.ir import Graph
from ingot.lower import Target
from ingot.lower.weights import WeightStore
from ingot.run.arena import Arena
from ingot.run.program import compile_program


class BoundProgram:
    """A graph of one output compiled for a mode, its arrays bound once: `inputs` by name, and `output`.

    Raises UnsupportedError where an op has no kernel.
    """

    def __init__(self, graph: Graph, mode: str, target: Target, weights: WeightStore, state: Arena | None = None):
        program = compile_program(graph, target, weights, Arena(), state, mode)
        if program.single is None:
            raise UnsupportedError(f"{mode}: no kernel, got {', '.join(program.fallback)}, expected one for each node")
        self.native = program.single
        lowered = self.native.lowered
        self.inputs = {name: np.zeros(view.shape, view.dtype.numpy) for name, view in lowered.inputs.items()}
        (output,) = lowered.outputs.values()
        self.output = np.zeros(output.shape, output.dtype.numpy)
        self._table = self.native.pointers([*self.inputs.values(), self.output])

    def call(self, samplers: Any = None, sampler_count: int = 0) -> None:
        """One run over the arrays; `samplers` as in `NativeProgram.call`."""
        self.native.call(self._table, samplers, sampler_count)

"""Runs an encoder: one program for texts of any length up to the context."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Tokens

import numpy as np

from ingot.dim import AtMost
from ingot.errors import UnsupportedError
from ingot.load.hf import LanguageModel
from ingot.lower import Target
from ingot.lower.weights import WeightStore
from ingot.passes import optimize
from ingot.run.arena import Arena
from ingot.run.native import pack_panels
from ingot.run.program import compile_program


class Encoder:
    """An encoder with arrays of its own, bound once. May be used from several threads, whose calls take turns."""

    def __init__(self, model: LanguageModel, target: Target):
        graph = model.graph.bind({"batch": 1, "length": AtMost(model.context, "length")})
        optimize(graph)
        self.weights = WeightStore(pack_panels, target.threads)
        program = compile_program(graph, target, self.weights, Arena(), mode="encode")
        if program.single is None:
            raise UnsupportedError(f"encode: no kernel, got {', '.join(program.fallback)}, expected one for each node")
        self._native = program.single
        lowered = self._native.lowered
        self._inputs = {name: np.zeros(view.shape, view.dtype.numpy) for name, view in lowered.inputs.items()}
        self._inputs["attention_mask"][:] = 1
        (output,) = lowered.outputs.values()
        self._output = np.zeros(output.shape, output.dtype.numpy)
        self._table = self._native.pointers([*self._inputs.values(), self._output])
        self._lock = threading.Lock()

    def states(self, tokens: Tokens[int]) -> np.ndarray:
        """The last hidden state of each token, f32[len(tokens), width]."""
        with self._lock, self._native.lock:
            self._inputs["input_ids"][0, : len(tokens)] = tokens
            self._native.resize("length", len(tokens))
            self._native.call(self._table)
            return self._output[0, : len(tokens)].copy()

"""Runs an encoder: one program for texts of any length up to the context."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

import numpy as np

from ingot.dim import AtMost
from ingot.llm.bound import BoundProgram
from ingot.load.hf import LanguageModel
from ingot.locks import OwnedLock
from ingot.lower import Target
from ingot.lower.weights import WeightStore
from ingot.passes import optimize
from ingot.run.native import pack_panels


class Encoder:
    """An encoder with arrays of its own, bound once. May be used from several threads, whose calls take turns."""

    def __init__(self, model: LanguageModel, target: Target):
        graph = model.graph.bind({"batch": 1, "length": AtMost(model.context, "length")})
        optimize(graph)
        self._program = BoundProgram(graph, "encode", target, WeightStore(pack_panels, target.threads))
        self._program.inputs["attention_mask"][:] = 1
        self._lock = OwnedLock("encoder")

    def states(self, tokens: Tokens[int]) -> np.ndarray:
        """The last hidden state of each token, f32[len(tokens), width]."""
        program = self._program
        with self._lock.once():
            program.inputs["input_ids"][0, : len(tokens)] = tokens
            program.native.resize("length", len(tokens))
            program.call()
            return program.output[0, : len(tokens)].copy()

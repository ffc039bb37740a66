"""Execution of an encoder: one program for texts of any length up to the context."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

import numpy as np

from ingot.compile import Compiler, Mode
from ingot.ir.dim import AtMost
from ingot.load.hf import LanguageModel
from ingot.lower import Target
from ingot.run.modes import BoundModes
from ingot.support.locks import OwnedLock


class Encoder:
    """An encoder with its own arrays, bound once. Several threads may use it; their calls are serialized."""

    def __init__(self, model: LanguageModel, target: Target):
        mode = Mode("encode", {"batch": 1, "length": AtMost(model.context, "length")})
        self._modes = BoundModes(target)
        self._modes.add([Compiler(model.graph, target).compile(mode)])
        self._program = self._modes["encode"]
        self._program.inputs["attention_mask"][:] = 1
        self._lock = OwnedLock("encoder")

    def states(self, tokens: Tokens[int]) -> np.ndarray:
        """Return the last hidden state of each token, f32[len(tokens), width]."""
        program = self._program
        with self._lock.once():
            program.inputs["input_ids"][0, : len(tokens)] = tokens
            program.run({"length": len(tokens)})
            return program.output[0, : len(tokens)].copy()

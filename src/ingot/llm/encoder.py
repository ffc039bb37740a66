"""Execution of an encoder: texts of about the same length run together, up to a number of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence as Tokens

import numpy as np

from ingot.compile import Compiler, Mode
from ingot.ir.dim import AtMost
from ingot.load.hf import LanguageModel
from ingot.lower import Target
from ingot.run.modes import Bound, BoundModes
from ingot.support.locks import OwnedLock

BATCH_TOKENS = 512  # of a run, with padding: more do not make a token cheaper, and delay other texts
SHORTEST = 32  # tokens of the shortest bucket


class Encoder:
    """An encoder with its own arrays. Several threads may use it; their calls are serialized.

    Texts run in buckets: each is a program for texts of at most as many tokens as its name, a power of two, and is
    compiled on first use. On the CPU in f32, a text's result has the same bits in every batch.
    """

    def __init__(self, model: LanguageModel, target: Target):
        self._context = model.context
        self._compiler = Compiler(model.graph, target)
        self._modes = BoundModes(target)
        self._lock = OwnedLock("encoder")
        self._bucket(1)  # packs the weights

    def rows(self, length: int) -> int:
        """Return how many texts of a length may run together."""
        return max(1, BATCH_TOKENS // self.bucket(length))

    def bucket(self, length: int) -> int:
        """Return the longest text of the bucket of a length."""
        return min(max(SHORTEST, 1 << (length - 1).bit_length()), self._context)

    @property
    def nbytes(self) -> int:
        """Bytes of weights and activations."""
        programs = [program for _, program in list(self._modes.items())]  # a thread may add one
        return self._modes.weight_bytes + sum(program.native.arena_bytes for program in programs)

    def states(self, tokens: Tokens[int]) -> np.ndarray:
        """Return the last hidden state of each token, f32[len(tokens), width]."""
        return self.run([tokens])[0]

    def run(self, texts: Tokens[Tokens[int]], types: Tokens[Tokens[int]] | None = None) -> list[np.ndarray]:
        """Return the output of each text: its last hidden states, f32[tokens, width], or scores, f32[labels].

        texts: at most `rows` of the longest one. types: the type of each token, 0 by default.
        """
        lengths = [len(tokens) for tokens in texts]
        with self._lock.once():
            program = self._bucket(max(lengths))
            shape = len(texts), max(lengths)
            inputs = {name: _used(array, shape) for name, array in program.inputs.items()}
            for array in inputs.values():
                array[:] = 0
            for row, tokens in enumerate(texts):
                inputs["input_ids"][row, : len(tokens)] = tokens
                inputs["attention_mask"][row, : len(tokens)] = 1
                if types is not None:
                    inputs["token_type_ids"][row, : len(tokens)] = types[row]
            program.run({"batch": len(texts), "length": max(lengths)})
            whole = program.output
            if whole.ndim == 2:
                return [row.copy() for row in _used(whole, (len(texts), whole.shape[1]))]
            output = _used(whole, (*shape, whole.shape[2]))
            return [output[row, :length].copy() for row, length in enumerate(lengths)]

    def _bucket(self, length: int) -> Bound:
        """Return the program for texts of a length."""
        longest = self.bucket(length)
        name = f"encode {longest}"
        if name not in self._modes:
            sizes = {"batch": AtMost(self.rows(longest), "batch"), "length": AtMost(longest, "length")}
            self._modes.add([self._compiler.compile(Mode(name, sizes))])
        return self._modes[name]


def _used(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the used part of an array of a program with limits, which stores it without gaps."""
    return array.reshape(-1)[: math.prod(shape)].reshape(shape)

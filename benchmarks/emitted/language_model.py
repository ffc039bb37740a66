"""A language model as emitted C, called through the functions of its header, in a process of its own.

It answers as `benchmarks.llm.engines` does, and has Ingot, too.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.emitted.library import aligned, begun, library
from benchmarks.llm.engines import CHUNK, Ingot, serve
from benchmarks.llm.greedy import Greedy
from benchmarks.llm.model import paths, write_tokenizer


class Sampling(ctypes.Structure):
    """`model_sampling`."""

    _fields_ = (
        *((name, ctypes.c_float) for name in ("temperature", "top_p", "min_p", "repetition_penalty")),
        *((f"{name}_penalty", ctypes.c_float) for name in ("presence", "frequency")),
        ("top_k", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
    )


def sizes_of(header: str) -> dict[str, int]:
    """The numbers that a header defines, some as sums, without MODEL_ before their names."""
    found: dict[str, int] = {}
    for name, text in re.findall(r"^#define MODEL_(\w+) ([\w+ ()]+?)(?: /\*.*)?$", header, re.MULTILINE):
        found[name] = sum(found.get(word) or int(word) for word in re.findall(r"\w+", text.replace("MODEL_", "")))
    return found


class Emitted(Greedy):
    """The functions of the header, with a state of one text."""

    def __init__(self, folder: Path, precision: str, threads: int) -> None:
        from ingot.emit.language.model import emit_language_model

        hf, _ = paths(folder, precision)
        write_tokenizer(hf)
        with tempfile.TemporaryDirectory() as where:
            c = Path(where)
            emit_language_model(hf, c, context=2 * CHUNK, precision=precision, threads=threads)
            self.model = library(c)
            self.state, self.buffers = begun(self.model, c, threads)
            sizes = sizes_of((c / "model.h").read_text())
        self.rows = sizes["PREFILL_ROWS"]
        self.ids, self.take = np.zeros(self.rows, np.int32), np.zeros(1, np.int32)
        self.positions = np.arange(sizes["CONTEXT"], dtype=np.int32)
        self.owners, self.blocks = np.zeros(self.rows, np.int32), np.arange(sizes["BLOCKS"], dtype=np.int32)
        self.scores = np.zeros(sizes["VOCAB"], np.float32)
        self.outputs = (ctypes.c_void_p * 1)(self.scores.ctypes.data)
        arrays = (self.ids, self.positions, self.owners, self.blocks, self.take)
        self.inputs = (ctypes.c_int64 * 6)(*(array.ctypes.data for array in arrays))
        self.sampler = aligned(sizes["SAMPLER_BYTES"])
        greedily = Sampling(top_p=1, repetition_penalty=1)
        self.model.model_sampler(ctypes.c_void_p(self.sampler.ctypes.data), ctypes.byref(greedily))

    def run(self, function: ctypes._CFuncPtr, ids: list[int], begin: int) -> None:
        """The logits after some tokens, which follow the first `begin`."""
        self.length = begin + len(ids)
        self.ids[: len(ids)], self.take[0] = ids, len(ids) - 1
        self.inputs[1], self.inputs[5] = self.positions.ctypes.data + 4 * begin, len(ids)
        if code := function(self.state, self.inputs, self.outputs):
            raise RuntimeError(f"the model's function returns {code}")

    def drawn(self) -> int:
        """The greatest of the logits, by the model's own sampler."""
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (self.sampler, self.scores))
        return int(self.model.model_sample(*pointers))

    def start(self, ids: list[int]) -> int:
        """The first token after a prompt."""
        for begin in range(0, len(ids), self.rows):
            self.run(self.model.model_prefill, ids[begin : begin + self.rows], begin)
        return self.drawn()

    def follow(self, token: int) -> int:
        self.run(self.model.model_decode, [token], self.length)
        return self.drawn()

    def logits(self, ids: list[int]) -> list[float]:
        self.start(ids)
        return self.scores.tolist()


if __name__ == "__main__":
    serve({"ingot": Ingot, "emitted": Emitted})

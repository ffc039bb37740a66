"""The C sampler of one sequence: a struct over arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ingot.run.library import load
from ingot.support import abi

_REFUSED: dict[str, Callable[[float], bool]] = {
    "INGOT_SAMPLE_NAN": math.isnan,
    "INGOT_SAMPLE_INFINITE": math.inf.__eq__,
    "INGOT_SAMPLE_NONE": (-math.inf).__eq__,
}


class NativeSampler:
    """An `ingot_sampler`, with its kernel for this CPU. `struct`: its fields, readable and writable as attributes."""

    def __init__(self, arrays: Mapping[str, np.ndarray], fields: Mapping[str, Any]):
        """arrays: for the pointer fields, by field name, referenced as long as the sampler lives; an empty array leaves
        its pointer null.
        """
        library = load()
        self._arrays = dict(arrays)
        self._draw, self._from_buffer = library.entry.ingot_sample, library.ffi.from_buffer
        self._floats, struct = library.types["float[]"], library.types["ingot_sampler"].item
        types = dict(struct.fields)
        pointers = {
            name: library.ffi.cast(types[name].type, array.ctypes.data)
            for name, array in self._arrays.items()
            if array.size
        }
        kernel = library.kernel("sample_f32", library.isa())
        self.struct = library.new("ingot_sampler", {**pointers, **fields, "kernel": kernel})
        self.nbytes = sum(array.nbytes for array in self._arrays.values()) + library.ffi.sizeof(struct)

    @property
    def is_greedy(self) -> bool:
        """Whether the token with the largest logit is chosen, without any change of the logits."""
        return not any(array.size for array in self._arrays.values())

    def take(self, token: int, logit: float) -> None:
        """Record a greedy token like `draw`, when the first largest logit (or NaN) has been found elsewhere."""
        status = next((name for name, is_so in _REFUSED.items() if is_so(logit)), None)
        self.struct.status = 0 if status is None else abi.constant(status)
        self.struct.token = token if status is None else -1

    def draw(self, logits: np.ndarray) -> int:
        """Sample a token from f32[vocabulary], row-major; -1 and a reason in `struct.status` if there is none."""
        return int(self._draw(self.struct, self._from_buffer(self._floats, logits)))

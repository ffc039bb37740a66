"""Types of GGUF blocks that are rewritten, without loss, to a type that kernels read.

Bytes of the types: github.com/ggml-org/llama.cpp, ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A type of the same elements, and the function from blocks u8 [blocks, bytes] to its blocks."""

    type: str
    rewrite: Callable[[np.ndarray], np.ndarray]


def _tq1_0(blocks: np.ndarray) -> np.ndarray:
    """Return the blocks of TQ2_0: five digits of base 3 in a byte become two bits each."""
    parts = []
    for begin, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = np.array([3**digit for digit in range(digits)], np.uint8)[:, None]
        fractions = blocks[:, None, begin:end] * powers  # modulo 256: the digit is the first of a fraction in base 3
        parts.append((fractions.astype(np.uint16) * np.uint16(3) >> np.uint16(8)).reshape(len(blocks), -1))
    fields = np.concatenate(parts, 1).astype(np.uint8).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    packed = np.bitwise_or.reduce(fields << shifts, axis=2)
    return np.concatenate([packed.reshape(len(blocks), 64), blocks[:, 52:54]], 1)


REWRITTEN = {"tq1_0": Rewritten("tq2_0", _tq1_0)}

"""Types of GGUF blocks that are rewritten, without loss, to a type that kernels read.

Bytes of the types: github.com/ggml-org/llama.cpp, ggml-common.h; MXFP4: OCP Microscaling Formats, 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

# The values of MXFP4's indices, doubled.
_FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A type of the same elements, and the function from blocks u8 [blocks, bytes] to its blocks or numbers."""

    type: str
    rewrite: Callable[[np.ndarray], np.ndarray]


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    """Return bf16 [blocks, 32]: a number of four bits times a power of two, which bf16 has exactly."""
    packed = blocks[:, 1:]
    indices = np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], 1)
    with np.errstate(over="ignore"):
        scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
        return (_FP4_VALUES[indices] * scales).astype(ml_dtypes.bfloat16)


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


REWRITTEN = {"mxfp4": Rewritten("bf16", _mxfp4), "tq1_0": Rewritten("tq2_0", _tq1_0)}

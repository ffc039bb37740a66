"""Limits of sizes by which lowering chooses between CPU kernels: the one table of them.

Kernels whose results differ in bits have one limit for every instruction set, so that every CPU gets the same bits;
those with the same bits may have a limit for each set. No limit is measured in a session. `ingot bench kernels --grid`
checks the choices on shapes of well-known models.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.ir.dtype import DType, bf16, f32
from ingot.lower.target import Target

# -- kernels that round differently ---------------------------------------------------------------------------

# With this many keys of a dtype, attention runs online. The exception: if all query rows of a key head form one block,
# they need no packed copy of the keys, and their complete score rows are small.
ONLINE_KEYS: dict[DType, int] = {f32: 2048, bf16: 4096}
TRANSFORMED_LEAST = 16  # channels on both sides of a transformed filter
# The largest filter that is transformed, in elements of one kernel position, by the dtype of its panels.
TRANSFORMED_MOST: dict[DType, int] = {f32: 1 << 20, bf16: 1 << 18}
DOT_ROWS = 16  # up to this many rows are a batch of decoding: each row must give the same bits as alone

# -- kernels with the same bits -------------------------------------------------------------------------------

GEMV_ROWS = 4  # up to this many rows, a kernel that reads panels once is faster
MANY_ROWS = 64  # from this many rows on, packing a matrix in each product costs little
BAND_LEAST = 1 << 20  # bytes of an image from which on convolutions run by bands of rows
BAND_WEIGHTS = 1 << 16  # most bytes of weights that are read again for each band of rows
FEW_CHANNELS = 4  # up to this many channels, the kernel gathers from planes without a copy


@dataclass(frozen=True, slots=True)
class SetLimits:
    """The limits of an instruction set.

    window_channels: up to this many channels, a 1 x 1 convolution of many pixels goes by windows, all panels of a few
    pixels at a time, rather than as a product, one panel of many pixels at a time. band_bytes: of rows of images in a
    band of convolutions, for each thread: twice as many bytes stay in the second-level cache, which has 512 KiB on many
    CPUs with AVX2, and 1 or 2 MiB on most with AVX-512.
    """

    window_channels: int = 0
    band_bytes: int = 7 << 15


_BY_SET = {
    "avx2": SetLimits(window_channels=40), "avx2vnni": SetLimits(window_channels=40),
    "avx512": SetLimits(band_bytes=7 << 17),
}  # fmt: skip
_OTHER = SetLimits()


def set_limits(target: Target) -> SetLimits:
    """Return the limits of the target's instruction set."""
    return _BY_SET.get(target.isa.split("+")[0], _OTHER)

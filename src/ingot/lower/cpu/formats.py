"""The formats that a CPU has kernels for: one row each."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import abi
from ingot.dtype import DType, bf16, f16, f32, i4, i8, u4, u8
from ingot.lower.formats import Block, Dots, Format
from ingot.ops.blocks import BLOCKS

PANEL = abi.constant("INGOT_PANEL")

F32 = Format("f32", f32, PANEL, Block(1, 4), Block(1, 4), None, frozenset(), "pack_f32", "f32", "f32")
BF16 = Format(
    "bf16", bf16, PANEL, Block(1, 2), Block(2, 4), "cast", frozenset(("concat", "permute", "reshape", "slice")),
    "pack_bf16", "f32_bf16", "bf16", Dots("bf16", bf16),
)  # fmt: skip

_CODES = abi.constant("INGOT_CODES_BLOCK")
_ROW_MOVES = frozenset(("concat", "permute", "slice"))


def _codes(name: str, dtype: DType, zeros: bool, flip: int) -> Format:
    """Codes in panels with a scale of f16, and perhaps a zero point, for each block of a column."""
    block = Block(_CODES, dtype.nbytes(_CODES) + 2 + zeros)
    return Format(
        name, dtype, PANEL, Block(1, 1), block, "dequantize", _ROW_MOVES, f"pack_{name}", None, name,
        Dots(name, i8, few=True), f16, zeros, flip,
    )  # fmt: skip


INT8, INT4 = _codes("int8", i8, False, 128), _codes("int4", i4, False, 8)
INT8_ZEROS, INT4_ZEROS = _codes("int8_zeros", u8, True, 0), _codes("int4_zeros", u4, True, 0)

_AS_CODES = {"q4_0": "int4", "q8_0": "int8"}  # whose panels hold the same


def _blocks(type: str) -> Format:
    """Blocks of GGUF files, whose panels take as many bytes as the file."""
    block, kernels = Block(BLOCKS[type].elements, BLOCKS[type].nbytes), _AS_CODES.get(type, type)
    return Format(
        type, u8, PANEL, block, block, "decode_blocks", frozenset(("concat", "slice")), f"pack_{type}", None, kernels,
        Dots(kernels, i8, few=True), type=type,
    )  # fmt: skip


# The last that a matrix is stored in is taken; F32, the first, holds every matrix of floats.
FORMATS = (F32, BF16, INT8, INT4, INT8_ZEROS, INT4_ZEROS, *map(_blocks, BLOCKS))


def rounded_bytes(k: int) -> int:
    """The bytes of a row of k elements that `round_rows_i8` has rounded, up to where the next may begin."""
    blocks, groups = -(-k // _CODES), -(-k // abi.constant("INGOT_ROUND_GROUP"))
    return -(-(blocks * (_CODES + 8) + 2 * blocks + 2 * (blocks % 2) + 4 * groups) // 64) * 64


def pack_fields(shape: Sequence[int], strides: Sequence[int], transposed: bool) -> dict[str, int | float]:
    """The fields of pack_args that say how a matrix lies: [k, n], or [n, k] when transposed. strides: in items."""
    n, k = (0, 1) if transposed else (1, 0)
    return {"n": shape[n], "k": shape[k], "n_stride": strides[n], "k_stride": strides[k], "scale": 1.0}

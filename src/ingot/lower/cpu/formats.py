"""The weight formats that a CPU has kernels for, one table entry each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ingot.ir.dtype import DType, bf16, f16, f32, i4, i8, i32, u4, u8
from ingot.lower.formats import Block, Dots, Format
from ingot.ops.blocks import BLOCKS
from ingot.support import abi

PANEL = abi.constant("INGOT_PANEL")

F32 = Format("f32", f32, PANEL, Block(1, 4), Block(1, 4), None, frozenset(), "pack_f32", "f32", "f32")
_MOVES = frozenset(("concat", "permute", "reshape", "slice"))
BF16 = Format(
    "bf16", bf16, PANEL, Block(1, 2), Block(2, 4), "cast", _MOVES, "pack_bf16", "f32_bf16", "bf16",
    (Dots("bf16", bf16),),
)  # fmt: skip
F16 = Format("f16", f16, PANEL, Block(1, 2), Block(2, 4), "cast", _MOVES, "pack_f16", "f32_f16", "f16")

_BLOCK, _WIDE, _ROW = (abi.constant(f"INGOT_QUANT_{name}") for name in ("BLOCK", "WIDE", "LONGEST"))
_ROW_MOVES = frozenset(("concat", "permute", "slice"))
_GROUPS = {_BLOCK: "", _WIDE: f"_{_WIDE}", _ROW: "_row"}


def _rounded_dots(family: str) -> tuple[Dots, ...]:
    """Return the dot-product families of a quantized format, which round rows to integers."""
    return Dots(family, i8, few=True), Dots(f"i24_{family}", i32, few=True)


def _qweight(dtype: DType, group: int, scales: DType = f16) -> Format:
    """Return the format of quantized weights in panels.

    Each `group` elements of a column share a scale, and a zero point if the dtype is unsigned. Rows are rounded to
    integers only for scales of f16.
    """
    zeros = dtype in (u4, u8)
    name = f"int{dtype.bits}{_GROUPS[group]}{'_zp' if zeros else ''}{'' if scales is f16 else f'_{scales}'}"
    dots = _rounded_dots(name) if scales is f16 else ()
    return Format(
        name, dtype, PANEL, Block(1, 1), Block(_BLOCK, dtype.nbytes(_BLOCK)), "dequantize", _ROW_MOVES, f"pack_{name}",
        f"f32_{name}", name, dots, scales, zeros, 0 if zeros else 1 << dtype.bits - 1,
        Block(group, scales.nbytes(1) + zeros),
    )  # fmt: skip


_KINDS = tuple(itertools.product((_BLOCK, _WIDE), (i8, i4, u8, u4)))
CODES = (
    *(_qweight(dtype, group) for group, dtype in _KINDS),
    _qweight(i8, _ROW),
    *(_qweight(dtype, group, f32) for group, dtype in _KINDS),
)

# 8-bit integers without scales, stored as i8 in panels; products of integers read them.
PLAIN_I8, PLAIN_U8 = (
    Format(str(dtype), dtype, PANEL, Block(1, 1), Block(4, 4), None, frozenset(), "pack_bytes", None, "", flip=flip)
    for dtype, flip in ((i8, 0), (u8, 128))
)

_AS_QUANT = {"q4_0": "int4", "q8_0": "int8"}  # these panels have the same layout


def _blocks(type: str) -> Format:
    """Return the format of GGUF blocks."""
    row, kernels = BLOCKS[type], _AS_QUANT.get(type, type)
    packed = Block(row.elements, abi.packed_blocks().get(type, row.nbytes))
    return Format(
        type, u8, PANEL, Block(row.elements, row.nbytes), packed, "decode_blocks", frozenset(("concat", "slice")),
        f"pack_{type}", None, kernels, _rounded_dots(kernels), type=type,
    )  # fmt: skip


# A matrix uses the last format that it is stored in; F32, the first, fits every matrix of floats.
FORMATS = (F32, BF16, F16, *CODES, *map(_blocks, BLOCKS))


_LIMBS = {i8: 1, i32: 3}  # i8 values per element of a row: i24 takes three limbs


def rounded_bytes(k: int, rows: DType) -> int:
    """Return the bytes of a row of k elements rounded to i8 or i32, up to the start of the next row."""
    group = abi.constant("INGOT_ROUND_GROUP")
    sums = Block(_BLOCK, 4).size(k) + Block(_WIDE, 4).size(k) + Block(group, 4 + 4).size(k)
    halves = Block(_BLOCK, 4).size(k) + Block(2 * _BLOCK, 4).size(k)
    return _LIMBS[rows] * Block(64, 64).size(Block(_BLOCK, _BLOCK).size(k) + sums + halves)


def pack_fields(shape: Sequence[int], strides: Sequence[int], transposed: bool) -> dict[str, int | float]:
    """Return the pack_args fields for the layout of a matrix [k, n], or [n, k] when transposed. strides: in items."""
    n, k = (0, 1) if transposed else (1, 0)
    return {"n": shape[n], "k": shape[k], "n_stride": strides[n], "k_stride": strides[k], "scale": 1.0}

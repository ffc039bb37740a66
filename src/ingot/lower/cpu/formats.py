"""The formats that a CPU has kernels for: one row each."""

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
    """The kernels of codes, or blocks, that round rows to integers."""
    return Dots(family, i8, few=True), Dots(f"i24_{family}", i32, few=True)


def _qweight(dtype: DType, group: int, scales: DType = f16) -> Format:
    """Codes in panels with a scale, and for unsigned ones a zero point, for so many elements of a column. Rows are
    rounded beside scales of f16 alone.
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

# Integers of 8 bits that have no scale, as i8 in panels; products of integers read them.
WHOLE_I8, WHOLE_U8 = (
    Format(str(dtype), dtype, PANEL, Block(1, 1), Block(4, 4), None, frozenset(), "pack_bytes", None, "", flip=flip)
    for dtype, flip in ((i8, 0), (u8, 128))
)

_AS_QUANT = {"q4_0": "int4", "q8_0": "int8"}  # whose panels hold the same


def _blocks(type: str) -> Format:
    """Blocks of GGUF files, whose panels take as many bytes as the file."""
    block, kernels = Block(BLOCKS[type].elements, BLOCKS[type].nbytes), _AS_QUANT.get(type, type)
    return Format(
        type, u8, PANEL, block, block, "decode_blocks", frozenset(("concat", "slice")), f"pack_{type}", None, kernels,
        _rounded_dots(kernels), type=type,
    )  # fmt: skip


# The last that a matrix is stored in is taken; F32, the first, holds every matrix of floats.
FORMATS = (F32, BF16, F16, *CODES, *map(_blocks, BLOCKS))


_DIGITS = {i8: 1, i32: 3}  # rows of bytes that a row becomes


def rounded_bytes(k: int, rows: DType) -> int:
    """The bytes of a row of k elements that was rounded to i8, or to i32, up to where the next may begin."""
    group = abi.constant("INGOT_ROUND_GROUP")
    sums = Block(_BLOCK, 4).size(k) + Block(_WIDE, 4).size(k) + Block(group, 4 + 4).size(k)
    halves = Block(_BLOCK, 4).size(k) + Block(2 * _BLOCK, 4).size(k)
    return _DIGITS[rows] * Block(64, 64).size(Block(_BLOCK, _BLOCK).size(k) + sums + halves)


def pack_fields(shape: Sequence[int], strides: Sequence[int], transposed: bool) -> dict[str, int | float]:
    """The fields of pack_args that say how a matrix lies: [k, n], or [n, k] when transposed. strides: in items."""
    n, k = (0, 1) if transposed else (1, 0)
    return {"n": shape[n], "k": shape[k], "n_stride": strides[n], "k_stride": strides[k], "scale": 1.0}

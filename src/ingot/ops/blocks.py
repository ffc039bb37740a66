"""Blocks of GGUF files: a few bytes that encode a fixed number of elements and their scales.

Types and their bytes: github.com/ggml-org/llama.cpp, ggml-common.h. A decoder performs the f32 operations of the type's
definition in the same order, so that the elements equal those of other readers bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import DType, f16, f32, u8
from ingot.ir.graph import TensorType
from ingot.ops.block_grids import GRID_BLOCKS
from ingot.ops.define import op, sample
from ingot.ops.quantize import FLOATS
from ingot.support import abi

Type = Literal[
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
    "tq2_0", "iq3_s", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs",
]  # fmt: skip

# The values of the four-bit indices of IQ4.
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)

# The numbers of MXFP4, doubled (OCP Microscaling Formats, 2023).
_FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


@dataclass(frozen=True, slots=True)
class BlockType:
    """A block type: `nbytes` store `elements`; decode converts u8 [blocks, nbytes] to f32 [blocks, elements]."""

    elements: int
    nbytes: int
    decode: Callable[[np.ndarray], np.ndarray]


def _planes(packed: np.ndarray, width: int, bits: int) -> np.ndarray:
    """Unpack fields of `bits` bits from bytes [blocks, n]: of every `width` bytes, the lowest fields first, then higher
    ones.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    count, nbytes = packed.shape
    fields = packed.reshape(count, nbytes // width, 1, width) >> shifts & np.uint8(2**bits - 1)
    return fields.reshape(count, 8 // bits * nbytes)


def _half(blocks: np.ndarray, start: int) -> np.ndarray:
    """Return the f16 at a byte offset, as f32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _scaled(scales: np.ndarray, quantized: np.ndarray, mins: np.ndarray | None = None) -> np.ndarray:
    """Multiply quantized values [blocks, elements] by the scales of groups [blocks, groups], and subtract the groups'
    mins.
    """
    size = quantized.shape[1] // scales.shape[1]
    groups = quantized.astype(np.float32).reshape(*scales.shape, size) * scales[:, :, None]
    return (groups if mins is None else groups - mins[:, :, None]).reshape(quantized.shape)


def _decode_q4_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _planes(blocks[:, 2:], 16, 4).astype(np.int8) - np.int8(8))


def _decode_q4_1(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _planes(blocks[:, 4:], 16, 4)) + _half(blocks, 2)


def _decode_q5_0(blocks: np.ndarray) -> np.ndarray:
    quantized = _planes(blocks[:, 6:], 16, 4) | _planes(blocks[:, 2:6], 1, 1) << np.uint8(4)
    return _scaled(_half(blocks, 0), quantized.astype(np.int8) - np.int8(16))


def _decode_q5_1(blocks: np.ndarray) -> np.ndarray:
    quantized = _planes(blocks[:, 8:], 16, 4) | _planes(blocks[:, 4:8], 1, 1) << np.uint8(4)
    return _scaled(_half(blocks, 0), quantized) + _half(blocks, 2)


def _decode_q8_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), np.ascontiguousarray(blocks[:, 2:]).view(np.int8))


def _decode_q2_k(blocks: np.ndarray) -> np.ndarray:
    scales = _half(blocks, 80) * (blocks[:, :16] & np.uint8(15)).astype(np.float32)
    mins = _half(blocks, 82) * (blocks[:, :16] >> np.uint8(4)).astype(np.float32)
    return _scaled(scales, _planes(blocks[:, 16:80], 32, 2), mins)


def _decode_q3_k(blocks: np.ndarray) -> np.ndarray:
    above = _planes(blocks[:, 104:108], 4, 2) << np.uint8(4)
    scales = (_planes(blocks[:, 96:104], 8, 4) | above).astype(np.int8) - np.int8(32)
    missing = (_planes(blocks[:, :32], 32, 1) ^ np.uint8(1)) << np.uint8(2)  # 4 less where the bit is 0
    quantized = _planes(blocks[:, 32:96], 32, 2).astype(np.int8) - missing.astype(np.int8)
    return _scaled(_half(blocks, 108) * scales.astype(np.float32), quantized)


def _scales_and_mins(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scales and mins of the eight groups of Q4_K and Q5_K: six bits each; the upper two bits of the last four
    groups are stored with the first four.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    low, high, six = np.uint8(15), np.uint8(48), np.uint8(63)
    scales = np.concatenate([first & six, third & low | first >> np.uint8(2) & high], 1)
    mins = np.concatenate([second & six, third >> np.uint8(4) | second >> np.uint8(2) & high], 1)
    return _half(blocks, 0) * scales.astype(np.float32), _half(blocks, 2) * mins.astype(np.float32)


def _decode_q4_k(blocks: np.ndarray) -> np.ndarray:
    scales, mins = _scales_and_mins(blocks)
    return _scaled(scales, _planes(blocks[:, 16:], 32, 4), mins)


def _decode_q5_k(blocks: np.ndarray) -> np.ndarray:
    scales, mins = _scales_and_mins(blocks)
    quantized = _planes(blocks[:, 48:], 32, 4) | _planes(blocks[:, 16:48], 32, 1) << np.uint8(4)
    return _scaled(scales, quantized, mins)


def _decode_q6_k(blocks: np.ndarray) -> np.ndarray:
    quantized = _planes(blocks[:, :128], 64, 4) | _planes(blocks[:, 128:192], 32, 2) << np.uint8(4)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _scaled(_half(blocks, 208) * scales, quantized.astype(np.int8) - np.int8(32))


def _decode_iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _IQ4_VALUES[_planes(blocks[:, 2:], 16, 4)])


def _decode_iq4_xs(blocks: np.ndarray) -> np.ndarray:
    scales = _planes(blocks[:, 4:8], 1, 4) | _planes(blocks[:, 2:4], 1, 2) << np.uint8(4)
    scales = _half(blocks, 0) * (scales.astype(np.int8) - np.int8(32)).astype(np.float32)
    return _scaled(scales, _IQ4_VALUES[_planes(blocks[:, 8:], 16, 4)])


def _decode_mxfp4(blocks: np.ndarray) -> np.ndarray:
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return _scaled(scales, _FP4_VALUES[_planes(blocks[:, 1:], 16, 4)])


def _decode_tq2_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 64), _planes(blocks[:, :64], 32, 2).astype(np.int8) - np.int8(1))


def _decode_iq3_s(blocks: np.ndarray) -> np.ndarray:
    index = blocks[:, 2:66].astype(np.uint16) | _planes(blocks[:, 66:74], 1, 1).astype(np.uint16) << np.uint16(8)
    scales = _half(blocks, 0) * (2 * _planes(blocks[:, 106:110], 1, 4) + 1).astype(np.float32)
    negative = _planes(blocks[:, 74:106], 1, 1).astype(bool)
    grid = np.array(abi.blocks_grid(), np.uint16)
    magnitudes = (2 * (grid[:, None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)) + 1).astype(np.float32)
    quantized = magnitudes[index].reshape(negative.shape)
    return _scaled(scales, np.where(negative, -quantized, quantized))


BLOCKS = {
    "q4_0": BlockType(32, 18, _decode_q4_0),
    "q4_1": BlockType(32, 20, _decode_q4_1),
    "q5_0": BlockType(32, 22, _decode_q5_0),
    "q5_1": BlockType(32, 24, _decode_q5_1),
    "q8_0": BlockType(32, 34, _decode_q8_0),
    "q2_k": BlockType(256, 84, _decode_q2_k),
    "q3_k": BlockType(256, 110, _decode_q3_k),
    "q4_k": BlockType(256, 144, _decode_q4_k),
    "q5_k": BlockType(256, 176, _decode_q5_k),
    "q6_k": BlockType(256, 210, _decode_q6_k),
    "iq4_nl": BlockType(32, 18, _decode_iq4_nl),
    "iq4_xs": BlockType(256, 136, _decode_iq4_xs),
    "mxfp4": BlockType(32, 17, _decode_mxfp4),
    "tq2_0": BlockType(256, 66, _decode_tq2_0),
    "iq3_s": BlockType(256, 110, _decode_iq3_s),
}

# Types that no kernel reads: their matrices become floats.
FLOAT_BLOCKS = {name: BlockType(256, nbytes, decode) for name, (nbytes, decode) in GRID_BLOCKS.items()}
ALL_BLOCKS = BLOCKS | FLOAT_BLOCKS


def _rows(name: str, x: TensorType, type: str) -> tuple:
    """Return the shape of the elements."""
    nbytes, elements = ALL_BLOCKS[type].nbytes, ALL_BLOCKS[type].elements
    last = x.shape[-1] if x.rank else 0
    if x.dtype is not u8 or not x.rank or (isinstance(last, int) and last % nbytes):
        raise ShapeError(f"{name}: bad operand, got {x}, expected u8 with a multiple of {nbytes} in the last dim")
    return (*x.shape[:-1], None if last is None else last // nbytes * elements)


def _blocks_of(x: np.ndarray, type: str) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1, ALL_BLOCKS[type].nbytes)


def _infer_decode(x, *, type, dtype):
    if dtype not in FLOATS:
        raise ShapeError(f"decode_blocks: bad dtype, got {dtype}, expected f32, f16 or bf16")
    return TensorType(dtype, _rows("decode_blocks", x, type))


@op(
    computes=False,
    infer=_infer_decode,
    samples=[sample(f"x:u8<60[2,{2 * row.nbytes}]", type=name, dtype=f32) for name, row in ALL_BLOCKS.items()]
    + [sample("x:u8<60[0,36]", type="q4_0", dtype=f32)],
)
def decode_blocks(x, *, type: Type, dtype: DType):
    """The elements [..., elements] of rows of GGUF blocks, u8[..., bytes]: computed in f32, rounded once."""
    with np.errstate(over="ignore", invalid="ignore"):
        elements = ALL_BLOCKS[type].decode(_blocks_of(x, type))
        elements = elements.astype(dtype.numpy, copy=False)
    return elements.reshape(*x.shape[:-1], x.shape[-1] // ALL_BLOCKS[type].nbytes * ALL_BLOCKS[type].elements)


def _infer_affine(x, scale, minimum, *, type):
    elements = BLOCKS[type].elements
    fits = (x.dtype, x.rank, scale.dtype, scale.rank) == (u8, 2, f16, 2) and scale == minimum
    if fits and x.is_static and scale.is_static:
        (n, k), (rows, groups) = x.shape, scale.shape
        fits = rows == n and groups > 0 and k % (groups * elements) == 0
    if not fits:
        expected = f"expected u8 rows and two f16 for each of their groups of a multiple of {elements} elements"
        raise ShapeError(f"affine_blocks: got {x}, {scale} and {minimum}, {expected}")
    n, k = x.shape
    return TensorType(u8, (n, None if k is None else k // elements * BLOCKS[type].nbytes))


@op(
    computes=False,
    infer=_infer_affine,
    samples=[
        sample("x:u8<16[3,128] s:f16>0.01<0.1[3,2] m:f16>-1<1[3,2]", type="q4_1"),
        sample("x:u8<32[2,64] s:f16>0.01<0.1[2,2] m:f16>-1<1[2,2]", type="q5_1"),
        sample("x:u8<16[0,32] s:f16>0.01<0.1[0,1] m:f16>-1<1[0,1]", type="q4_1"),
    ],
)
def affine_blocks(x, scale, minimum, *, type: Literal["q4_1", "q5_1"]):
    """The rows of GGUF blocks, u8[n, bytes], of elements x * scale + minimum.

    x: integers of 4 or 5 bits, u8[n, k]; scale and minimum: one for each group of columns, f16[n, groups].
    """
    elements = BLOCKS[type].elements
    n, blocks = x.shape[0], x.shape[1] // elements
    halves = x.reshape(n, blocks, 2, elements // 2)
    fields = [halves[:, :, 0] & np.uint8(15) | (halves[:, :, 1] & np.uint8(15)) << np.uint8(4)]
    if type == "q5_1":
        fields.insert(0, np.packbits(x.reshape(n, blocks, elements) >> np.uint8(4) & np.uint8(1), 2, "little"))
    heads = np.repeat(np.stack([scale, minimum], 2).astype("<f2"), blocks // scale.shape[1], 1).view(np.uint8)
    return np.concatenate([heads, *fields], 2).reshape(n, blocks * BLOCKS[type].nbytes)

"""Blocks of GGUF files: a few bytes that hold the numbers of so many elements, and what these are scaled by.

Types and their bytes: github.com/ggml-org/llama.cpp, ggml-common.h. Each step of a decoder is one in f32 of the type's
own definition, so that the numbers are those that other readers get, bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import DType, f32, u8
from ingot.ir.graph import TensorType
from ingot.ops.define import op, sample
from ingot.ops.quantize import FLOATS

Type = Literal[
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"
]  # fmt: skip

# What the four bits of IQ4 stand for.
_IQ4_STEPS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


@dataclass(frozen=True, slots=True)
class BlockType:
    """elements of a block lie in nbytes; decode gives them, f32 [blocks, elements], of u8 [blocks, nbytes]."""

    elements: int
    nbytes: int
    decode: Callable[[np.ndarray], np.ndarray]


def _planes(packed: np.ndarray, width: int, bits: int) -> np.ndarray:
    """The fields of so many bits in bytes [blocks, n]: of every `width` bytes the lowest ones, then those above."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    count, nbytes = packed.shape
    fields = packed.reshape(count, nbytes // width, 1, width) >> shifts & np.uint8(2**bits - 1)
    return fields.reshape(count, 8 // bits * nbytes)


def _half(blocks: np.ndarray, start: int) -> np.ndarray:
    """The f16 from a byte on, as f32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _scaled(scales: np.ndarray, steps: np.ndarray, mins: np.ndarray | None = None) -> np.ndarray:
    """Steps [blocks, elements] by the scales of groups [blocks, groups], less what their mins are."""
    size = steps.shape[1] // scales.shape[1]
    groups = steps.astype(np.float32).reshape(*scales.shape, size) * scales[:, :, None]
    return (groups if mins is None else groups - mins[:, :, None]).reshape(steps.shape)


def _decode_q4_0(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _planes(blocks[:, 2:], 16, 4).astype(np.int8) - np.int8(8))


def _decode_q4_1(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _planes(blocks[:, 4:], 16, 4)) + _half(blocks, 2)


def _decode_q5_0(blocks: np.ndarray) -> np.ndarray:
    steps = _planes(blocks[:, 6:], 16, 4) | _planes(blocks[:, 2:6], 1, 1) << np.uint8(4)
    return _scaled(_half(blocks, 0), steps.astype(np.int8) - np.int8(16))


def _decode_q5_1(blocks: np.ndarray) -> np.ndarray:
    steps = _planes(blocks[:, 8:], 16, 4) | _planes(blocks[:, 4:8], 1, 1) << np.uint8(4)
    return _scaled(_half(blocks, 0), steps) + _half(blocks, 2)


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
    steps = _planes(blocks[:, 32:96], 32, 2).astype(np.int8) - missing.astype(np.int8)
    return _scaled(_half(blocks, 108) * scales.astype(np.float32), steps)


def _scales_and_mins(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of the eight groups of Q4_K and Q5_K: six bits each, the upper two of the last four in the first ones."""
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
    steps = _planes(blocks[:, 48:], 32, 4) | _planes(blocks[:, 16:48], 32, 1) << np.uint8(4)
    return _scaled(scales, steps, mins)


def _decode_q6_k(blocks: np.ndarray) -> np.ndarray:
    steps = _planes(blocks[:, :128], 64, 4) | _planes(blocks[:, 128:192], 32, 2) << np.uint8(4)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _scaled(_half(blocks, 208) * scales, steps.astype(np.int8) - np.int8(32))


def _decode_iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _scaled(_half(blocks, 0), _IQ4_STEPS[_planes(blocks[:, 2:], 16, 4)])


def _decode_iq4_xs(blocks: np.ndarray) -> np.ndarray:
    scales = _planes(blocks[:, 4:8], 1, 4) | _planes(blocks[:, 2:4], 1, 2) << np.uint8(4)
    scales = _half(blocks, 0) * (scales.astype(np.int8) - np.int8(32)).astype(np.float32)
    return _scaled(scales, _IQ4_STEPS[_planes(blocks[:, 8:], 16, 4)])


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
}


def _rows(name: str, x: TensorType, type: str) -> tuple:
    """The shape of the elements."""
    nbytes, elements = BLOCKS[type].nbytes, BLOCKS[type].elements
    last = x.shape[-1] if x.rank else 0
    if x.dtype is not u8 or not x.rank or (isinstance(last, int) and last % nbytes):
        raise ShapeError(f"{name}: bad operand, got {x}, expected u8 with a multiple of {nbytes} in the last dim")
    return (*x.shape[:-1], None if last is None else last // nbytes * elements)


def _blocks_of(x: np.ndarray, type: str) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1, BLOCKS[type].nbytes)


def _infer_decode(x, *, type, dtype):
    if dtype not in FLOATS:
        raise ShapeError(f"decode_blocks: bad dtype, got {dtype}, expected f32, f16 or bf16")
    return TensorType(dtype, _rows("decode_blocks", x, type))


@op(
    computes=False,
    infer=_infer_decode,
    samples=[sample(f"x:u8<60[2,{2 * row.nbytes}]", type=name, dtype=f32) for name, row in BLOCKS.items()]
    + [sample("x:u8<60[0,36]", type="q4_0", dtype=f32)],
)
def decode_blocks(x, *, type: Type, dtype: DType):
    """The elements [..., elements] of rows of blocks of a type of GGUF files, u8[..., bytes]: f32, rounded once."""
    with np.errstate(over="ignore", invalid="ignore"):
        elements = BLOCKS[type].decode(_blocks_of(x, type))
        elements = elements.astype(dtype.numpy, copy=False)
    return elements.reshape(*x.shape[:-1], x.shape[-1] // BLOCKS[type].nbytes * BLOCKS[type].elements)

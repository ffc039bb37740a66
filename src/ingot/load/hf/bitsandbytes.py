"""Matrices of a folder that are stored as 4-bit indices into a table of 16 numbers, as bitsandbytes writes NF4 and FP4
(Dettmers et al., "QLoRA", 2023, arXiv:2305.14314).

An element is the number at its index, times the largest magnitude of its block, computed in f32. Of `weight`, U8
[elements / 2, 1], the upper half of a byte is the first index. Largest magnitudes are f32, or with double quantization
indices into a second table, times the largest magnitude of a block of them, plus one offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.errors import LoadError, UnsupportedError
from ingot.ir.dtype import f32, i32, u8
from ingot.load.hf.quantized import QuantizedTensors
from ingot.load.hf.settings import MAX_SIZE
from ingot.load.hf.strict_json import parse_object, shown

MAX_STATE_BYTES = 1 << 16  # of the description of a matrix in 4 bits
_TYPES = ("nf4", "fp4")


@dataclass(frozen=True, slots=True)
class _State:
    """The description of a matrix. block: elements that share a magnitude; nested: magnitudes of a block of them, 0
    for magnitudes of f32; offset: of all magnitudes.
    """

    block: int
    nested: int
    offset: float


class BitsAndBytes(QuantizedTensors):
    """`weight` with `weight.absmax`, `weight.quant_map`, `weight.quant_state.bitsandbytes__nf4` or `__fp4`; and with
    `weight.nested_absmax` and `weight.nested_quant_map`.
    """

    def has(self, name: str) -> bool:
        return any(f"{name}.{part}" in self.folder.tensors for part in ("absmax", *map(_state_name, _TYPES)))

    def value(self, name: str, n: int, k: int) -> str:
        state = self._state(name, n, k)
        groups = k // state.block
        packed = self.stored(name, (u8,), (n * k // 2, 1)).array().reshape(n, k // 2)
        indices = self.add("cast", self.graph.add_weight(name, packed), name=f"{name}.bytes", dtype=i32)
        table = self.stored(f"{name}.quant_map", (f32,), (16,)).array()
        pairs = np.stack([np.repeat(table, 16), np.tile(table, 16)], 1)  # of each byte
        numbers = self.add("gather", self.constant(f"{name}.pairs", pairs), indices, name=f"{name}.numbers", axis=0)
        numbers = self.add("reshape", numbers, name=f"{name}.blocks", shape=(n, groups, state.block))
        magnitudes = self._magnitudes(name, state, n, groups)
        scaled = self.add("mul", numbers, magnitudes, name=f"{name}.scaled")
        return self.add("reshape", scaled, name=f"{name}.decoded", shape=(n, k))

    def _magnitudes(self, name: str, state: _State, n: int, groups: int) -> str:
        """Return the largest magnitude of each block, [n, groups, 1]."""
        absmax, shape = f"{name}.absmax", (n, groups, 1)
        if not state.nested:
            stored = self.stored(absmax, (f32,), (n * groups,)).array()
            return self.graph.add_weight(absmax, stored.reshape(shape))
        nested_size = min(state.nested, n * groups)
        blocks = -(-n * groups // nested_size)
        indices = self.weight(absmax, (u8,), (n * groups,))
        indices = self.add("cast", indices, name=f"{absmax}.indices", dtype=i32)
        table = self.weight(f"{name}.nested_quant_map", (f32,), (256,))
        numbers = self.add("gather", table, indices, name=f"{absmax}.numbers", axis=0)
        nested = self.graph.add_weight(
            f"{name}.nested_absmax", self.stored(f"{name}.nested_absmax", (f32,), (blocks,)).array().reshape(blocks, 1)
        )
        each = self.add("expand", nested, name=f"{absmax}.nested", shape=(blocks, nested_size))
        each = self.add("reshape", each, name=f"{absmax}.flat", shape=(blocks * nested_size,))
        each = self.add("slice", each, name=f"{absmax}.all", starts=(0,), stops=(n * groups,), steps=(1,))
        value = self.add("mul", numbers, each, name=f"{absmax}.scaled")
        offset = self.constant(f"{absmax}.offset", np.array(state.offset, np.float32))
        value = self.add("add", value, offset, name=f"{absmax}.moved")
        return self.add("reshape", value, name=f"{absmax}.blocks", shape=shape)

    def _state(self, name: str, n: int, k: int) -> _State:
        """Return the description of a matrix. Raises LoadError for another shape, UnsupportedError for rows of partial
        blocks.
        """
        tensors = self.folder.tensors
        key = next((each for type in _TYPES if (each := f"{name}.{_state_name(type)}") in tensors), None)
        if key is None:
            expected = " or ".join(f"{name}.{_state_name(type)}" for type in _TYPES)
            raise LoadError(f"{self.folder.path}: tensor {name!r} is quantized without a state, expected {expected}")
        where = f"{tensors[key].path}: tensor {key!r}"
        if tensors[key].nbytes > MAX_STATE_BYTES:
            raise LoadError(f"{where}: too large, got {tensors[key].nbytes} bytes, expected {MAX_STATE_BYTES}")
        content = self.stored(key, (u8,), (tensors[key].nbytes,)).array().tobytes()
        state = parse_object(content, where)
        if state.get("shape") != [n, k]:
            raise LoadError(f"{where}: shape: got {shown(state.get('shape'))}, expected {[n, k]}")
        block = _size(state, "blocksize", where)
        if k % block or block % 2:
            raise UnsupportedError(f"{where}: blocksize: got {block}, expected an even divisor of the {k} columns")
        if f"{name}.nested_absmax" not in tensors:
            return _State(block, 0, 0.0)
        offset = state.get("nested_offset")
        if not isinstance(offset, (int, float)) or isinstance(offset, bool):
            raise LoadError(f"{where}: nested_offset: got {shown(offset)}, expected a number")
        return _State(block, _size(state, "nested_blocksize", where), float(offset))


def _state_name(type: str) -> str:
    return f"quant_state.bitsandbytes__{type}"


def _size(state: dict[str, Any], key: str, where: str) -> int:
    size = state.get(key)
    if type(size) is not int or not 0 < size <= MAX_SIZE:
        raise LoadError(f"{where}: {key}: got {shown(size)}, expected 1..{MAX_SIZE}")
    return size

"""Matrices of a folder that are stored as floats of 8 bits, E4M3, with scales: Hugging Face's `fp8`, as DeepSeek-V3 has
them (arXiv:2412.19437), and compressed-tensors' `float-quantized`.

An element is the product of the float and of the scale of its block, row or matrix, computed in f32. Scales that a
file has for activations are not used, because activations stay floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dtype import f8e4m3fn, f32
from ingot.ir.graph import Graph
from ingot.load.hf.folder import Folder
from ingot.load.hf.quantized import SCALE_DTYPES, QuantizedTensors
from ingot.load.hf.settings import MAX_SIZE
from ingot.load.hf.strict_json import shown

_OF_ACTIVATIONS = ("activation_scale", "input_scale")


class Fp8Tensors(QuantizedTensors):
    """`weight` F8_E4M3 [n, k], and scales: one number, or one for each row, or for each block.

    scale: the end of the name of scales. block: the rows and columns of a block; None without blocks.
    """

    def __init__(self, graph: Graph, folder: Folder, scale: str, block: tuple[int, int] | None):
        super().__init__(graph, folder)
        self._scale = scale
        self._block = block

    def has(self, name: str) -> bool:
        tensor = self.folder.tensors.get(name)
        return tensor is not None and tensor.dtype is f8e4m3fn

    def value(self, name: str, n: int, k: int) -> str:
        path = name.removesuffix(".weight")
        self.used.update(each for part in _OF_ACTIVATIONS if (each := f"{path}.{part}") in self.folder.tensors)
        values = self.weight(name, (f8e4m3fn,), (n, k))
        scale, axis, block = self._scales(f"{name}{self._scale}", n, k)
        return self.add("dequantize", values, scale, name=f"{name}.decoded", axis=axis, block=block, dtype=f32)

    def _scales(self, name: str, n: int, k: int) -> tuple[str, int, int]:
        """Return the scales, and the axis and block that `dequantize` has for them."""
        stored = self.folder.tensors.get(name)
        shape = None if stored is None else stored.shape
        if shape in ((), (1,), (1, 1)):
            scale = self.weight(name, SCALE_DTYPES, shape)
            return self.add("reshape", scale, name=f"{name}.number", shape=()), 0, 0
        if self._block is None:
            scale = self.weight(name, SCALE_DTYPES, (n,) if shape == (n,) else (n, 1))
            return self.add("reshape", scale, name=f"{name}.row", shape=(n,)), 0, 0
        rows, columns = self._block
        scale = self.weight(name, SCALE_DTYPES, (-(-n // rows), -(-k // columns)))
        of_row = self.constant(f"{name}.blocks", (np.arange(n) // rows).astype(np.int32))
        return self.add("gather", scale, of_row, name=f"{name}.rows", axis=0), 1, min(columns, k)


def block_of(config: Mapping[str, Any], key: str, where: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block, two integers; None without. Raises LoadError."""
    block = config.get(key)
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(s) is int and 0 < s <= MAX_SIZE for s in block):
        raise LoadError(f"{where}.{key}: got {shown(block)}, expected two integers of 1..{MAX_SIZE}")
    return block[0], block[1]

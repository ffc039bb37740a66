"""Matrices of a folder that are stored as MLX writes them (github.com/ml-explore/mlx, `quantize`): integers of 2 to 8
bits, with a scale and a bias for each group of columns.

An element is value * scale + bias, computed in f32. `weight` U32 [n, k * bits / 32] has the bits of a row without gaps,
the first value in the low bits. With up to 5 bits this is the definition of the GGUF blocks Q4_1 and Q5_1, so that
matrices become such blocks if f16 has their scales and biases exactly; other matrices become floats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.errors import LoadError, UnsupportedError
from ingot.ir.dtype import DType, f16, f32, u32
from ingot.ir.graph import Graph
from ingot.load.hf.folder import Folder
from ingot.load.hf.quantized import SCALE_DTYPES, QuantizedTensors, fit_f16
from ingot.load.hf.settings import MAX_SIZE
from ingot.load.hf.strict_json import shown

BITS = (2, 3, 4, 5, 6, 8)
MOST_BLOCK_BITS = 5  # of values that become blocks
_BLOCK = 32  # columns of a block
_EXPERTS = re.compile(r"(.*)\.experts\.\{expert\}\.(.*)")
_EXPERT_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


class MlxTensors(QuantizedTensors):
    """`weight` U32, `scales` and `biases` [n, k / group]. A matrix of all experts is [experts, n, ...]."""

    def __init__(self, graph: Graph, folder: Folder, config: Mapping[str, Any], where: str):
        super().__init__(graph, folder)
        self._config = config
        self._where = where

    def has(self, name: str) -> bool:
        path, tensors = _path(name), self.folder.tensors
        words = tensors.get(f"{path}.weight")
        return f"{path}.scales" in tensors or (words is not None and words.dtype is u32)

    def value(self, name: str, n: int, k: int) -> str:
        path = _path(name)
        bits, group = self._widths(path)
        if k % group or k * bits % 32:
            raise LoadError(f"{self.folder.path}: matrix {path!r} is {[n, k]}, expected rows of groups of {group}")
        scale, bias = (self._rows(f"{path}.{part}", SCALE_DTYPES, n, k // group) for part in ("scales", "biases"))
        words = self._rows(f"{path}.weight", (u32,), n, k * bits // 32)
        packed = np.ascontiguousarray(words).view(np.uint8)
        stored = self.graph.add_weight(f"{path}.weight", packed)
        values = self.add("unpack_bits", stored, name=f"{path}.values", bits=bits)
        weights = [self.graph.add_weight(f"{path}.{part}", a) for part, a in (("scales", scale), ("biases", bias))]
        if bits <= MOST_BLOCK_BITS and group % _BLOCK == 0 and fit_f16(scale) and fit_f16(bias):
            type = "q4_1" if bits <= 4 else "q5_1"
            operands = [values, *(self._cast(each, f16) for each in weights)]
            blocks = self.add("affine_blocks", *operands, name=f"{path}.{type}", type=type)
            return self.add("decode_blocks", blocks, name=f"{path}.decoded", type=type, dtype=f32)
        shape = (n, k // group, 1)
        factors = [self.add("reshape", self._cast(e, f32), name=f"{e}.each", shape=shape) for e in weights]
        groups = self.add("reshape", self._cast(values, f32), name=f"{path}.groups", shape=(n, k // group, group))
        scaled = self.add("mul", groups, factors[0], name=f"{path}.scaled")
        moved = self.add("add", scaled, factors[1], name=f"{path}.moved")
        return self.add("reshape", moved, name=f"{path}.decoded", shape=(n, k))

    def _widths(self, path: str) -> tuple[int, int]:
        """Return the bits and the group size of a matrix. Raises LoadError, UnsupportedError."""
        own = self._config.get(path)
        where = f"{self._where}.{path}" if isinstance(own, dict) else self._where
        config = {**self._config, **own} if isinstance(own, dict) else self._config
        return checked_widths(config, where)

    def _rows(self, name: str, dtypes: tuple[DType, ...], n: int, columns: int) -> np.ndarray:
        """Return a tensor [n, columns]; the matrices of experts are one below the other. Raises LoadError."""
        tensor = self.folder.tensors.get(name)
        experts = tensor.shape[0] if tensor is not None and len(tensor.shape) == 3 else 0
        shape = (experts, n // experts, columns) if experts and n % experts == 0 else (n, columns)
        return self.stored(name, dtypes, shape).array().reshape(n, columns)

    def _cast(self, value: str, dtype: DType) -> str:
        if self.graph.type(value).dtype is dtype:
            return value
        return self.add("cast", value, name=f"{value}.{dtype}", dtype=dtype)


def checked_widths(config: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Return the bits and the group size of a configuration. Raises LoadError, UnsupportedError."""
    bits, group, mode = config.get("bits"), config.get("group_size"), config.get("mode", "affine")
    if mode != "affine":
        raise UnsupportedError(f"{where}.mode: got {shown(mode)}, expected affine")
    if type(bits) is not int or bits not in BITS:
        raise UnsupportedError(f"{where}.bits: got {shown(bits)}, expected one of {', '.join(map(str, BITS))}")
    if type(group) is not int or not 0 < group <= MAX_SIZE:
        raise LoadError(f"{where}.group_size: got {shown(group)}, expected 1..{MAX_SIZE}")
    return bits, group


def _path(name: str) -> str:
    """Return the path of a matrix in the folder: a file of MLX has all experts in one tensor."""
    path = name.removesuffix(".weight")
    found = _EXPERTS.fullmatch(path)
    return path if found is None else f"{found[1]}.switch_mlp.{_EXPERT_NAMES.get(found[2], found[2])}"

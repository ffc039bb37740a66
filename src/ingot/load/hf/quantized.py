"""Matrices of a folder that are stored as low-bit quantized values: the tensors of each, and the graph that dequantizes
them.

A matrix [n, k], with one row per output, becomes dequantize(values, scales, zero points): values are i8, u8, i4 or u4
[n, k], scales and zero points [n, k / group], or [n] for one group. Other layouts are converted by ops on the mapped
tensors, so that only scales that are not f16, zero points and column orders are read here.

Formats: Ingot's own (docs/quantization-folders.md); compressed-tensors (github.com/neuralmagic/compressed-tensors);
GPTQ as AutoGPTQ and GPTQModel write it (Frantar et al., 2022, arXiv:2210.17323); AWQ as AutoAWQ does for its GEMM
kernel (Lin et al., 2023, arXiv:2306.00978); MXFP4 as in GPT-OSS (OCP Microscaling Formats, 2023).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dtype import DType, bf16, f8e8m0, f16, f32, i4, i8, i32, i64, u4, u8
from ingot.ir.graph import OPS, Graph
from ingot.load.hf.folder import Folder
from ingot.load.hf.safetensors import StoredTensor
from ingot.load.quantized import grouped
from ingot.ops.index import inverse_order
from ingot.support.files import release

VERSION = 1  # of the folders that Ingot writes
GROUPS = (32, 64, 128)  # elements that share a scale in Ingot's format
CODES, SCALES, ZEROS = "codes", "scales", "zeros"  # suffixes of the tensors of a matrix
SCALE_DTYPES = (f16, bf16, f32)  # of scales in files
_READ_BYTES = 4 << 20  # chunk size for reading scales
_UNSIGNED = {4: u4, 8: u8}
_SIGNED = {4: i4, 8: i8}


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """The values of a graph that represent a quantized matrix [n, k].

    values: the quantized values, [n, k]. scale, zero: [n, k / group] of groups of columns; zero None for 0. order: the
    columns sorted by group, i32[k]; None where they are sorted.
    """

    values: str
    scale: str
    zero: str | None = None
    order: np.ndarray | None = None


class QuantizedTensors(ABC):
    """The matrices of a folder that are stored in one format, and the tensors already used."""

    def __init__(self, graph: Graph, folder: Folder):
        self.graph = graph
        self.folder = folder
        self.used: set[str] = set()

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether a weight, such as "layers.0.q.weight", is quantized."""

    @abstractmethod
    def value(self, name: str, n: int, k: int) -> str:
        """Return the f32 value [n, k] of a quantized weight. Raises LoadError, UnsupportedError."""

    def add(self, op: str, *operands: str, name: str, **attributes: Any) -> str:
        """Add a node."""
        return self.graph.add(op, operands, name, **attributes).output

    def constant(self, name: str, array: np.ndarray) -> str:
        """Add a constant."""
        return self.graph.add_constant(self.graph.fresh(name), array)

    def stored(self, name: str, dtypes: Sequence[DType], shape: tuple[int, ...]) -> StoredTensor:
        """Return a tensor of a matrix, of one of the dtypes and the given shape. Raises LoadError."""
        tensor = self.folder.tensors.get(name)
        expected = f"expected {' or '.join(map(str, dtypes))}{list(shape)}"
        if tensor is None:
            raise LoadError(f"{self.folder.path}: tensor {name!r} is missing, {expected}")
        if tensor.dtype not in dtypes or tensor.shape != shape:
            raise LoadError(f"{tensor.path}: tensor {name!r} is {tensor.dtype}{list(tensor.shape)}, {expected}")
        self.used.add(name)
        return tensor

    def weight(self, name: str, dtypes: Sequence[DType], shape: tuple[int, ...]) -> str:
        """Add such a tensor as a weight of the graph."""
        return self.graph.add_weight(name, self.stored(name, dtypes, shape).array())


class IntegerTensors(QuantizedTensors):
    """Matrices that are stored as integers with scales, and perhaps with zero points."""

    @abstractmethod
    def read(self, name: str, n: int, k: int) -> QuantizedMatrix:
        """Return the quantized values of a weight. Raises LoadError, UnsupportedError."""

    def value(self, name: str, n: int, k: int) -> str:
        found = self.read(name, n, k)
        values, scale, zero = found.values, found.scale, found.zero
        if found.order is not None:
            order = self.constant(f"{name}.order", found.order)
            values = self.add("gather", values, order, name=f"{name}.grouped", axis=1)
        groups = self.graph.type(scale).shape[1]
        assert isinstance(groups, int)
        axis, block = 1, k // groups
        if groups == 1:
            axis, block = 0, 0
            scale = self.add("reshape", scale, name=f"{name}.scale", shape=(n,))
            zero = zero and self.add("reshape", zero, name=f"{name}.zero", shape=(n,))
        operands = [values, scale, *([zero] if zero else [])]
        value = self.add("dequantize", *operands, name=f"{name}.decoded", axis=axis, block=block, dtype=f32)
        if found.order is not None:
            restored = inverse_order(found.order)
            assert restored is not None
            value = self.add("gather", value, self.constant(f"{name}.order", restored), name=f"{name}.ordered", axis=1)
        return value

    def groups(self, name: str, k: int, axis: int) -> int:
        """Return the number of column groups of a matrix, by the length of its scales along an axis.

        Raises LoadError.
        """
        tensor = self.folder.tensors.get(name)
        if tensor is None:
            raise LoadError(f"{self.folder.path}: tensor {name!r} is missing, expected scales")
        count = tensor.shape[axis] if len(tensor.shape) == 2 else 0
        if count < 1 or k % count:
            raise LoadError(
                f"{tensor.path}: tensor {name!r} is {tensor.dtype}{list(tensor.shape)},"
                f" expected two dims, and groups that divide {k} columns"
            )
        return count

    def scales(self, name: str, shape: tuple[int, int], *, transposed: bool = False) -> str:
        """Return scales [n, groups] as f16, the dtype of the quantized kernels, or as f32 if f16 cannot represent all
        of them.
        """
        value = self.weight(name, SCALE_DTYPES, shape)
        stored_dtype, scales = self.graph.type(value).dtype, self.graph.data(value)
        dtype = f16 if scales is not None and fit_f16(scales) else f32
        if stored_dtype is not dtype:
            value = self.add("cast", value, name=f"{name}.{dtype}", dtype=dtype)
        return self.add("permute", value, name=f"{name}.rows", axes=(1, 0)) if transposed else value

    def centred(self, value: str, bits: int) -> str:
        """Convert unsigned values packed in 32-bit integers to signed ones, by subtracting half of their range."""
        offsets = sum(1 << (bit + bits - 1) for bit in range(0, 32, bits))
        mask = self.constant(f"{value}.half", np.array(offsets, np.uint32).view(np.int32))
        return self.add("bitwise_xor", value, mask, name=f"{value}.centred")

    def order(self, name: str, k: int, groups: int) -> np.ndarray | None:
        """Return the columns sorted by group, given the group of each; None where they are sorted. Raises LoadError."""
        tensor = self.stored(name, (i32, i64), (k,))
        together = grouped(tensor.array(), k // groups)
        if together is None:
            raise LoadError(
                f"{tensor.path}: tensor {name!r} does not put {k} columns into {groups} groups of {k // groups}"
            )
        return None if np.array_equal(together, np.arange(k)) else together


def fit_f16(scales: np.ndarray) -> bool:
    """Return whether f16 represents each scale exactly. Pages of a mapped file are released."""
    if scales.dtype == f16.numpy:
        return True
    rows = max(1, _READ_BYTES * len(scales) // max(scales.nbytes, 1))
    for begin in range(0, len(scales), rows):
        part = scales[begin : begin + rows]
        wide = part.astype(np.float32)
        release(part)
        with np.errstate(over="ignore", under="ignore"):
            is_exact = np.array_equal(wide.astype(np.float16).astype(np.float32), wide)
        if not is_exact:
            return False
    return True


class IngotTensors(IntegerTensors):
    """Ingot's format. `<weight>.codes`: I8 [n, k], or U8 [n, k / 2] with two values per byte; `.scales`; `.zeros` for
    U8.
    """

    def has(self, name: str) -> bool:
        return f"{name}.{CODES}" in self.folder.tensors

    def read(self, name: str, n: int, k: int) -> QuantizedMatrix:
        values, scales, zero_points = (f"{name}.{part}" for part in (CODES, SCALES, ZEROS))
        groups = self.groups(scales, k, 1)
        scale = self.scales(scales, (n, groups))
        if self.folder.tensors[values].dtype is i8:
            return QuantizedMatrix(self.weight(values, (i8,), (n, k)), scale)
        if k % 2:
            raise LoadError(f"{self.folder.tensors[values].path}: tensor {values!r} has rows of {k}, expected pairs")
        packed = self.weight(values, (u8,), (n, k // 2))
        if zero_points not in self.folder.tensors:
            return QuantizedMatrix(self.add("unpack", packed, name=f"{values}.i4", axis=1, dtype=i4), scale)
        zero = self.weight(zero_points, (u8,), (n, -(-groups // 2)))
        zero = self.add("unpack", zero, name=f"{zero_points}.u4", axis=1, dtype=u4)
        if groups % 2:
            zero = self.add("slice", zero, name=f"{zero_points}.all", starts=(0, 0), stops=(n, groups), steps=(1, 1))
        return QuantizedMatrix(self.add("unpack", packed, name=f"{values}.u4", axis=1, dtype=u4), scale, zero)


class CompressedTensors(IntegerTensors):
    """`weight_packed` I32 [n, k / values per integer], or `weight` I8 [n, k]; with `weight_scale`, `weight_zero_point`
    and `weight_g_idx`. Packed values are signed ones plus half of their range.
    """

    def has(self, name: str) -> bool:
        tensors = self.folder.tensors
        return f"{name}_packed" in tensors or (name in tensors and tensors[name].dtype is i8)

    def read(self, name: str, n: int, k: int) -> QuantizedMatrix:
        tensors = self.folder.tensors
        points, indices = f"{name}_zero_point", f"{name}_g_idx"
        groups = self.groups(f"{name}_scale", k, 1)
        scale = self.scales(f"{name}_scale", (n, groups))
        order = self.order(indices, k, groups) if indices in tensors else None
        if f"{name}_packed" not in tensors:
            values = self.weight(name, (i8,), (n, k))
            zero_points = self.stored(points, (i8,), (n, groups)).array() if points in tensors else None
            if zero_points is None or not zero_points.any():
                return QuantizedMatrix(values, scale, None, order)
            zero = self.graph.add_weight(points, zero_points)
            return QuantizedMatrix(self._from_zero(values), scale, self._from_zero(zero), order)
        if f"{name}_shape" in tensors:
            self._expect_shape(f"{name}_shape", n, k)
        packed = tensors[f"{name}_packed"]
        bits = 8 if packed.shape == (n, -(-k // 4)) else 4
        values = self.weight(packed.name, (i32,), (n, -(-k * bits // 32)))
        if points not in tensors:
            return QuantizedMatrix(
                self._unpacked(self.centred(values, bits), 1, _SIGNED[bits], (n, k)), scale, None, order
            )
        zero = self.weight(points, (i32,), (-(-n * bits // 32), groups))
        zero = self._unpacked(zero, 0, _UNSIGNED[bits], (n, groups))
        return QuantizedMatrix(self._unpacked(values, 1, _UNSIGNED[bits], (n, k)), scale, zero, order)

    def _from_zero(self, value: str) -> str:
        """Convert signed values to unsigned ones by adding 128, as kernels have zero points for unsigned values."""
        sign = self.constant(f"{value}.sign", np.array(-128, np.int8))
        flipped = self.add("bitwise_xor", value, sign, name=f"{value}.flipped")
        return self.add("bitcast", flipped, name=f"{value}.u8", dtype=u8)

    def _expect_shape(self, name: str, n: int, k: int) -> None:
        tensor = self.stored(name, (i32, i64), (2,))
        if tensor.array().tolist() != [n, k]:
            raise LoadError(f"{tensor.path}: tensor {name!r} is {tensor.array().tolist()}, expected {[n, k]}")

    def _unpacked(self, value: str, axis: int, dtype: DType, shape: tuple[int, int]) -> str:
        """Unpack the values in integers, without the padding of the last integer."""
        unpacked = self.add("unpack", value, name=f"{value}.{dtype}", axis=axis, dtype=dtype)
        if self.graph.type(unpacked).shape == shape:
            return unpacked
        return self.add("slice", unpacked, name=f"{value}.all", starts=(0, 0), stops=shape, steps=(1, 1))


class Gptq(IntegerTensors):
    """`qweight` I32 [k / values per integer, n], `qzeros` I32 [groups, n / values per integer], `scales` [groups, n],
    `g_idx` [k].

    bits: of a value. offset: the number that was subtracted from zero points, modulo their range. group: columns that
    share a scale, or 1, which divides any number, if config.json does not specify it.
    """

    def __init__(self, graph: Graph, folder: Folder, bits: int, offset: int):
        super().__init__(graph, folder)
        self._bits = bits
        self._offset = offset
        size = folder.config["quantization_config"].get("group_size")
        self._group = size if type(size) is int and size > 0 else 1

    def has(self, name: str) -> bool:
        return f"{name.removesuffix('.weight')}.qweight" in self.folder.tensors

    def read(self, name: str, n: int, k: int) -> QuantizedMatrix:
        path = name.removesuffix(".weight")
        per = 32 // self._bits
        if n % per or k % per:
            raise LoadError(f"{self.folder.path}: matrix {path!r} is {[n, k]}, expected multiples of {per}")
        if k % min(self._group, k):
            where = f"{self.folder.path}/config.json: quantization_config.group_size"
            raise LoadError(f"{where}: got {self._group}, expected one that divides the {k} columns of {path!r}")
        groups = self.groups(f"{path}.scales", k, 0)
        scale = self.scales(f"{path}.scales", (groups, n), transposed=True)
        zero_points = self._zeros(self.stored(f"{path}.qzeros", (i32,), (groups, n // per)))
        indices, bias = f"{path}.g_idx", self.folder.tensors.get(f"{path}.bias")
        if bias is not None and not bias.array().any():
            self.used.add(bias.name)  # also written for layers without a bias
        order = self.order(indices, k, groups) if indices in self.folder.tensors else None
        values = self.weight(f"{path}.qweight", (i32,), self._packed_shape(n, k))
        if (zero_points == 1 << (self._bits - 1)).all():
            return QuantizedMatrix(
                self._qweight(self.centred(values, self._bits), _SIGNED[self._bits]), scale, None, order
            )
        unsigned = _UNSIGNED[self._bits]
        points = self.graph.add_weight(f"{path}.zeros", zero_points.astype(unsigned.numpy))
        return QuantizedMatrix(self._qweight(values, unsigned), scale, points, order)

    def _packed_shape(self, n: int, k: int) -> tuple[int, int]:
        return k * self._bits // 32, n

    def _qweight(self, packed: str, dtype: DType) -> str:
        """Return quantized values [n, k] in the order of columns."""
        columns = self.add("unpack", packed, name=f"{packed}.{dtype}", axis=0, dtype=dtype)
        return self.add("permute", columns, name=f"{packed}.rows", axes=(1, 0))

    def _zeros(self, tensor: StoredTensor) -> np.ndarray:
        """Return the zero points, u8[n, groups]; computed here, as no op computes with low-bit integers."""
        stored = OPS["unpack"].function(tensor.array(), axis=1, dtype=_UNSIGNED[self._bits]).astype(np.uint8)
        return np.ascontiguousarray((stored + np.uint8(self._offset)).T) & np.uint8(2**self._bits - 1)


class Awq(Gptq):
    """`qweight` I32 [k, n / 8], the rest as in GPTQ; of eight columns in an integer, the even ones come first."""

    def __init__(self, graph: Graph, folder: Folder):
        super().__init__(graph, folder, 4, 0)

    def _packed_shape(self, n: int, k: int) -> tuple[int, int]:
        return k, n // 8

    def _qweight(self, packed: str, dtype: DType) -> str:
        stored = self.add("unpack", packed, name=f"{packed}.{dtype}", axis=1, dtype=dtype)
        k, n = self.graph.type(stored).dims
        halves = self.add("reshape", stored, name=f"{packed}.halves", shape=(k, n // 8, 2, 4))
        rows = self.add("permute", halves, name=f"{packed}.pairs", axes=(1, 3, 2, 0))
        return self.add("reshape", rows, name=f"{packed}.rows", shape=(n, k))

    def _zeros(self, tensor: StoredTensor) -> np.ndarray:
        rows = super()._zeros(tensor)
        n, groups = rows.shape
        return np.ascontiguousarray(rows.reshape(n // 8, 2, 4, groups).swapaxes(1, 2)).reshape(n, groups)


class Mxfp4(IntegerTensors):
    """Experts in MXFP4: `<name>_blocks` U8 [experts, n, k / 32, 16], of two elements in a byte, and `<name>_scales` U8
    [experts, n, k / 32], exponents plus 127 (OCP Microscaling Formats, 2023).

    Twice an element is a small integer, so they become int8 with half of the scale, exactly.
    """

    _DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
    _EXACT = range(104, 143)  # exponents of scales of which f16 represents the half

    def has(self, name: str) -> bool:
        return f"{name}_blocks" in self.folder.tensors

    def read(self, name: str, n: int, k: int) -> QuantizedMatrix:
        blocks, scales = f"{name}_blocks", f"{name}_scales"
        count, *_ = self.folder.tensors[blocks].shape or (1,)
        if k % 32 or not count or n % count:
            raise LoadError(f"{self.folder.tensors[blocks].path}: tensor {blocks!r} does not fit a matrix {[n, k]}")
        each, groups = n // count, k // 32
        packed = self.weight(blocks, (u8,), (count, each, groups, 16))
        packed = self.add("reshape", packed, name=f"{blocks}.rows", shape=(n, k // 2))
        codes = self.add("unpack", packed, name=f"{blocks}.u4", axis=1, dtype=u4)
        codes = self.add("cast", codes, name=f"{blocks}.codes", dtype=i32)
        table = self.constant("mxfp4.doubled", self._DOUBLED)
        values = self.add("gather", table, codes, name=f"{blocks}.i8", axis=0)
        stored = self.stored(scales, (u8,), (count, each, groups)).array()
        is_exact = stored.size > 0 and int(stored.min()) in self._EXACT and int(stored.max()) in self._EXACT
        release(stored)
        scale = self.add("bitcast", self.graph.add_weight(scales, stored), name=f"{scales}.e8", dtype=f8e8m0)
        scale = self.add("reshape", scale, name=f"{scales}.rows", shape=(n, groups))
        scale = self.add("cast", scale, name=f"{scales}.f32", dtype=f32)
        scale = self.add("mul", scale, self.constant("mxfp4.half", np.array(0.5, np.float32)), name=f"{scales}.halved")
        return QuantizedMatrix(values, self.add("cast", scale, name=f"{scales}.f16", dtype=f16) if is_exact else scale)

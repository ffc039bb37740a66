"""Element types: one table. A row is (name in text and C, numpy dtype, ONNX Runtime's type string)."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. bits: of an element; those of less than a byte lie one after another, the first in low bits."""

    name: str
    bits: int
    kind: str  # "f" float, "i" signed, "u" unsigned, "b" bool
    onnx: str

    def __repr__(self) -> str:
        return self.name

    @property
    def itemsize(self) -> int:
        """Bytes of an element, where they are whole."""
        assert self.bits % 8 == 0, f"an element of {self} has {self.bits} bits, not whole bytes"
        return self.bits // 8

    def nbytes(self, elements: int) -> int:
        """Bytes that so many elements take, planned ones included; the last one is filled up."""
        return -(-int(elements) * self.bits // 8)

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """The bytes that elements from `begin` to `end` touch: the first, and one past the last."""
        return begin * self.bits // 8, self.nbytes(end)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; bf16 comes from ml_dtypes, imported only when it is asked for."""
        if self.name == "bf16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return _NUMPY[self.name]

    def holds(self, value: float) -> bool:
        """Whether a number is one of this type's; floats take any, and round it."""
        if self.kind == "f":
            return True
        low, high = (0, 1) if self.kind == "b" else (np.iinfo(self.numpy).min, np.iinfo(self.numpy).max)
        return low <= value <= high and value == int(value)


f64 = DType("f64", 64, "f", "tensor(double)")
f32 = DType("f32", 32, "f", "tensor(float)")
f16 = DType("f16", 16, "f", "tensor(float16)")
bf16 = DType("bf16", 16, "f", "tensor(bfloat16)")
i64 = DType("i64", 64, "i", "tensor(int64)")
i32 = DType("i32", 32, "i", "tensor(int32)")
i16 = DType("i16", 16, "i", "tensor(int16)")
i8 = DType("i8", 8, "i", "tensor(int8)")
u64 = DType("u64", 64, "u", "tensor(uint64)")
u32 = DType("u32", 32, "u", "tensor(uint32)")
u16 = DType("u16", 16, "u", "tensor(uint16)")
u8 = DType("u8", 8, "u", "tensor(uint8)")
boolean = DType("bool", 8, "b", "tensor(bool)")

DTYPES = {d.name: d for d in (f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean)}

_NUMPY: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
_FROM_NUMPY = {numpy_dtype: DTYPES[name] for name, numpy_dtype in _NUMPY.items()}


def from_numpy(dtype: np.dtype) -> DType:
    """The DType of a numpy dtype; raises KeyError for one that Ingot does not have."""
    if dtype.name == "bfloat16":
        return bf16
    return _FROM_NUMPY[dtype.newbyteorder("=")]

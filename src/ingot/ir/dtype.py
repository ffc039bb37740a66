"""Element types, as one table: (name in text and C, bits, kind, ONNX Runtime's type string)."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type.

    bits: of an element. Elements of less than a byte are packed, the first in the low bits, in files and in blocks of a
    stored format; arrays and kernels use a byte for each (`held`). kind: "f" float, "i" signed, "u" unsigned, "b" bool;
    "n" for low-precision numbers, which are moved, cast and quantized, but have no arithmetic; "s" for strings, stored
    as Python strings in arrays of objects.
    """

    name: str
    bits: int
    kind: str
    onnx: str

    def __repr__(self) -> str:
        return self.name

    @property
    def itemsize(self) -> int:
        """Bytes of an element of whole bytes."""
        assert self.bits % 8 == 0, f"an element of {self} has {self.bits} bits, not whole bytes"
        return self.bits // 8

    def nbytes(self, elements: int) -> int:
        """Return the bytes of a number of elements, which may be a planned size; rounded up to a byte."""
        return -(-int(elements) * self.bits // 8)

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """Return the bytes that elements from `begin` to `end` cover: the first, and one past the last."""
        return begin * self.bits // 8, -(-int(end) * self.bits // 8)

    @property
    def is_native(self) -> bool:
        """Whether kernels accept such elements."""
        return self.kind != "s"

    @property
    def held(self) -> "DType":
        """The storage dtype of arrays and kernels: one byte per element for dtypes of less than a byte."""
        return self if self.bits >= 8 else _HELD[self.name]

    @property
    def limits(self) -> tuple[int, int] | None:
        """The smallest and largest integer of this type; None for floats and strings."""
        if self.kind == "b":
            return 0, 1
        if self.name[0] == "u":
            return 0, 2**self.bits - 1
        return (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1) if self.name[0] == "i" else None

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; dtypes that numpy lacks come from ml_dtypes, which is imported on demand."""
        if self.name in _NUMPY:
            return _NUMPY[self.name]
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, _ML_DTYPES[self.name]))

    def holds(self, value: float) -> bool:
        """Return whether a number is in this type's range; floats accept any number, and round it."""
        if self.limits is None:
            return self.kind != "s"
        low, high = self.limits
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
f8e4m3fn = DType("f8e4m3fn", 8, "n", "tensor(float8e4m3fn)")
f8e4m3fnuz = DType("f8e4m3fnuz", 8, "n", "tensor(float8e4m3fnuz)")
f8e5m2 = DType("f8e5m2", 8, "n", "tensor(float8e5m2)")
f8e5m2fnuz = DType("f8e5m2fnuz", 8, "n", "tensor(float8e5m2fnuz)")
f8e8m0 = DType("f8e8m0", 8, "n", "tensor(float8e8m0)")
f4e2m1 = DType("f4e2m1", 4, "n", "tensor(float4e2m1)")
i4 = DType("i4", 4, "n", "tensor(int4)")
u4 = DType("u4", 4, "n", "tensor(uint4)")
i2 = DType("i2", 2, "n", "tensor(int2)")
u2 = DType("u2", 2, "n", "tensor(uint2)")
string = DType("string", 64, "s", "tensor(string)")

_NATIVE = (f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean)
NARROW = (f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0, f4e2m1, i4, u4, i2, u2)
_HELD = {d.name: replace(d, bits=8) for d in NARROW if d.bits < 8}
DTYPES = {d.name: d for d in (*_NATIVE, *NARROW, string)}

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
    "string": np.dtype(object),
}
_ML_DTYPES = {
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0": "float8_e8m0fnu",
    "f4e2m1": "float4_e2m1fn",
    "i4": "int4",
    "u4": "uint4",
    "i2": "int2",
    "u2": "uint2",
}
_FROM_NUMPY = {numpy_dtype: DTYPES[name] for name, numpy_dtype in _NUMPY.items()}
_FROM_ML_DTYPES = {name: DTYPES[own] for own, name in _ML_DTYPES.items()}


def from_numpy(dtype: np.dtype) -> DType:
    """Return the DType of a numpy dtype; raises KeyError for an unsupported one."""
    return _FROM_ML_DTYPES.get(dtype.name) or _FROM_NUMPY[dtype.newbyteorder("=")]


def content(array: np.ndarray) -> bytes:
    """Return bytes that identify an array among arrays of its type and shape."""
    return json.dumps(array.ravel().tolist()).encode() if array.dtype == object else array.tobytes()

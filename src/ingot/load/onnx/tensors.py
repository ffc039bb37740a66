"""Tensors of an ONNX file: the dtype table, and the checks before an element is read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.ir import dtype
from ingot.ir.dtype import DType
from ingot.ir.graph import MapType, OptionalType, SequenceType, TensorType, Type, UnrankedType

MAX_ELEMENTS = 2**40  # of a tensor, ignoring dims of 0
MAX_SHOWN_CHARACTERS = 200  # of a name in an error
UNNAMED = -1  # written by some exporters for an unnamed dim

# protobuf copies raw_data on each access; the length of larger data is compared when it is read, once.
_CHEAP_BYTES = 65536

DTYPES: dict[int, DType] = {
    onnx.TensorProto.FLOAT: dtype.f32,
    onnx.TensorProto.UINT8: dtype.u8,
    onnx.TensorProto.INT8: dtype.i8,
    onnx.TensorProto.UINT16: dtype.u16,
    onnx.TensorProto.INT16: dtype.i16,
    onnx.TensorProto.INT32: dtype.i32,
    onnx.TensorProto.INT64: dtype.i64,
    onnx.TensorProto.BOOL: dtype.boolean,
    onnx.TensorProto.FLOAT16: dtype.f16,
    onnx.TensorProto.DOUBLE: dtype.f64,
    onnx.TensorProto.UINT32: dtype.u32,
    onnx.TensorProto.UINT64: dtype.u64,
    onnx.TensorProto.BFLOAT16: dtype.bf16,
    onnx.TensorProto.FLOAT8E4M3FN: dtype.f8e4m3fn,
    onnx.TensorProto.FLOAT8E4M3FNUZ: dtype.f8e4m3fnuz,
    onnx.TensorProto.FLOAT8E5M2: dtype.f8e5m2,
    onnx.TensorProto.FLOAT8E5M2FNUZ: dtype.f8e5m2fnuz,
    onnx.TensorProto.FLOAT8E8M0: dtype.f8e8m0,
    onnx.TensorProto.FLOAT4E2M1: dtype.f4e2m1,
    onnx.TensorProto.INT4: dtype.i4,
    onnx.TensorProto.UINT4: dtype.u4,
    onnx.TensorProto.INT2: dtype.i2,
    onnx.TensorProto.UINT2: dtype.u2,
    onnx.TensorProto.STRING: dtype.string,
}

# The typed field of a dtype, if it has its own; the other dtypes share int32_data, with one entry per element, or per
# byte of sub-byte elements.
_FIELDS = {dtype.f32: "float_data", dtype.f64: "double_data", dtype.i64: "int64_data"}
_FIELDS |= {dtype.u32: "uint64_data", dtype.u64: "uint64_data", dtype.string: "string_data"}
_VALUE_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_EXTERNAL_KEYS = ("location", "offset", "length", "checksum")


def shown(name: str | None) -> str:
    """Quote a name of a file for an error, truncated if it is long."""
    return repr((name or "")[:MAX_SHOWN_CHARACTERS])


def dtype_of(number: int, where: str) -> DType:
    """Return the DType of an ONNX element type. Raises LoadError for an unknown one, UnsupportedError for one without a
    DType.
    """
    if number in DTYPES:
        return DTYPES[number]
    names = {v: k for k, v in onnx.TensorProto.DataType.items()}
    if number not in names or number == onnx.TensorProto.UNDEFINED:
        raise LoadError(f"{where}: unknown dtype, got {number}")
    raise UnsupportedError(f"{where}: dtype {names[number]} is not supported")


def count_elements(dims: list[int] | tuple[int, ...], where: str) -> int:
    """Return the product of dims. Raises LoadError for a negative dim, LimitError above MAX_ELEMENTS.

    The limit also applies to the other dims of an empty array: strides, and loops over its rows, ignore the 0.
    """
    if any(d < 0 for d in dims):
        raise LoadError(f"{where}: negative dim, got {list(dims)}")
    total = math.prod(dims)
    if math.prod(d for d in dims if d) > MAX_ELEMENTS:
        raise LimitError(f"{where}: too many elements, got shape {list(dims)}, expected at most {MAX_ELEMENTS}")
    return total


def text_of(element: bytes, where: str) -> str:
    """Decode a string of the file. Raises LoadError for bytes that are not UTF-8."""
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise LoadError(f"{where}: a string is not UTF-8, got {element[:100]!r}") from error


def array_of(tensor: Any, where: str) -> np.ndarray:
    """Return the elements of a tensor; strings as `str`. Raises LoadError for strings that are not UTF-8."""
    if tensor.dtype != onnx_ir.DataType.STRING:
        return tensor.numpy()
    texts = np.empty(tensor.shape.numpy(), object)
    texts.ravel()[:] = [text_of(element, where) for element in tensor.string_data()]
    return texts


def type_of(tensor: onnx_ir.TensorProtocol, where: str) -> TensorType:
    """Return the type of a tensor that is already checked."""
    return TensorType(dtype_of(tensor.dtype.value, where), tuple(tensor.shape.numpy()))


def unpacked(content: Any, dtype: DType, count: int, offset: int) -> np.ndarray:
    """Unpack `count` elements of less than a byte, from byte `offset` on; the first element of a byte is in the lowest
    bits.
    """
    packed = np.frombuffer(content, np.uint8, dtype.nbytes(count), offset)
    elements = packed[:, None] >> np.arange(0, 8, dtype.bits, dtype=np.uint8) & (2**dtype.bits - 1)
    return elements.ravel()[:count].view(dtype.numpy)


def declared_type(type: onnx_ir.TypeProtocol | None, shape: onnx_ir.Shape | None, where: str) -> Type:
    """Return a declared type; dims that are named, or -1, are unknown.

    type: onnx_ir's type, or, for maps, which onnx_ir lacks, a result of `map_type`. Raises UnsupportedError for sparse
    tensors.
    """
    match type:
        case MapType():
            return type
        case onnx_ir.SequenceType():
            return SequenceType(declared_type(type.elem_type, shape, where))
        case onnx_ir.OptionalType():
            return OptionalType(declared_type(type.elem_type, shape, where))
        case onnx_ir.TensorType():
            dtype = dtype_of(type.dtype.value, where)
            if shape is None:
                return UnrankedType(dtype)
            dims = tuple(d if isinstance(d, int) and d != UNNAMED else None for d in shape)
            count_elements([d for d in dims if d is not None], where)
            return TensorType(dtype, dims)
    raise UnsupportedError(f"{where}: type {type} is not supported, only dense tensors, sequences and optionals are")


def map_type(type: onnx.TypeProto, where: str) -> Any:
    """Return the type of a map, or of a container of maps, for `declared_type`. Raises UnsupportedError for a map to
    anything but numbers.
    """
    match type.WhichOneof("value"):
        case "sequence_type":
            return onnx_ir.SequenceType(map_type(type.sequence_type.elem_type, where))
        case "optional_type":
            return onnx_ir.OptionalType(map_type(type.optional_type.elem_type, where))
    if type.map_type.value_type.WhichOneof("value") != "tensor_type":
        raise UnsupportedError(f"{where}: a map to anything but tensors is not supported")
    number = type.map_type.value_type.tensor_type.elem_type
    return MapType(dtype_of(type.map_type.key_type, where), dtype_of(number, where))


def has_map(type: onnx.TypeProto) -> bool:
    """Return whether a type is a map, or contains one."""
    kind = type.WhichOneof("value")
    inner = {"sequence_type": type.sequence_type.elem_type, "optional_type": type.optional_type.elem_type}
    return kind == "map_type" or (kind in inner and has_map(inner[kind]))


def is_external(tensor: onnx.TensorProto) -> bool:
    """Return True when the data is in another file."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def check_tensor(tensor: onnx.TensorProto, where: str, raw_bytes: int | None = None) -> None:
    """Check a tensor: at most one value field, of the length that shape and dtype require; well-formed external
    entries.

    raw_bytes: the length of raw_data that was cut out of the message.
    """
    if tensor.HasField("segment"):
        raise UnsupportedError(f"{where}: segmented tensors are not supported")
    if len(tensor.dims) > 1024:
        raise LimitError(f"{where}: rank too high, got {len(tensor.dims)}")
    count = count_elements(list(tensor.dims), where)
    fields = [name for name in _VALUE_FIELDS if len(getattr(tensor, name))]
    if raw_bytes is not None or (tensor.HasField("raw_data") and not (is_external(tensor) and not tensor.raw_data)):
        fields.append("raw_data")
    if len(fields) > 1:
        raise LoadError(f"{where}: more than one value field is set, got {', '.join(fields)}")
    kind = dtype_of(tensor.data_type, where)
    if kind is dtype.string and (is_external(tensor) or fields == ["raw_data"]):
        raise LoadError(f"{where}: strings are in string_data, got other data")
    expected = kind.nbytes(count)
    if is_external(tensor):
        if fields:
            raise LoadError(f"{where}: has external data and {fields[0]}")
        _check_external(tensor, expected, where)
        return
    if tensor.external_data:
        raise LoadError(f"{where}: has external_data entries, but its data_location is not EXTERNAL")
    if fields == ["raw_data"]:
        if raw_bytes is None:
            raw_bytes = len(tensor.raw_data) if tensor.ByteSize() <= _CHEAP_BYTES else expected
        if raw_bytes != expected:
            raise LoadError(
                f"{where}: raw_data has a wrong length, got {raw_bytes} bytes,"
                f" expected {expected} for {kind}{list(tensor.dims)}"
            )
        return
    field = _FIELDS.get(kind, "int32_data")
    if fields and fields != [field]:
        raise LoadError(f"{where}: wrong value field for {kind}, got {fields[0]}, expected {field}")
    entries = kind.nbytes(count) if kind.bits < 8 else count
    if len(getattr(tensor, field)) != entries:
        raise LoadError(
            f"{where}: {field} has a wrong length, got {len(getattr(tensor, field))}, expected {entries}"
            f" for {kind}{list(tensor.dims)}"
        )
    for element in tensor.string_data:
        text_of(element, where)


def _check_external(tensor: onnx.TensorProto, expected_bytes: int, where: str) -> None:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key not in _EXTERNAL_KEYS:
            raise LoadError(f"{where}: unknown external_data key, got {entry.key[:100]!r}")
        if entry.key in entries:
            raise LoadError(f"{where}: external_data key {entry.key!r} is given twice")
        entries[entry.key] = entry.value
    if "location" not in entries:
        raise LoadError(f"{where}: external data without a location")
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise LoadError(f"{where}: external data {key} is not a byte count, got {text[:100]!r}")
    if "length" in entries and int(entries["length"]) != expected_bytes:
        raise LoadError(
            f"{where}: external data has a wrong length, got {entries['length']} bytes, expected {expected_bytes}"
        )

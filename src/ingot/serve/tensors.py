"""The tensors of the Open Inference Protocol: JSON and bytes to arrays, with every value checked, and back."""

from __future__ import annotations

import struct
from math import prod
from typing import Any

import msgspec
import numpy as np

from ingot.errors import InputError
from ingot.ir.dtype import DType, string
from ingot.load.hf.strict_json import shown
from ingot.serve.plain import DATATYPES, VERSION, Plain, datatype_of

MAX_ELEMENTS = 1 << 28  # of a tensor in a request


class Tensor(msgspec.Struct):
    """An input of a request."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = msgspec.UNSET


class Wanted(msgspec.Struct):
    """An output that a request names."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct):
    """The JSON of a request."""

    inputs: list[Tensor]
    id: str | None = None
    parameters: dict[str, Any] = {}
    outputs: list[Wanted] | None = None


def feed_of(plain: Plain, request: InferRequest, binary: memoryview) -> dict[str, np.ndarray]:
    """Return the arrays of a request by the names of the inputs. binary: the bytes after the JSON.

    Raises InputError, which names the tensor.
    """
    if unread := [key for key in request.parameters if key.startswith("sequence_")]:
        raise InputError(f"parameters: {shown(unread[0])} is not supported, a model has no state between requests")
    feed: dict[str, np.ndarray] = {}
    for tensor in request.inputs:
        if tensor.name not in plain.inputs or tensor.name in feed:
            what = "given twice" if tensor.name in feed else "unknown"
            raise InputError(f"input {shown(tensor.name)}: {what}, expected each of {', '.join(plain.inputs)} once")
        array, binary = _read(tensor, *plain.inputs[tensor.name], binary)
        feed[tensor.name] = array
    if missing := [name for name in plain.inputs if name not in feed]:
        raise InputError(f"input {missing[0]!r}: missing, expected each of {', '.join(plain.inputs)} once")
    if len(binary):
        raise InputError(f"body: {len(binary)} bytes after the last tensor, expected none")
    return {name: feed[name] for name in plain.inputs}


def _read(
    tensor: Tensor, dtype: DType, declared: list[int | None], binary: memoryview
) -> tuple[np.ndarray, memoryview]:
    """Return the array of a tensor, and the bytes that are left."""
    where, shape = f"input {shown(tensor.name)}", tensor.shape
    if tensor.datatype != DATATYPES[dtype.name]:
        raise InputError(f"{where}: wrong datatype, got {shown(tensor.datatype)}, expected {DATATYPES[dtype.name]}")
    fits = len(shape) == len(declared) and all(
        size >= 0 and dim in (None, size) for size, dim in zip(shape, declared, strict=True)
    )
    if not fits:
        expected = [-1 if dim is None else dim for dim in declared]
        raise InputError(f"{where}: wrong shape, got {shown(shape)}, expected {expected}, where -1 is any size")
    count = prod(shape)
    if count > MAX_ELEMENTS:
        raise InputError(f"{where}: too large, got {count} elements, expected at most {MAX_ELEMENTS}")
    unread = [key for key in tensor.parameters if key != "binary_data_size"]
    if unread:
        raise InputError(f"{where}: parameter {shown(unread[0])} is not supported, expected binary_data_size or none")
    size = tensor.parameters.get("binary_data_size")
    if (size is None) == (tensor.data is msgspec.UNSET):
        raise InputError(f"{where}: got both data and binary_data_size or none, expected one of them")
    if size is None:
        return _from_json(where, tensor.data, dtype, count).reshape(shape), binary
    if type(size) is not int or not 0 <= size <= len(binary):
        raise InputError(f"{where}: binary_data_size out of range, got {shown(size)}, expected 0..{len(binary)}")
    part = binary[:size]
    array = _strings(where, part, count) if dtype is string else _numbers(where, part, dtype, count)
    return array.reshape(shape), binary[size:]


def _numbers(where: str, part: memoryview, dtype: DType, count: int) -> np.ndarray:
    numbers = dtype.numpy.newbyteorder("<") if dtype.name != "bf16" else dtype.numpy
    if len(part) != count * dtype.itemsize:
        raise InputError(f"{where}: wrong size, got {len(part)} bytes, expected {count * dtype.itemsize}")
    if dtype.kind == "b" and any(byte > 1 for byte in set(bytes(part))):
        raise InputError(f"{where}: no booleans, got bytes above 1, expected 0 or 1")
    return np.frombuffer(part, numbers).astype(dtype.numpy)


def _strings(where: str, part: memoryview, count: int) -> np.ndarray:
    """Read elements of a 4-byte length and as many bytes each."""
    texts: list[str] = []
    at = 0
    while at < len(part) and len(texts) < count:
        (length,) = struct.unpack_from("<I", part, at) if at + 4 <= len(part) else (len(part),)
        if at + 4 + length > len(part):
            raise InputError(f"{where}: element {len(texts)} is cut, got {len(part) - at} bytes, expected {4 + length}")
        texts.append(_text(where, bytes(part[at + 4 : at + 4 + length])))
        at += 4 + length
    if at != len(part) or len(texts) != count:
        raise InputError(f"{where}: wrong size, got {len(texts)} elements and {len(part) - at} bytes, expected {count}")
    return _objects(texts)


def _text(where: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8, {error.reason} at byte {error.start} of an element") from error


def _objects(texts: list[str]) -> np.ndarray:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def _from_json(where: str, data: Any, dtype: DType, count: int) -> np.ndarray:
    """Return the elements of a list, nested or flat. Raises InputError for a value that the dtype cannot represent."""
    flat = _flat(where, data, count)
    if dtype is string:
        if wrong := [value for value in flat if not isinstance(value, str)]:
            raise InputError(f"{where}: no text, got {shown(wrong[0])}, expected strings")
        return _objects(flat)
    kinds = (bool,) if dtype.kind == "b" else (int,) if dtype.limits is not None else (int, float)
    if wrong := [value for value in flat if type(value) not in kinds]:
        raise InputError(f"{where}: wrong value, got {shown(wrong[0])}, expected {DATATYPES[dtype.name]}")
    if dtype.limits is not None and flat:
        low, high = dtype.limits
        outside = next((value for value in (min(flat), max(flat)) if not low <= value <= high), None)
        if outside is not None:
            raise InputError(f"{where}: out of range, got {outside}, expected {low}..{high}")
        return np.array(flat, dtype.numpy)
    try:
        with np.errstate(over="ignore"):  # a number beyond the dtype's largest is infinity, as in any cast
            return np.array(flat, np.float64).astype(dtype.numpy)
    except OverflowError as error:
        raise InputError(f"{where}: out of range, {error}") from error


def _flat(where: str, data: Any, count: int) -> list[Any]:
    """Return the elements of nested lists in order. Raises InputError for another number of them."""
    level = data if isinstance(data, list) else [data]
    while any(isinstance(each, list) for each in level):
        if not all(isinstance(each, list) for each in level):
            raise InputError(f"{where}: lists and values in one list, expected one of them")
        if len({len(each) for each in level}) > 1:
            raise InputError(f"{where}: lists of different lengths in one list, expected equal ones")
        level = [value for each in level for value in each]
    if len(level) != count:
        raise InputError(f"{where}: wrong size, got {len(level)} values, expected {count}")
    return level


def response_of(plain: Plain, request: InferRequest, results: list[np.ndarray]) -> tuple[dict[str, Any], list[bytes]]:
    """Return the JSON of a response, and the bytes of its binary tensors. Raises InputError for an unknown output and
    for values that JSON cannot represent.
    """
    arrays = dict(zip(plain.outputs, results, strict=True))
    all_binary = _flag("binary_data_output", request.parameters)
    outputs, parts = [], []
    for wanted in wanted_outputs(plain, request):
        array = arrays[wanted.name]
        datatype = datatype_of(array)
        if datatype is None:
            raise InputError(f"output {wanted.name!r}: no datatype of the protocol, got {array.dtype}")
        described: dict[str, Any] = {"name": wanted.name, "datatype": datatype, "shape": list(array.shape)}
        if _flag("binary_data", wanted.parameters, all_binary):
            parts.append(_bytes(array))
            described["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            described["data"] = _listed(wanted.name, array)
        outputs.append(described)
    named = {"model_name": plain.name, "model_version": VERSION, "outputs": outputs}
    return named if request.id is None else named | {"id": request.id}, parts


def wanted_outputs(plain: Plain, request: InferRequest) -> list[Wanted]:
    """Return the outputs that a request names, or all. Raises InputError for unknown and repeated ones."""
    wanted = request.outputs or [Wanted(name) for name in plain.outputs]
    seen: set[str] = set()
    for each in wanted:
        if each.name not in plain.outputs or each.name in seen:
            what = "given twice" if each.name in seen else "unknown"
            raise InputError(f"output {shown(each.name)}: {what}, expected some of {', '.join(plain.outputs)}")
        if unread := [key for key in each.parameters if key != "binary_data"]:
            raise InputError(
                f"output {each.name!r}: parameter {shown(unread[0])} is not supported, expected binary_data or none"
            )
        seen.add(each.name)
    return wanted


def _flag(key: str, parameters: dict[str, Any], default: bool = False) -> bool:
    value = parameters.get(key, default)
    if type(value) is not bool:
        raise InputError(f"{key}: got {shown(value)}, expected true or false")
    return value


def _bytes(array: np.ndarray) -> bytes:
    if array.dtype != object:
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    encoded = [str(text).encode("utf-8", "surrogatepass") for text in array.flat]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)


def _listed(name: str, array: np.ndarray) -> list[Any]:
    if array.dtype == object:
        return [str(text) for text in array.flat]
    if array.dtype.kind not in "biu":
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            raise InputError(f"output {name!r}: NaN or infinity, which JSON has not, expected binary_data to be true")
    return array.ravel().tolist()

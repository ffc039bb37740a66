"""External data of an ONNX model: mapped read-only, and only from regular files inside the model's folder.

Each path component is opened relative to its parent's descriptor without following links. So neither `..` nor a
symbolic link can escape the folder, and the file that was checked is the file that is read. Hard links are allowed:
installers create them.
"""

from __future__ import annotations

import math
import os
import sys

import numpy as np
import onnx_ir

from ingot.errors import LoadError
from ingot.load.onnx.tensors import DTYPES, unpacked
from ingot.support.files import MappedFile, open_regular

MAX_LOCATION_CHARACTERS = 1024  # of the name of an external file


def map_external(
    tensor: onnx_ir.ExternalTensor, folder: str, maps: dict[str, MappedFile | bytes], where: str
) -> onnx_ir.Tensor:
    """Return the tensor with its data mapped, not copied; `maps` holds the files that are already open.

    Raises LoadError for a location outside the folder, for anything but a regular file, and for incomplete data.
    """
    location = str(tensor.location)
    if location not in maps:
        maps[location] = _map_file(folder, location, where)
    mapped = maps[location]
    offset = tensor.offset or 0
    needed = DTYPES[tensor.dtype.value].nbytes(math.prod(tensor.shape.numpy()))
    if offset + needed > len(mapped):
        raise LoadError(
            f"{where}: external data {location!r} is too short, got {len(mapped)} bytes,"
            f" expected {offset + needed} (offset {offset} + {needed})"
        )
    return view_of(tensor, mapped, offset)


def view_of(tensor: onnx_ir.TensorProtocol, content: MappedFile | memoryview | bytes, offset: int) -> onnx_ir.Tensor:
    """Return the tensor as a view of `content` from byte `offset`, which need not be aligned.

    Elements smaller than a byte are copied.
    """
    dtype, shape = DTYPES[tensor.dtype.value], tensor.shape.numpy()
    count = math.prod(shape)
    if not count:
        array = np.empty(shape, dtype.numpy)
    elif dtype.bits < 8:
        array = unpacked(content, dtype, count, offset).reshape(shape)
    else:
        array = np.frombuffer(content, dtype.numpy, count, offset).reshape(shape)
    if sys.byteorder == "big":
        array = array.byteswap()
    return onnx_ir.Tensor(array, dtype=tensor.dtype, name=tensor.name)


def _components(location: str, where: str) -> list[str]:
    if len(location) > MAX_LOCATION_CHARACTERS:
        raise LoadError(f"{where}: external data location is too long, got {len(location)} characters")
    if not location or "\0" in location or "\\" in location or ":" in location:
        raise LoadError(f"{where}: external data location is not a relative path, got {location!r}")
    if location.startswith("/"):
        raise LoadError(f"{where}: external data location is outside the model's folder, got {location!r}")
    components = [c for c in location.split("/") if c not in ("", ".")]
    if not components or ".." in components:
        raise LoadError(f"{where}: external data location is outside the model's folder, got {location!r}")
    return components


def _map_file(folder: str, location: str, where: str) -> MappedFile | bytes:
    descriptor = open_regular(folder, _components(location, where), f"{where}: external data {location!r}")
    try:
        return MappedFile(descriptor, f"{where}: external data {location!r}") if os.fstat(descriptor).st_size else b""
    finally:
        os.close(descriptor)

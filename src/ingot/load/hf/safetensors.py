"""The safetensors format: eight bytes of length, a JSON header, the tensors' bytes without gaps.

Format: github.com/huggingface/safetensors. The whole header is checked before any of it is used; the bytes of tensors
are mapped, and read on access to the array.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.ir import dtype
from ingot.ir.dtype import DType
from ingot.ir.graph import MAX_RANK, Graph
from ingot.load.hf.strict_json import parse_object, shown
from ingot.support.files import MappedFile, release

MAX_HEADER_BYTES = 8 << 20  # of a file's header
MAX_NAME_BYTES = 1024  # of a tensor's name
_MAX_SHOWN_PROBLEMS = 20
_LENGTH_BYTES = 8
_PIECE_BYTES = 4 << 20
_MAX_RANK = 64  # of the format in other readers; Ingot's own limit is lower
_MAX_BYTES = 1 << 62

DTYPES = {
    "BOOL": dtype.boolean,
    "U8": dtype.u8,
    "I8": dtype.i8,
    "F8_E4M3": dtype.f8e4m3fn,
    "U16": dtype.u16,
    "I16": dtype.i16,
    "F16": dtype.f16,
    "BF16": dtype.bf16,
    "U32": dtype.u32,
    "I32": dtype.i32,
    "F32": dtype.f32,
    "U64": dtype.u64,
    "I64": dtype.i64,
    "F64": dtype.f64,
}


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor of a file; `offset` is its first byte in the file at `path`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    path: str
    offset: int
    content: MappedFile | bytes = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.dtype.nbytes(math.prod(self.shape))

    @property
    def is_quantized(self) -> bool:
        """Whether its bytes are quantized values with scales."""
        return False

    @property
    def becomes_floats(self) -> bool:
        """Whether its bytes are quantized values that become floats of more bytes."""
        return False

    def add_to(self, graph: Graph, name: str) -> str:
        """Add the elements as a weight of a graph."""
        return graph.add_weight(name, self.array())

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the elements in order, some megabytes at a time; the pages of each piece are released after use."""
        elements = self.array().reshape(-1)
        step = _PIECE_BYTES // self.dtype.itemsize
        for start in range(0, elements.size, step):
            piece = elements[start : start + step]
            yield piece
            release(piece)

    def equals(self, other: StoredTensor) -> bool:
        """Return whether another tensor has the same dtype, shape and elements, bit for bit; both are read."""
        if (self.dtype, self.shape, self.nbytes) != (other.dtype, other.shape, other.nbytes):
            return False
        pairs = zip(self.pieces(), other.pieces(), strict=True)
        return all(np.array_equal(first.view(np.uint8), second.view(np.uint8)) for first, second in pairs)

    def array(self) -> np.ndarray:
        """Return the elements as a view of the mapped file: read-only, without reading, and unaligned if the
        file is.

        Raises LoadError for booleans that are neither 0 nor 1 (booleans are read).
        """
        count = math.prod(self.shape)
        if not count:
            array = np.empty(self.shape, self.dtype.numpy)
            array.flags.writeable = False
            return array
        if self.dtype is dtype.boolean:
            stored = np.frombuffer(self.content, np.uint8, count, self.offset)
            if stored.max() > 1:
                raise LoadError(f"{self.path}: tensor {shown(self.name)} holds {stored.max()}, expected 0 or 1")
        return np.frombuffer(self.content, self.dtype.numpy, count, self.offset).reshape(self.shape)


def read_safetensors(descriptor: int, path: str) -> dict[str, StoredTensor]:
    """Return the tensors of an open file by name, in the order of their bytes; the file stays mapped while any of them
    exists.

    Raises LoadError that lists the problems, UnsupportedError for dtypes that Ingot does not have, LimitError for a
    header beyond MAX_HEADER_BYTES. For a file that another program changes afterwards see `files.MappedFile`.
    """
    size = os.fstat(descriptor).st_size
    start, header = _read_header(descriptor, size, path)
    rows = _checked_rows(header, size - start, path)
    if size == start:
        content: MappedFile | bytes = b""
    else:
        content = MappedFile(descriptor, path)
        if len(content) != size:
            raise LoadError(f"{path}: changed while it was read, got {len(content)} bytes, expected {size}")
    offset = 0 if size == start else start
    return {name: StoredTensor(name, kind, shape, path, offset + first, content) for first, name, kind, shape in rows}


def listed(problems: list[str]) -> str:
    """Join problems into one message, limited to the first ones."""
    return "; ".join(problems[:_MAX_SHOWN_PROBLEMS]) + ("; and more" if len(problems) > _MAX_SHOWN_PROBLEMS else "")


def _read_header(descriptor: int, size: int, path: str) -> tuple[int, dict[str, Any]]:
    """Return the offset of the tensors' bytes, and the header."""
    if size < _LENGTH_BYTES:
        raise LoadError(f"{path}: too short for safetensors, got {size} bytes, expected at least {_LENGTH_BYTES}")
    first = os.pread(descriptor, 64, 0)
    length = int.from_bytes(first[:_LENGTH_BYTES], "little")
    if b"git-lfs" in first:
        raise LoadError(f"{path}: a Git LFS pointer, expected the file that it points to")
    if length > size - _LENGTH_BYTES:
        raise LoadError(f"{path}: header has {length} bytes, file has {size}")
    if length > MAX_HEADER_BYTES:
        raise LimitError(f"{path}: header too large, got {length} bytes, expected at most {MAX_HEADER_BYTES}")
    text = os.pread(descriptor, length, _LENGTH_BYTES)
    if len(text) != length:
        raise LoadError(f"{path}: header is cut off, got {len(text)} bytes, expected {length}")
    if not text.startswith(b"{") or not text.rstrip(b" ").endswith(b"}"):
        raise LoadError(f"{path}: header is not a JSON object followed by spaces, it starts with {text[:16]!r}")
    return _LENGTH_BYTES + length, parse_object(text, f"{path}: header")


# Offset after the header, name, dtype, shape.
_Row = tuple[int, str, DType, tuple[int, ...]]


def _checked_rows(header: dict[str, Any], data_bytes: int, path: str) -> list[_Row]:
    problems: list[str] = []
    unsupported: list[str] = []
    spans: list[tuple[int, int, str]] = []
    rows: list[_Row] = []
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        problems.append("__metadata__ is not an object of strings")
    for name, entry in header.items():
        if len(problems) > _MAX_SHOWN_PROBLEMS:
            break
        problem = _problem_of(name, entry)
        if problem:
            problems.append(f"tensor {shown(name)}: {problem}")
            continue
        (begin, end), shape, kind = entry["data_offsets"], tuple(entry["shape"]), DTYPES.get(entry["dtype"])
        spans.append((begin, end, name))
        if kind is None:
            unsupported.append(f"tensor {shown(name)} is {shown(entry['dtype'])}")
        elif len(shape) > MAX_RANK:
            unsupported.append(f"tensor {shown(name)} has rank {len(shape)}, expected at most {MAX_RANK}")
        elif kind.nbytes(math.prod(max(dim, 1) for dim in shape)) > _MAX_BYTES:  # strides ignore a dim of 0
            problems.append(f"tensor {shown(name)}: shape is {shown(list(shape))}, expected at most 2^62 bytes")
        elif (needed := kind.nbytes(math.prod(shape))) != end - begin:
            problems.append(f"tensor {shown(name)}: {kind}{list(shape)} takes {needed} bytes, got {end - begin}")
        else:
            rows.append((begin, name, kind, shape))
    if not problems:
        problems = _layout_problems(spans, data_bytes)
    if problems:
        raise LoadError(f"{path}: {listed(problems)}")
    if unsupported:
        raise UnsupportedError(f"{path}: {listed(unsupported)}; dtypes are {', '.join(DTYPES)}")
    return sorted(rows, key=lambda row: row[0])


def _problem_of(name: str, entry: Any) -> str | None:
    """Return the problem of a malformed header entry, before its dtype is looked up, or None."""
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        return f"name has {len(name.encode())} bytes, expected 1 to {MAX_NAME_BYTES}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return f"got {shown(entry)}, expected dtype, shape and data_offsets"
    if not isinstance(entry["dtype"], str):
        return f"dtype is {shown(entry['dtype'])}, expected a string"
    shape, span = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not all(type(dim) is int and dim >= 0 for dim in shape):
        return f"shape is {shown(shape)}, expected a list of integers from 0 on"
    if len(shape) > _MAX_RANK:
        return f"shape has {len(shape)} dims, expected at most {_MAX_RANK}"
    if not isinstance(span, list) or len(span) != 2 or not all(type(byte) is int for byte in span):
        return f"data_offsets is {shown(span)}, expected two integers"
    if not 0 <= span[0] <= span[1]:
        return f"data_offsets is {shown(span)}, expected 0 <= begin <= end"
    return None


def _layout_problems(spans: list[tuple[int, int, str]], data_bytes: int) -> list[str]:
    """Check that tensors cover the bytes after the header exactly, each byte once."""
    problems: list[str] = []
    covered = 0
    for begin, end, name in sorted(spans):
        if begin != covered and len(problems) <= _MAX_SHOWN_PROBLEMS:
            what = "overlaps the one before" if begin < covered else "leaves a gap before it"
            problems.append(f"tensor {shown(name)} {what}, begins at byte {begin}, expected {covered}")
        covered = max(covered, end)
    if covered != data_bytes:
        cut = "; it is cut short: copy or fetch it again" if data_bytes < covered else ""
        problems.append(f"tensors take {covered} bytes, the file has {data_bytes} after its header{cut}")
    return problems

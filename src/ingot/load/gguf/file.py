"""The GGUF format, versions 2 and 3: metadata by key, tensors by name, and the tensors' bytes, all
little-endian.

Format: github.com/ggml-org/ggml, docs/gguf.md. The file is mapped, and its whole header is checked before any of it is
used; a count is compared with the remaining bytes before it is used. No tensor is read.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.gguf.metadata import SCALARS, STRING, Entry, Metadata
from ingot.load.gguf.rewritten import REWRITTEN
from ingot.load.hf.strict_json import shown
from ingot.ops.blocks import ALL_BLOCKS
from ingot.support.files import MappedFile, open_regular

MAX_KEYS = 1 << 14  # of a file's metadata
MAX_KEY_BYTES = (1 << 16) - 1  # of a key of metadata
MAX_STRING_BYTES = 64 << 20  # of a text of metadata
MAX_ELEMENTS = 1 << 22  # of an array of metadata
MAX_TENSORS = 1 << 16  # of a file
MAX_NAME_BYTES = 63  # of a tensor's name
MAX_DIMS = 4  # of a tensor
MAX_ALIGNMENT = 1 << 16  # bytes between the beginnings of tensors

MAX_FILES = 10_000  # of a model

MAGIC = b"GGUF"
_SPLIT, _SPLITS = "split.no", "split.count"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_VERSIONS = (2, 3)
_ARRAY = 9
_MIN_KEY_BYTES = 8 + 1 + 4 + 1  # length, a letter, type, the smallest value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8  # length, a letter, rank, type, offset
_MAX_ELEMENTS = 1 << 62
_CUT = "; if it is cut short, copy or fetch it again"

# Type names by number.
TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1", 10: "q2_k", 11: "q3_k",
    12: "q4_k", 13: "q5_k", 14: "q6_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s",
    20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64",
    29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4", 41: "q1_0",
}  # fmt: skip
DECODED = ("f32", "f16", "bf16", *ALL_BLOCKS, *REWRITTEN)  # the TYPES that can be read
# Elements and bytes of a block; for plain numbers, and for block types that no op decodes.
SIZES = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "f64": (1, 8), "i8": (1, 1), "i16": (1, 2), "i32": (1, 4),
    "i64": (1, 8), "q8_1": (32, 40), "q8_k": (256, 292), "tq1_0": (256, 54), "nvfp4": (64, 36), "q1_0": (128, 18),
} | {name: (row.elements, row.nbytes) for name, row in ALL_BLOCKS.items()}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """A tensor of a file: shape is [rows, columns], type one of TYPES, offset its first byte in the file's content."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    content: MappedFile = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A file whose header is valid, or the first of several files of one model, with the tensors of all."""

    path: str
    version: int
    metadata: Metadata
    tensors: dict[str, GgufTensor]

    @property
    def bits_per_weight(self) -> float:
        """Bits of the file per element of its tensors, scales included."""
        elements = sum(math.prod(tensor.shape) for tensor in self.tensors.values())
        return 8 * sum(tensor.nbytes for tensor in self.tensors.values()) / max(elements, 1)


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a file that begins with the GGUF magic, or has the suffix .gguf."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC or os.fspath(path).endswith(".gguf")


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Read the metadata of a file and the headers of its tensors; of a model in several files, the first of them, and
    the headers of all.

    Raises FileNotFoundError for a missing file, LoadError for one that is not GGUF or contradicts itself or the others,
    LimitError for sizes beyond the limits, UnsupportedError for rows with partial blocks of a type that is not read.
    """
    first = _read(path)
    count = first.metadata.integer(_SPLITS) or 1
    return first if count == 1 else _joined(first, count)


def _joined(first: GgufFile, count: int) -> GgufFile:
    """Return the first of several files with the tensors of all. Raises LoadError for a file that is another's part."""
    found = _PART.fullmatch(os.path.basename(first.path))
    if found is None or int(found[3]) != count or not 1 <= count <= MAX_FILES:
        raise LoadError(f"{first.path}: one of {count} files, expected a name such as model-00001-of-{count:05}.gguf")
    begin = os.path.join(os.path.dirname(first.path), found[1])
    if int(found[2]) != 1:
        raise LoadError(f"{first.path}: not the first of {count} files, expected {begin}-00001-of-{found[3]}.gguf")
    tensors: dict[str, GgufTensor] = {}
    for index in range(count):
        part = first if index == 0 else _read(f"{begin}-{index + 1:05}-of-{found[3]}.gguf")
        part_of = part.metadata.integer(_SPLIT), part.metadata.integer(_SPLITS)
        if part_of != (index, count):
            raise LoadError(f"{part.path}: part {part_of[0]} of {part_of[1]}, expected part {index} of {count}")
        twice = next((name for name in part.tensors if name in tensors), None)
        if twice is not None:
            raise LoadError(f"{part.path}: tensor {shown(twice)} is in an earlier file, too")
        tensors |= part.tensors
    expected = first.metadata.integer("split.tensors.count")
    if expected is not None and expected != len(tensors):
        raise LoadError(f"{first.path}: {count} files have {len(tensors)} tensors, expected {expected}")
    return GgufFile(first.path, first.version, first.metadata, tensors)


def _read(path: str | os.PathLike[str]) -> GgufFile:
    """Read one file, as `read_gguf`."""
    where = os.fspath(path)
    folder, name = os.path.split(os.path.realpath(path, strict=True))
    descriptor = open_regular(folder, [name], where)
    try:
        size = os.fstat(descriptor).st_size
        if size < 24:
            raise LoadError(f"{where}: too short for GGUF, got {size} bytes, expected at least 24")
        content = MappedFile(descriptor, where)
    finally:
        os.close(descriptor)
    cursor = _Cursor(content, where)
    version = _version(cursor)
    counts = cursor.number("Q", "count of tensors"), cursor.number("Q", "count of keys")
    cursor.expect(counts[0], _MIN_TENSOR_BYTES, MAX_TENSORS, "tensors")
    cursor.expect(counts[1], _MIN_KEY_BYTES, MAX_KEYS, "keys")
    entries: dict[str, Entry] = {}
    for index in range(counts[1]):
        key, entry = _entry(cursor, index)
        if key in entries:
            raise LoadError(f"{where}: key {shown(key)} appears twice")
        entries[key] = entry
    metadata = Metadata(where, entries)
    return GgufFile(where, version, metadata, _tensors(cursor, counts[0], _alignment(metadata)))


class _Cursor:
    """A reader of a mapped file, from begin to end, with checked bounds."""

    def __init__(self, content: MappedFile, path: str):
        self.content = content
        self.path = path
        self.position = 0

    @property
    def left(self) -> int:
        """The number of remaining bytes."""
        return len(self.content) - self.position

    def take(self, nbytes: int, what: str) -> bytes:
        """Return the next bytes. Raises LoadError if there are fewer."""
        if nbytes > self.left:
            raise LoadError(
                f"{self.path}: {what} goes beyond the end, got {nbytes} bytes, expected at most {self.left}{_CUT}"
            )
        start, self.position = self.position, self.position + nbytes
        return self.content[start : self.position]

    def number(self, code: str, what: str) -> int:
        """Return the next integer, of a format code of `struct`."""
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize(code), what))
        return int(value)

    def text(self, most: int, what: str) -> bytes:
        """Return the next string: its length, then its bytes. Raises LimitError for more than `most` bytes that
        exist.
        """
        nbytes = self.number("Q", f"length of {what}")
        if most < nbytes <= self.left:
            raise LimitError(f"{self.path}: {what} is too long, got {nbytes} bytes, expected at most {most}")
        return self.take(nbytes, what)

    def name(self, most: int, what: str) -> str:
        """Return the next string, of one byte or more, in UTF-8."""
        name = self.text(most, what)
        try:
            decoded = name.decode("utf-8")
        except UnicodeDecodeError as error:
            raise LoadError(f"{self.path}: {what}: not UTF-8, {error.reason} at byte {error.start}") from error
        if not decoded:
            raise LoadError(f"{self.path}: {what} is empty, expected 1 to {most} bytes")
        return decoded

    def expect(self, count: int, each: int, most: int, what: str) -> None:
        """Raise LoadError if the rest of the file is too short for `count` items of `each` bytes, LimitError beyond
        `most`.
        """
        if count * each > self.left:
            capacity = self.left // each
            raise LoadError(
                f"{self.path}: too many {what} for the file, got {count}, expected at most {capacity}{_CUT}"
            )
        if count > most:
            raise LimitError(f"{self.path}: too many {what}, got {count}, expected at most {most}")


def _version(cursor: _Cursor) -> int:
    magic = cursor.take(4, "magic")
    if magic != MAGIC:
        what = "a Git LFS pointer" if magic == b"vers" else "not GGUF"
        raise LoadError(f"{cursor.path}: {what}, it begins with {magic!r}, expected {MAGIC!r}")
    version = cursor.number("I", "version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        got = "big-endian" if swapped else f"version {version}"
        raise LoadError(f"{cursor.path}: cannot be read, got {got}, expected little-endian GGUF of version 2 or 3")
    return version


def _entry(cursor: _Cursor, index: int) -> tuple[str, Entry]:
    """Return the next key with its value."""
    key = cursor.name(MAX_KEY_BYTES, f"key {index}")
    what = f"key {shown(key)}"
    kind = cursor.number("I", f"type of {what}")
    if kind == STRING:
        return key, Entry("string", cursor.text(MAX_STRING_BYTES, what))
    if kind != _ARRAY:
        dtype = _scalar(cursor, kind, what)
        (value,) = np.frombuffer(cursor.take(dtype.itemsize, what), np.uint8 if dtype.kind == "b" else dtype)
        return key, Entry(dtype.name, _checked_flags(cursor, dtype, value, what).item())
    kind = cursor.number("I", f"type of {what}")
    count = cursor.number("Q", f"count of {what}")
    if kind == _ARRAY:
        raise LoadError(f"{cursor.path}: {what}: an array of arrays, expected numbers, truth values or strings")
    if kind == STRING:
        cursor.expect(count, 8, MAX_ELEMENTS, f"strings of {what}")
        return key, Entry("string", [cursor.text(MAX_STRING_BYTES, f"string {i} of {what}") for i in range(count)])
    dtype = _scalar(cursor, kind, what)
    cursor.expect(count, dtype.itemsize, MAX_ELEMENTS, f"elements of {what}")
    data = np.frombuffer(cursor.take(count * dtype.itemsize, what), np.uint8 if dtype.kind == "b" else dtype)
    return key, Entry(dtype.name, _checked_flags(cursor, dtype, data, what))


def _scalar(cursor: _Cursor, kind: int, what: str) -> np.dtype:
    if kind not in SCALARS:
        raise LoadError(f"{cursor.path}: {what}: unknown type, got {kind}, expected 0 to 12")
    return SCALARS[kind]


def _checked_flags(cursor: _Cursor, dtype: np.dtype, data: np.ndarray, what: str) -> np.ndarray:
    if dtype.kind != "b":
        return data
    if data.size and data.max() > 1:
        raise LoadError(f"{cursor.path}: {what}: not a truth value, got {data.max()}, expected 0 or 1")
    return data.astype(bool)


def _alignment(metadata: Metadata) -> int:
    entry = metadata.entries.get("general.alignment")
    if entry is None:
        return 32
    where = f"{metadata.path}: key 'general.alignment'"
    if entry.type != "uint32" or isinstance(entry.value, np.ndarray):
        raise LoadError(f"{where}: wrong type, got {entry.described}, expected a uint32")
    if entry.value < 1 or entry.value & (entry.value - 1) or entry.value > MAX_ALIGNMENT:
        raise LoadError(f"{where}: got {entry.value}, expected a power of two of at most {MAX_ALIGNMENT}")
    return int(entry.value)


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    """Return tensors by name, in the file's order; each begins at the aligned end of the previous one."""
    found = list(_headers(cursor, count))
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    expected = start
    for tensor in found:
        where = f"{cursor.path}: tensor {shown(tensor.name)}"
        if tensor.name in tensors:
            raise LoadError(f"{where} appears twice")
        if tensor.offset != expected - start:
            raise LoadError(f"{where}: bad offset, got {tensor.offset}, expected {expected - start}")
        end = expected + tensor.nbytes
        if tensor.nbytes and end > cursor.position + cursor.left:
            raise LoadError(
                f"{where}: goes beyond the end, got {tensor.nbytes} bytes from byte {expected} on,"
                f" expected at most {max(0, cursor.position + cursor.left - expected)}{_CUT}"
            )
        tensors[tensor.name] = replace(tensor, offset=expected)
        expected = -(-end // alignment) * alignment
    return tensors


def _headers(cursor: _Cursor, count: int) -> Iterator[GgufTensor]:
    """Yield each tensor of the header; its offset is relative to the first tensor."""
    for index in range(count):
        name = cursor.name(MAX_NAME_BYTES, f"name of tensor {index}")
        what = f"tensor {shown(name)}"
        where = f"{cursor.path}: {what}"
        rank = cursor.number("I", f"rank of {what}")
        if rank > MAX_DIMS:
            raise LoadError(f"{where}: too many dims, got {rank}, expected at most {MAX_DIMS}")
        shape = tuple(cursor.number("q", f"dims of {what}") for _ in range(rank))[::-1]
        if any(dim < 0 for dim in shape) or math.prod(max(dim, 1) for dim in shape) > _MAX_ELEMENTS:
            raise LoadError(f"{where}: bad shape, got {list(shape)}, expected dims from 0 on and at most 2^62 elements")
        kind = cursor.number("I", f"type of {what}")
        offset = cursor.number("Q", f"offset of {what}")
        if kind not in TYPES:
            raise LoadError(f"{where}: unknown type number, got {kind}, expected one of {', '.join(map(str, TYPES))}")
        type = TYPES[kind]
        elements, nbytes = SIZES[type]
        columns = shape[-1] if shape else 1
        if columns % elements and type not in DECODED:
            raise UnsupportedError(f"{where}: type is not supported, got {type}, expected one of {', '.join(DECODED)}")
        if columns % elements:
            raise LoadError(f"{where}: rows are not whole blocks of {type}, got {columns}, expected {elements} each")
        yield GgufTensor(name, type, shape, offset, math.prod(shape) // elements * nbytes, cursor.content)

"""Read a .pt2 file as an ExportedProgram, without running anything in the file.

The file is a zip of a JSON program, of tensors as raw bytes, and of sample inputs, compiled libraries and notes, which
are not read. Torch's own loader unpickles and links such content.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import torch
from torch._export.serde import schema
from torch._export.serde.serialize import ExportedProgramDeserializer, deserialize_scalar_type

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.aten.failures import TORCH_ERRORS
from ingot.load.aten.serialized import read_payloads, read_program
from ingot.load.hf.strict_json import parse_object, shown
from ingot.support.files import MappedFile

# Elements of a tensor may share memory (stride 0) and are copied later; this limits the size of the copy.
OVERLAPPING_BYTES_MAX = 64 << 20
LEAST_MAPPED_BYTES = 1 << 16  # of a tensor that is mapped where that is asked for
_HEADER_MAGIC, _HEADER_BYTES = b"PK\3\4", 30  # of a record in a zip file


def read_archive(file: IO[bytes], where: str, *, is_mapped: bool = False) -> torch.export.ExportedProgram:
    """Read the program that `torch.export.save` wrote to `file`; its tensors are copied to CPU memory. is_mapped: large
    tensors are views of the file, without checksum verification, and are read on access.

    Raises LoadError for any other file, LimitError for sizes that the file cannot hold, UnsupportedError for content
    that requires Python: tensors of custom classes, custom objects, ops that are not ATen's.
    """
    try:
        archive = Archive(file, where, is_mapped)
        program = read_program(archive.read("models/model.json"), f"{where}: model.json")
        weights = dict(_tensors(archive, "weights"))
        constants = dict(_tensors(archive, "constants"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ExportedProgramDeserializer().deserialize(program, weights, constants)
    except (*TORCH_ERRORS, OSError, EOFError, zipfile.BadZipFile) as error:
        raise LoadError(f"{where}: not an exported program, got {str(error)[:200]!r}") from error


def read_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata of an exported program: the torch version that wrote it, and the version of its
    schema.

    Raises the errors of `read_archive` about the file itself.
    """
    where = os.fspath(path)
    with open(path, "rb") as file:
        document = parse_object(Archive(file, where).read("models/model.json"), f"{where}: model.json")
    schema, opsets = document.get("schema_version"), document.get("opset_version")
    if not isinstance(schema, dict) or not {"major", "minor"} <= schema.keys() or not isinstance(opsets, dict):
        raise LoadError(f"{where}: model.json: got {shown(schema)} and {shown(opsets)}, expected versions")
    facts = {"producer": f"torch {document.get('torch_version', '')}".strip()}
    return facts | {"schema": f"{schema['major']}.{schema['minor']}", "opsets": opsets}


@contextlib.contextmanager
def _readable(where: str) -> Iterator[None]:
    """Convert the errors of `zipfile` for files that it cannot read to LoadError."""
    try:
        yield
    except (zipfile.BadZipFile, RuntimeError, ValueError, LookupError, struct.error, EOFError) as error:
        raise LoadError(f"{where}: not an exported program, got {str(error)[:200]!r}") from error


class Archive:
    """The records of a zip file that are stored without compression, so that no record is larger than the file."""

    def __init__(self, file: IO[bytes], where: str, is_mapped: bool = False):
        self.where = where
        with _readable(where):
            self._zip = zipfile.ZipFile(file)
        self._mapped = MappedFile(file.fileno(), where) if is_mapped else None
        entries = self._zip.infolist()
        root = entries[0].filename.partition("/")[0] if entries else ""
        self._entries = {entry.filename.removeprefix(f"{root}/"): entry for entry in entries}
        packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
        if packed:
            raise LoadError(f"{where}: record {shown(packed[0])} is compressed, expected stored records")
        if len(self._entries) != len(entries):
            raise LoadError(f"{where}: records of the same name, expected one of each")
        size = file.seek(0, 2)
        total = sum(entry.file_size for entry in entries)
        if total > size or any(entry.file_size != entry.compress_size for entry in entries):
            raise LimitError(f"{where}: records of {total} bytes in a file of {size}")
        outside = [entry for entry in entries if not 0 <= entry.header_offset < size]
        if outside:
            got = f"{shown(outside[0].filename)} at byte {outside[0].header_offset}"
            raise LoadError(f"{where}: a record outside of the file of {size} bytes, got {got}")
        if self.read("archive_format") != b"pt2":
            raise LoadError(f"{where}: not an exported program, got another archive")
        if "byteorder" in self._entries and self.read("byteorder") != sys.byteorder.encode():
            raise UnsupportedError(f"{where}: bytes in another order, expected {sys.byteorder} endian")

    def size(self, name: str) -> int:
        """Return the bytes of a record. Raises LoadError for a missing one."""
        if name not in self._entries:
            raise LoadError(f"{self.where}: missing {shown(name)}, expected what torch.export.save writes since 2.9")
        return self._entries[name].file_size

    def read(self, name: str) -> bytes:
        """Read a record and verify its checksum. Raises LoadError like `size`."""
        self.size(name)
        with _readable(self.where):
            return self._zip.read(self._entries[name])

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Read a record as a vector. Raises LoadError like `size`, and for an incomplete element at its end."""
        size = self.size(name)
        if size % dtype.itemsize:
            raise LoadError(f"{self.where}: {shown(name)} has {size} bytes, expected elements of {dtype.itemsize}")
        if self._mapped is not None and size > LEAST_MAPPED_BYTES:
            return self._view(self._mapped, self._entries[name]).view(dtype)
        content = torch.empty(size, dtype=torch.uint8)
        if size:
            with _readable(self.where), self._zip.open(self._entries[name]) as record:
                read = record.readinto(content.numpy())  # type: ignore[attr-defined]
                if read != size or record.read(1):
                    raise LoadError(f"{self.where}: {shown(name)} is cut short")
        return content.view(dtype)

    def _view(self, mapped: MappedFile, entry: zipfile.ZipInfo) -> torch.Tensor:
        """View the bytes of a stored record in the mapped file, after its local header: 30 bytes, a name and a
        field.
        """
        at = entry.header_offset
        if not 0 <= at <= len(mapped) - _HEADER_BYTES or mapped[at : at + len(_HEADER_MAGIC)] != _HEADER_MAGIC:
            raise LoadError(f"{self.where}: {shown(entry.filename)} has no header")
        begin = at + _HEADER_BYTES + sum(struct.unpack_from("<HH", mapped, at + _HEADER_BYTES - 4))
        if begin + entry.file_size > len(mapped):
            raise LoadError(f"{self.where}: {shown(entry.filename)} is cut short")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing writes to what is only looked at
            return torch.from_numpy(np.frombuffer(mapped, np.uint8, entry.file_size, begin))


def _tensors(archive: Archive, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of `data/<kind>` by qualified name; tensors in the same record share its memory."""
    records: dict[tuple[str, torch.dtype], torch.Tensor] = {}
    overlapping = 0
    where = f"{archive.where}: {kind}"
    for name, payload in read_payloads(archive.read(f"data/{kind}/model_{kind}_config.json"), where).items():
        each = f"{where}: {shown(name)}"
        meta = payload.tensor_meta
        if payload.use_pickle or meta is None:
            raise UnsupportedError(f"{each}: is pickled, which runs code when read, expected a plain tensor")
        if meta.layout != schema.Layout.Strided:
            raise UnsupportedError(f"{each}: layout {meta.layout.name}, expected strided memory")
        dtype = deserialize_scalar_type(meta.dtype)
        key = (payload.path_name, dtype)
        if key not in records:
            records[key] = archive.tensor(f"data/{kind}/{payload.path_name}", dtype)
        shape, strides = _numbers(meta.sizes, each), _numbers(meta.strides, each)
        (offset,) = _numbers([meta.storage_offset], each)
        available = records[key].numel()
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if 0 not in shape and last >= available:
            raise LimitError(f"{each}: shape {shape} with strides {strides} from {offset}, got {available} elements")
        overlapping += math.prod(shape) * dtype.itemsize if math.prod(shape) > available else 0
        if overlapping > OVERLAPPING_BYTES_MAX:
            raise LimitError(
                f"{each}: shape {shape} of {available} elements, expected at most {OVERLAPPING_BYTES_MAX} bytes"
            )
        tensor = records[key].as_strided(shape, strides, 0 if 0 in shape else offset)
        yield name, torch.nn.Parameter(tensor, requires_grad=False) if payload.is_param else tensor


def _numbers(sizes: list[schema.SymInt], where: str) -> list[int]:
    """Return known sizes, strides or offsets of a stored tensor. Raises LoadError for symbols and negative numbers."""
    numbers = [size.value if size.type == "as_int" else -1 for size in sizes]
    if min(numbers, default=0) < 0:
        raise LoadError(f"{where}: sizes {shown(numbers)}, expected numbers from 0")
    return numbers

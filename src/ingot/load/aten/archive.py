"""A .pt2 file -> ExportedProgram, and nothing that the file says is run.

The file is a zip of a JSON program, of tensors as raw bytes, and of sample inputs, compiled libraries and notes, which
are not read. Torch's own loader unpickles and links what it finds there.
"""

from __future__ import annotations

import math
import sys
import warnings
import zipfile
from collections.abc import Iterator
from typing import IO

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import ExportedProgramDeserializer, deserialize_scalar_type

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.aten.serialized import read_payloads, read_program
from ingot.load.hf.strict_json import shown

# Elements of a tensor may lie in the same memory (stride 0) and are spread out later; this bounds what comes of it.
OVERLAPPING_BYTES_MAX = 64 << 20
# What torch raises on a program that contradicts itself; the last is its verifier's, which has no type above it.
CONTRADICTION = (
    RuntimeError, ValueError, TypeError, LookupError, AssertionError, AttributeError, ArithmeticError,
    torch._export.verifier.SpecViolationError,
)  # fmt: skip


def read_archive(file: IO[bytes], where: str) -> torch.export.ExportedProgram:
    """The program that `torch.export.save` wrote to `file`; its tensors are CPU memory of their own.

    Raises LoadError for any other file, LimitError for sizes that the file cannot hold, UnsupportedError for what only
    Python could read: tensors of classes of their own, custom objects, ops that are not ATen's.
    """
    try:
        archive = Archive(file, where)
        program = read_program(archive.read("models/model.json"), f"{where}: model.json")
        weights = dict(_tensors(archive, "weights"))
        constants = dict(_tensors(archive, "constants"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ExportedProgramDeserializer().deserialize(program, weights, constants)
    except (*CONTRADICTION, OSError, EOFError, zipfile.BadZipFile) as error:
        raise LoadError(f"{where}: not an exported program, got {str(error)[:200]!r}") from error


class Archive:
    """The records of a zip file that are stored as they are, so that no record is larger than the file."""

    def __init__(self, file: IO[bytes], where: str):
        self.where = where
        self._zip = zipfile.ZipFile(file)
        entries = self._zip.infolist()
        root = entries[0].filename.partition("/")[0] if entries else ""
        self._entries = {entry.filename.removeprefix(f"{root}/"): entry for entry in entries}
        packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
        if packed:
            raise LoadError(f"{where}: record {shown(packed[0])} is compressed, expected stored records")
        if len(self._entries) != len(entries):
            raise LoadError(f"{where}: records of the same name, expected one of each")
        size = file.seek(0, 2)
        held = sum(entry.file_size for entry in entries)
        if held > size or any(entry.file_size != entry.compress_size for entry in entries):
            raise LimitError(f"{where}: records of {held} bytes in a file of {size}")
        if self.read("archive_format") != b"pt2":
            raise LoadError(f"{where}: not an exported program, got another archive")
        if "byteorder" in self._entries and self.read("byteorder") != sys.byteorder.encode():
            raise UnsupportedError(f"{where}: bytes in another order, expected {sys.byteorder} endian")

    def size(self, name: str) -> int:
        """Bytes of a record. Raises LoadError for one that is not there."""
        if name not in self._entries:
            raise LoadError(f"{self.where}: missing {shown(name)}, expected what torch.export.save writes since 2.9")
        return self._entries[name].file_size

    def read(self, name: str) -> bytes:
        """A record, whose checksum is verified. Raises LoadError like `size`."""
        self.size(name)
        return self._zip.read(self._entries[name])

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A record as a vector. Raises LoadError like `size`, and for a part of an element at its end."""
        size = self.size(name)
        if size % dtype.itemsize:
            raise LoadError(f"{self.where}: {shown(name)} has {size} bytes, expected elements of {dtype.itemsize}")
        content = torch.empty(size, dtype=torch.uint8)
        if size:
            with self._zip.open(self._entries[name]) as record:
                read = record.readinto(content.numpy())  # type: ignore[attr-defined]
                if read != size or record.read(1):
                    raise LoadError(f"{self.where}: {shown(name)} is cut short")
        return content.view(dtype)


def _tensors(archive: Archive, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of `data/<kind>`, by their qualified names; those in one record share its memory."""
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
        held = records[key].numel()
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if 0 not in shape and last >= held:
            raise LimitError(f"{each}: shape {shape} with strides {strides} from {offset}, got {held} elements")
        overlapping += math.prod(shape) * dtype.itemsize if math.prod(shape) > held else 0
        if overlapping > OVERLAPPING_BYTES_MAX:
            raise LimitError(
                f"{each}: shape {shape} of {held} elements, expected at most {OVERLAPPING_BYTES_MAX} bytes"
            )
        tensor = records[key].as_strided(shape, strides, 0 if 0 in shape else offset)
        yield name, torch.nn.Parameter(tensor, requires_grad=False) if payload.is_param else tensor


def _numbers(sizes: list[schema.SymInt], where: str) -> list[int]:
    """Sizes, strides or offsets of a tensor that is there. Raises LoadError for symbols and negative numbers."""
    numbers = [size.value if size.type == "as_int" else -1 for size in sizes]
    if min(numbers, default=0) < 0:
        raise LoadError(f"{where}: sizes {shown(numbers)}, expected numbers from 0")
    return numbers

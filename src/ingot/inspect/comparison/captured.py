"""Arrays of a run by name: in memory up to a limit, beyond it in a temporary file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

MEMORY_BYTES = 256 << 20  # of the arrays in memory; later ones are written to the file
_ALIGNMENT = 64


class Captured(Mapping[str, Any]):
    """The arrays of a run by name. An array from the file is mapped, not read; objects stay in memory.

    The file has no name, so that nothing remains of it. Raises OSError when it cannot be written.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES):
        self._left = memory_bytes
        self._arrays: dict[str, Any] = {}
        self._stored: dict[str, tuple[int, np.dtype, tuple[int, ...]]] = {}
        self._file: Any = None

    def add(self, name: str, array: Any) -> None:
        """Store a copy of an array, in place of an earlier one of this name."""
        self._stored.pop(name, None)
        if not isinstance(array, np.ndarray) or array.dtype.hasobject or array.nbytes <= self._left:
            self._left -= array.nbytes if isinstance(array, np.ndarray) else 0
            self._arrays[name] = np.array(array, order="C") if isinstance(array, np.ndarray) else array
            return
        self._arrays.pop(name, None)
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="ingot-compare-")  # noqa: SIM115  it lives as long as this object
        offset = -(-self._file.seek(0, os.SEEK_END) // _ALIGNMENT) * _ALIGNMENT
        self._file.seek(offset)
        self._file.write(np.ascontiguousarray(array).view(np.uint8).data if array.ndim else array.tobytes())
        self._stored[name] = offset, array.dtype, array.shape

    def __getitem__(self, name: str) -> Any:
        if name in self._arrays:
            return self._arrays[name]
        offset, dtype, shape = self._stored[name]
        self._file.flush()
        return np.memmap(self._file, dtype, "r", offset, shape)

    def __iter__(self) -> Iterator[str]:
        yield from self._arrays
        yield from self._stored

    def __len__(self) -> int:
        return len(self._arrays) + len(self._stored)

    @property
    def file_bytes(self) -> int:
        """Bytes of the temporary file."""
        return 0 if self._file is None else self._file.seek(0, os.SEEK_END)

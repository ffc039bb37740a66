"""The memory of one context: regions that all its plans share, and the guard pages of INGOT_CHECK=3."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.config import check
from ingot.errors import ResourceError
from ingot.lower.weights import allocate

_PROT_NONE = 0
_ALIGNMENT = 64


@dataclass
class Arena:
    """Regions by name; they only grow. `generation` counts the moves, after which pointers must be taken again."""

    regions: dict[str, np.ndarray] = field(default_factory=dict)
    generation: int = 0

    def reserve(self, sizes: dict[str, int]) -> None:
        """Makes each region at least this large; a region that moves loses its contents.

        Raises ResourceError when memory cannot be had.
        """
        for name, nbytes in sizes.items():
            if name not in self.regions or self.regions[name].nbytes < nbytes:
                try:
                    self.regions[name] = _guarded(nbytes) if check() >= 3 else allocate(nbytes)
                except (MemoryError, OSError) as error:
                    raise ResourceError(f"arena: no memory, got {error}, expected {nbytes} bytes") from error
                self.generation += 1

    @property
    def nbytes(self) -> int:
        """Bytes of all regions."""
        return sum(region.nbytes for region in self.regions.values())


def _guarded(nbytes: int) -> np.ndarray:
    """Zeroed bytes that end at an unreadable page, and begin just behind another where the size allows."""
    import cffi

    ffi: Any = cffi.FFI()
    ffi.cdef("int mprotect(void *, size_t, int);")
    libc: Any = ffi.dlopen(None)
    page = mmap.PAGESIZE
    rounded = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    body = -(-rounded // page) * page
    block = np.frombuffer(mmap.mmap(-1, body + 2 * page), np.uint8)
    base = block.ctypes.data
    for guard in (base, base + page + body):
        if libc.mprotect(ffi.cast("void *", guard), page, _PROT_NONE):
            raise OSError("mprotect failed")
    end = page + body
    return block[end - rounded : end - rounded + nbytes]

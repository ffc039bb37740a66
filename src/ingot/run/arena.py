"""The memory of one context: regions that all its plans share, and the guard pages of INGOT_CHECK=3."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ingot.errors import ResourceError
from ingot.run.store import allocate
from ingot.support.config import check
from ingot.support.locks import OwnedLock

_PROT_NONE = 0
_ALIGNMENT = 64
_LEAST_PREFETCH = 64 << 20  # bytes: what is touched before anybody asks for less saves no time
_TOUCHED_AT_ONCE = 32 << 20
_MOST_SPARE = 1 << 20  # of it that may stay touched for nothing


class Memory:
    """Regions by name, and where each lies. Nobody changes one: an arena that grows has another.

    Whoever runs holds the one that it began with, so that growing frees nothing under a run; whoever only knows the
    addresses keeps no region alive.
    """

    __slots__ = ("addresses", "regions")

    def __init__(self, regions: dict[str, np.ndarray]):
        self.regions = regions
        self.addresses = {name: region.ctypes.data for name, region in regions.items()}


class CarriedStates:
    """What states hold between runs that the interpreter, or a program of several segments, computes: arrays by name.

    lock: what such a run holds from its first read of a state to the replacement of the arrays.
    """

    def __init__(self) -> None:
        self.arrays: Mapping[str, Any] = {}
        self.lock = OwnedLock("run")


class Arena:
    """Memory that runs share, one at a time; it only grows. `turn`: u32[1], the lock that a run holds, in C. `begun`:
    the address of the states that hold what they begin with. beginnings: what states begin with where graphs give no
    data, by name, else zeros. carried: states that lie in none of its regions.
    """

    def __init__(self) -> None:
        self.memory = Memory({})
        self.turn = np.zeros(1, np.uint32)
        self.begun = 0
        self.beginnings: dict[str, np.ndarray] = {}
        self.carried = CarriedStates()
        self.checking = OwnedLock("run")  # of runs whose arena Python poisons and looks over
        self._growing = OwnedLock("run")
        self._ahead: dict[str, _Ahead] = {}

    @contextmanager
    def expecting(self, region: str, nbytes: int) -> Iterator[None]:
        """While it is open, a thread of its own touches memory for a region of at most so many bytes, until that is
        reserved: a system gives memory when it is touched first, which takes longer than filling it.
        """
        try:
            if nbytes >= _LEAST_PREFETCH and check() < 3:
                with suppress(ResourceError):  # it may be less that is reserved
                    self._ahead[region] = _Ahead(nbytes)
            yield
        finally:
            if region in self._ahead:
                self._ahead.pop(region).end()

    def reserve(self, sizes: dict[str, int]) -> Memory:
        """The memory, with each region at least this large; a region that moves loses its contents.

        Raises ResourceError when memory cannot be had.
        """
        with self._growing.once():
            now = self.memory.regions
            grown = {name: size for name, size in sizes.items() if name not in now or now[name].nbytes < size}
            if grown:
                self.memory = Memory(now | {name: self._grown(name, nbytes) for name, nbytes in grown.items()})
            return self.memory

    def _grown(self, name: str, nbytes: int) -> np.ndarray:
        ahead = self._ahead.pop(name, None)
        if ahead is not None and 0 <= ahead.end().nbytes - nbytes <= _MOST_SPARE:
            return ahead.block[:nbytes]
        return _region(nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all regions."""
        return sum(region.nbytes for region in self.memory.regions.values())


class _Ahead:
    """Zeroed bytes that a thread of its own touches, from the first one on, until it is told to end."""

    def __init__(self, nbytes: int):
        self.block = _region(nbytes)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="ingot memory", daemon=True)
        self._thread.start()

    def end(self) -> np.ndarray:
        """The bytes, which no thread touches any more."""
        self._is_ending.set()
        self._thread.join()
        return self.block

    def _touch(self) -> None:
        for start in range(0, self.block.nbytes, _TOUCHED_AT_ONCE):
            if self._is_ending.is_set():
                return
            # A strided write: numpy lets other threads have the interpreter meanwhile.
            self.block[start : start + _TOUCHED_AT_ONCE : mmap.PAGESIZE] = 0


def _region(nbytes: int) -> np.ndarray:
    try:
        return _guarded(nbytes) if check() >= 3 else allocate(nbytes)
    except (MemoryError, OSError) as error:
        raise ResourceError(f"arena: no memory, got {error}, expected {nbytes} bytes") from error


def _guarded(nbytes: int) -> np.ndarray:
    """Zeroed bytes that end at an unreadable page, and begin just behind another where the size allows."""
    import cffi

    ffi: Any = cffi.FFI()
    ffi.cdef("int mprotect(void *, size_t, int);")
    libc: Any = ffi.dlopen(None)
    page = mmap.PAGESIZE
    rounded = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    body = -(-rounded // page) * page
    # Private: a child of fork would run in its parent's memory.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    block = np.frombuffer(mmap.mmap(-1, body + 2 * page, flags), np.uint8)
    base = block.ctypes.data
    for guard in (base, base + page + body):
        if libc.mprotect(ffi.cast("void *", guard), page, _PROT_NONE):
            raise OSError("mprotect failed")
    end = page + body
    return block[end - rounded : end - rounded + nbytes]

"""The memory of one context: regions that all its plans share, and the guard pages of INGOT_CHECK=3."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ingot.errors import ResourceError
from ingot.lower.view import View
from ingot.run.store import allocate
from ingot.support.config import check
from ingot.support.locks import OwnedLock

_PROT_NONE = 0
_ALIGNMENT = 64
_LEAST_PREFETCH = 64 << 20  # bytes: prefetching less memory than this saves no time
_TOUCHED_AT_ONCE = 32 << 20
_MOST_SPARE = 1 << 20  # bytes of a prefetched region that may stay unused


def memory_view(memory: np.ndarray, offset: int, view: View) -> np.ndarray:
    """Return a view as an array over memory. offset: of the view's tensor, in bytes."""
    strides = tuple(int(stride) * view.dtype.itemsize for stride in view.strides)
    return np.ndarray(view.shape, view.dtype.numpy, memory.data, offset + view.byte_offset, strides)


class Memory:
    """Regions by name, with their addresses. Immutable: an arena that grows creates a new one.

    A run keeps a reference to the one it started with, so growing frees nothing under a run. A holder of the addresses
    alone keeps no region alive.
    """

    __slots__ = ("addresses", "regions")

    def __init__(self, regions: dict[str, np.ndarray]):
        self.regions = regions
        self.addresses = {name: region.ctypes.data for name, region in regions.items()}


class CarriedStates:
    """State arrays by name, preserved between runs of the interpreter or of a program of several segments.

    lock: held by such a run from its first read of a state to the replacement of the arrays.
    """

    def __init__(self) -> None:
        self.arrays: Mapping[str, Any] = {}
        self.lock = OwnedLock("run")


class Arena:
    """Memory that runs share, one run at a time; it only grows.

    run_lock: u32[1], the lock that a run acquires in C. begun: the address of the states that have their initial
    values. beginnings: initial values, by name, for states without data in the graph; other such states start as zeros.
    carried: states that are in none of its regions.
    """

    def __init__(self) -> None:
        self.memory = Memory({})
        self.run_lock = np.zeros(1, np.uint32)
        self.begun = 0
        self.beginnings: dict[str, np.ndarray] = {}
        self.carried = CarriedStates()
        self.checking = OwnedLock("run")  # for runs with INGOT_CHECK=3, whose arena Python fills and checks
        self._growing = OwnedLock("run")
        self._prefetches: dict[str, _Prefetch] = {}

    @contextmanager
    def expecting(self, region: str, nbytes: int) -> Iterator[None]:
        """Prefetch up to `nbytes` of memory for a region in a separate thread, until it is reserved or the block ends.

        The operating system allocates a page when it is first touched, which takes longer than filling the page.
        """
        try:
            if nbytes >= _LEAST_PREFETCH and check() < 3:
                with suppress(ResourceError):  # a smaller region may still fit
                    self._prefetches[region] = _Prefetch(nbytes)
            yield
        finally:
            if region in self._prefetches:
                self._prefetches.pop(region).end()

    def reserve(self, sizes: dict[str, int]) -> Memory:
        """Return the memory, with each region at least this large; a region that moves loses its contents.

        Raises ResourceError when out of memory.
        """
        with self._growing.once():
            now = self.memory.regions
            grown = {name: size for name, size in sizes.items() if name not in now or now[name].nbytes < size}
            if grown:
                self.memory = Memory(now | {name: self._grown(name, nbytes) for name, nbytes in grown.items()})
            return self.memory

    def _grown(self, name: str, nbytes: int) -> np.ndarray:
        prefetch = self._prefetches.pop(name, None)
        if prefetch is not None and 0 <= prefetch.end().nbytes - nbytes <= _MOST_SPARE:
            return prefetch.block[:nbytes]
        return _region(nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all regions."""
        return sum(region.nbytes for region in self.memory.regions.values())


class _Prefetch:
    """Zeroed bytes whose pages a separate thread touches, from the first one on, until `end` is called."""

    def __init__(self, nbytes: int):
        self.block = _region(nbytes)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="ingot memory", daemon=True)
        self._thread.start()

    def end(self) -> np.ndarray:
        """Stop the thread and return the bytes."""
        self._is_ending.set()
        self._thread.join()
        return self.block

    def _touch(self) -> None:
        for start in range(0, self.block.nbytes, _TOUCHED_AT_ONCE):
            if self._is_ending.is_set():
                return
            # A strided write: numpy releases the interpreter's lock during it.
            self.block[start : start + _TOUCHED_AT_ONCE : mmap.PAGESIZE] = 0


def _region(nbytes: int) -> np.ndarray:
    try:
        return _guarded(nbytes) if check() >= 3 else allocate(nbytes)
    except (MemoryError, OSError) as error:
        raise ResourceError(f"arena: no memory, got {error}, expected {nbytes} bytes") from error


def _guarded(nbytes: int) -> np.ndarray:
    """Return zeroed bytes that end at an unreadable page, and begin right after one where the size allows it."""
    import cffi

    ffi: Any = cffi.FFI()
    ffi.cdef("int mprotect(void *, size_t, int);")
    libc: Any = ffi.dlopen(None)
    page = mmap.PAGESIZE
    rounded = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    body = -(-rounded // page) * page
    # Private: after a fork, a child would otherwise run in its parent's memory.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    block = np.frombuffer(mmap.mmap(-1, body + 2 * page, flags), np.uint8)
    base = block.ctypes.data
    for guard in (base, base + page + body):
        if libc.mprotect(ffi.cast("void *", guard), page, _PROT_NONE):
            raise OSError("mprotect failed")
    end = page + body
    return block[end - rounded : end - rounded + nbytes]

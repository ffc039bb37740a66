"""Files that are whole or absent when written, and mapped when read."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from ingot.errors import OutputError


@contextlib.contextmanager
def written(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file that takes its name when the block ends well, and leaves nothing behind when it does not.

    mode: its permissions, before the umask.

    Raises OutputError when it cannot be created; an error while writing stays an OSError.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with _creating(target):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        with _creating(target):
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Makes a folder and its parents, if need be. Raises OutputError."""
    with _creating(Path(path)):
        os.makedirs(path, exist_ok=True)


# A file system keeps what is written at once together in memory, up to a huge page; a mapping of such a file is as
# quick to make and to read as anonymous huge pages.
_BLOCK_BYTES = 16 << 20


def write_arrays(file: IO[bytes], arrays: Iterable[np.ndarray], alignment: int) -> None:
    """Writes the bytes of arrays one after another, each from a multiple of `alignment` on, in large blocks."""
    block, filled = np.zeros(_BLOCK_BYTES, np.uint8), 0
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        padding = np.zeros(-flat.nbytes % alignment, np.uint8)
        for rest in (flat, padding):
            while rest.nbytes:
                count = min(rest.nbytes, _BLOCK_BYTES - filled)
                block[filled : filled + count] = rest[:count]
                rest, filled = rest[count:], filled + count
                if filled == _BLOCK_BYTES:
                    file.write(block.data)
                    filled = 0
    file.write(block[:filled].data)


def identity(status: os.stat_result) -> tuple[int, ...]:
    """What tells one content of a file from another without reading it: device, inode, size, times of last change.

    The last is the inode's, which the kernel sets at every change and no call sets to a value of one's choice.
    """
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class MappedFile(mmap.mmap):
    """A file, mapped to be read. Its pages belong to the page cache: let go, they come back as they were."""

    identity: tuple[int, ...]

    def __new__(cls, descriptor: int) -> MappedFile:
        mapped = super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)
        mapped.identity = identity(os.fstat(descriptor))
        return mapped


def release(array: np.ndarray) -> None:
    """Lets go of the pages of a mapped file that an array lies in, until they are read again."""
    owner: object = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if not isinstance(owner, MappedFile) or not array.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = np.frombuffer(owner, np.uint8).ctypes.data
    low, high = np.lib.array_utils.byte_bounds(array)
    first = (low - start) // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, first, high - start - first)


@contextlib.contextmanager
def _creating(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error

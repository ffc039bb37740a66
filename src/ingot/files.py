"""Files that are whole or absent when written, and mapped when read."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ingot.errors import LoadError, OutputError


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


def open_regular(folder: str, components: Sequence[str], described: str) -> int:
    """The descriptor of a regular file below a folder; the caller closes it.

    Each component is opened relative to its parent's descriptor and no link below the folder is followed, so what was
    checked is what is read. Raises LoadError, which starts with `described`.
    """
    *parents, name = components
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for parent in parents:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                child = os.open(parent, flags, dir_fd=directory)
                os.close(directory)
                directory = child
            kind = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if not stat.S_ISREG(kind):
                what = "a symbolic link" if stat.S_ISLNK(kind) else "not a regular file"
                raise LoadError(f"{described} is {what}")
            # O_NONBLOCK and the second check: the name may have become a FIFO since it was looked at.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=directory)
        finally:
            os.close(directory)
    except FileNotFoundError as error:
        raise LoadError(f"{described} does not exist") from error
    except OSError as error:
        raise LoadError(f"{described} cannot be opened, {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LoadError(f"{described} is not a regular file")
    return descriptor


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

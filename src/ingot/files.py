"""Files that are whole or absent when written, and mapped when read."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from ingot.errors import OutputError


@contextlib.contextmanager
def written(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that takes its name when the block ends well, and leaves nothing behind when it does not.

    Raises OutputError when it cannot be created; an error while writing stays an OSError.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with _creating(target):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
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


class MappedFile(mmap.mmap):
    """A file, mapped to be read. Its pages belong to the page cache: let go, they come back as they were."""

    def __new__(cls, descriptor: int) -> MappedFile:
        return super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)


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

"""Write files completely or not at all, and map files for reading."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import re
import secrets
import shutil
import stat
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ingot.errors import EXHAUSTED, LoadError, OutputError, ResourceError

COPIED_BYTES = 4 << 20  # a file up to this size is copied instead of mapped
_FOLIO = 2 << 20  # the largest unit of Linux's page cache, which it may map as a whole when one page of it is read

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_TOKEN_BYTES = 8
_STEM_CHARACTERS = 50  # of the target's name: a name has at most 255 bytes


@contextlib.contextmanager
def written(path: str | os.PathLike[str], mode: int = 0o666, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a file that gets its name when the block succeeds, and is removed when it fails.

    mode: its permissions, before the umask. durable: it also survives a crash of the machine.

    Raises OutputError when it cannot be created or written, by the block too.
    """
    target = Path(path)
    with _writing(target):
        temporary, descriptor = _create_replacement(target, lambda name: os.open(name, _NEW_FILE, mode))
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
                os.replace(temporary, target)
            if durable:
                _sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def written_folder(path: str | os.PathLike[str], names: Collection[str]) -> Iterator[Path]:
    """Yield a folder to fill, which gets its name when the block succeeds, replacing an earlier folder of that name.

    Whenever the process dies, either the earlier or the new folder is complete. names: the only files that the earlier
    folder may contain, so that nothing else is lost.

    Raises OutputError when it cannot be written, and when the name is empty or belongs to something else.
    """
    if not os.fspath(path):  # as a path it would be the current folder
        raise OutputError("folder to write: an empty name, got '', expected a free name, or a folder to replace")
    target = Path(os.path.realpath(path))
    make_folder(target.parent)
    with _writing(target):
        _expect_replaceable(target, names)
        temporary, descriptor = _create_replacement(target, _make_and_open)
        try:
            yield temporary
            os.fsync(descriptor)
            if target.exists():
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
                _exchange(temporary, target)
            else:
                os.rename(temporary, target)
            _sync_folder(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            os.close(descriptor)


def _expect_replaceable(target: Path, names: Collection[str]) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"{target}: not a folder, expected a free name, or a folder that may be replaced")
    with os.scandir(target) as entries:
        others = sorted(entry.name for entry in entries if entry.name not in names or not entry.is_file())
    if others:
        raise OutputError(f"{target}: contains other files, got {others[:3]}, expected at most {', '.join(names)}")


def _create_replacement(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Create a replacement next to its target, under a unique name. Return its path and descriptor.

    It is locked while the descriptor is open. An unlocked file of such a name was left by a process that died, and is
    removed. On a file system without locks it stays.
    """
    stem = f".{target.name[:_STEM_CHARACTERS]}."
    _remove_remains(target.parent, re.compile(rf"{re.escape(stem)}[0-9a-f]{{{2 * _TOKEN_BYTES}}}\.new"))
    while True:
        temporary = target.with_name(f"{stem}{secrets.token_hex(_TOKEN_BYTES)}.new")
        descriptor = make(temporary)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):  # another process removed it before it was locked
            if os.path.samestat(os.lstat(temporary), os.fstat(descriptor)):
                return temporary, descriptor
        os.close(descriptor)


def _remove_remains(folder: Path, pattern: re.Pattern[str]) -> None:
    with os.scandir(folder) as entries:
        found = [folder / entry.name for entry in entries if pattern.fullmatch(entry.name)]
    for path in found:
        with contextlib.suppress(OSError):  # it is in use, of another user, or gone
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path) if stat.S_ISDIR(os.fstat(descriptor).st_mode) else path.unlink()
            finally:
                os.close(descriptor)


def _make_and_open(folder: Path) -> int:
    os.mkdir(folder)
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _exchange(one: Path, other: Path) -> None:
    """Swap the names of two files or folders of one folder atomically."""
    libc = ctypes.CDLL(None, use_errno=True)
    at, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if libc.renameat2(at, os.fsencode(one), at, os.fsencode(other), exchange):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot be replaced in one step, {os.strerror(code)}; expected a free name", str(other))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder and its parents, if missing. Raises OutputError."""
    try:
        with _writing(Path(path)):
            os.makedirs(path, exist_ok=True)
    except OutputError as error:
        if os.path.lexists(path):
            raise OutputError(f"{path}: not a folder, expected a free name or a folder") from error
        raise


def expect_writable(folder: str | os.PathLike[str]) -> None:
    """Create a folder, if missing, before long work whose results go there.

    Raises OutputError if it is not writable.
    """
    import tempfile  # imported on demand: it is slow

    make_folder(folder)
    with _writing(Path(folder)), tempfile.TemporaryFile(dir=folder):
        pass


# A file system keeps data that is written at once together in memory, up to a huge page; a mapping of such a file is as
# fast to create and to read as anonymous huge pages.
_BLOCK_BYTES = 16 << 20


def write_arrays(file: IO[bytes], arrays: Iterable[np.ndarray], alignment: int) -> None:
    """Write the bytes of arrays one after another, each at a multiple of `alignment`, in large blocks."""
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
    """Return the identity of a file's content without reading it: device, inode, size, times of last change.

    The last time is the inode's: the kernel sets it at every change, and no call can set it to a chosen value.
    """
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class MappedFile(mmap.mmap):
    """A mapping of a file that is not empty, for reading. Released pages are read again on the next access.

    A file of at most COPIED_BYTES is copied first, so nobody can change it. The pages of a larger file belong to the
    page cache; `expect_unchanged` detects that it was shortened or written since. A change while pages are being read
    is detected by the next such check; if the file was shortened, the system ends the process (SIGBUS).

    Raises ResourceError when it cannot be mapped, LoadError when it changes meanwhile.
    """

    path: str
    identity: tuple[int, ...]
    _descriptor: int | None

    def __new__(cls, descriptor: int, path: str) -> MappedFile:
        status = os.fstat(descriptor)
        try:
            if status.st_size > COPIED_BYTES:
                mapped = super().__new__(cls, descriptor, status.st_size, access=mmap.ACCESS_READ)
                mapped._descriptor = os.dup(descriptor)
                weakref.finalize(mapped, os.close, mapped._descriptor)
            else:
                mapped = cls._copied(descriptor, status.st_size, path)
                mapped._descriptor = None
        except (OSError, ValueError, MemoryError) as error:  # ValueError: shorter than before
            why = error.strerror if isinstance(error, OSError) else error
            raise ResourceError(f"{path}: cannot be mapped, {why}, got {status.st_size} bytes") from error
        mapped.path, mapped.identity = path, identity(status)
        return mapped

    @classmethod
    def _copied(cls, descriptor: int, size: int, path: str) -> MappedFile:
        """Copy the content to a private memory file, so that its pages can be released, too."""
        memory = os.memfd_create("ingot", os.MFD_CLOEXEC)
        try:
            copied = 0
            while copied < size and (count := os.sendfile(memory, descriptor, copied, size - copied)):
                copied += count
            if copied != size:
                raise LoadError(f"{path}: changed while it was read, got {copied} bytes, expected {size}")
            return super().__new__(cls, memory, size, access=mmap.ACCESS_READ)
        finally:
            os.close(memory)

    def expect_unchanged(self) -> None:
        """Raise LoadError when the file's size or time of change differs from the time of mapping."""
        if self._descriptor is None:
            return
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != self.identity[2:4]:
            raise LoadError(
                f"{self.path}: changed after it was loaded, got {status.st_size} bytes, expected the {len(self)} that"
                " were there and not to be written"
            )


def mapped_files(arrays: Iterable[np.ndarray]) -> tuple[MappedFile, ...]:
    """Return the files that arrays are mapped from and that others may change, each once."""
    found = {id(file): file for array in arrays if (file := _mapped_file(array)) is not None}
    return tuple(file for file in found.values() if file._descriptor is not None)


def _mapped_file(array: np.ndarray) -> MappedFile | None:
    owner: object = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, MappedFile) else None


def open_regular(folder: str, components: Sequence[str], described: str) -> int:
    """Open a regular file below a folder; the caller closes the descriptor.

    Each component is opened relative to its parent's descriptor, and no link below the folder is followed, so the
    checked file is the file that is read. Raises LoadError, which starts with `described`.
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
            # O_NONBLOCK and the second check: the name may have become a FIFO after the first check.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=directory)
        finally:
            os.close(directory)
    except FileNotFoundError as error:
        raise LoadError(f"{described} does not exist") from error
    except OSError as error:
        failed = ResourceError if error.errno in EXHAUSTED else LoadError
        raise failed(f"{described} cannot be opened, {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LoadError(f"{described} is not a regular file")
    return descriptor


def release(array: np.ndarray) -> None:
    """Release the pages of a mapped file behind an array; the next access reads them again."""
    owner = _mapped_file(array)
    if owner is None or not array.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first, nbytes = pages(array)
    owner.madvise(mmap.MADV_DONTNEED, first - np.frombuffer(owner, np.uint8).ctypes.data, nbytes)


def pages(array: np.ndarray) -> tuple[int, int]:
    """Return the address and size of the pages of a mapped file behind an array.

    They include the pages that the system maps around them, so an array that is read and released slice by slice leaves
    no page in memory.

    So an array that is read and released slice by slice leaves no page in memory.
    """
    owner = _mapped_file(array)
    assert owner is not None
    start = np.frombuffer(owner, np.uint8).ctypes.data
    low, high = np.lib.array_utils.byte_bounds(array)
    first = max(low // _FOLIO * _FOLIO, start)
    return first, min(-(-high // _FOLIO) * _FOLIO, start + len(owner)) - first


def is_mapped(array: np.ndarray) -> bool:
    """Return whether an array is in a mapped file, whose pages can be released."""
    return _mapped_file(array) is not None


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error

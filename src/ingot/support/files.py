"""Files that are whole or absent when written, and mapped when read."""

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

COPIED_BYTES = 4 << 20  # a file of at most so many is copied, and not mapped where it lies
_FOLIO = 2 << 20  # the most that Linux keeps together in the page cache, and may map whole when a page of it is read

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_TOKEN_BYTES = 8
_STEM_CHARACTERS = 50  # of the target's name: a name has at most 255 bytes


@contextlib.contextmanager
def written(path: str | os.PathLike[str], mode: int = 0o666, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file that takes its name when the block ends well, and leaves nothing behind when it does not.

    mode: its permissions, before the umask. durable: it survives a crash of the machine too.

    Raises OutputError when it cannot be created or written, by the block too.
    """
    target = Path(path)
    with _writing(target):
        temporary, descriptor = _aside(target, lambda name: os.open(name, _NEW_FILE, mode))
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
    """A folder to be filled, which takes its name when the block ends well, in place of an earlier one of that name.

    Whenever the process dies, the earlier folder or the new one is there, whole. names: the only files that the earlier
    one may hold, so that nothing else is lost.

    Raises OutputError when it cannot be written, and when the name is empty or that of something else.
    """
    if not os.fspath(path):  # which as a path would be the folder that one is in
        raise OutputError("folder to write: an empty name, got '', expected a free name, or a folder to replace")
    target = Path(os.path.realpath(path))
    make_folder(target.parent)
    with _writing(target):
        _expect_replaceable(target, names)
        temporary, descriptor = _aside(target, _make_and_open)
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
        raise OutputError(f"{target}: holds other files, got {others[:3]}, expected at most {', '.join(names)}")


def _aside(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Makes what is to replace a target, beside it and under a name that none has had. Its path and descriptor.

    It is locked while the descriptor is open: what bears such a name and is not was left by a process that died, and is
    removed. On a file system without locks it stays.
    """
    stem = f".{target.name[:_STEM_CHARACTERS]}."
    _remove_remains(target.parent, re.compile(rf"{re.escape(stem)}[0-9a-f]{{{2 * _TOKEN_BYTES}}}\.new"))
    while True:
        temporary = target.with_name(f"{stem}{secrets.token_hex(_TOKEN_BYTES)}.new")
        descriptor = make(temporary)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):  # taken for remains before it was locked
            if os.path.samestat(os.lstat(temporary), os.fstat(descriptor)):
                return temporary, descriptor
        os.close(descriptor)


def _remove_remains(folder: Path, pattern: re.Pattern[str]) -> None:
    with os.scandir(folder) as entries:
        found = [folder / entry.name for entry in entries if pattern.fullmatch(entry.name)]
    for path in found:
        with contextlib.suppress(OSError):  # it is in use, another's, or gone
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
    """Two files or folders of one folder take each other's name, in one step."""
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
    """Makes a folder and its parents, if need be. Raises OutputError."""
    try:
        with _writing(Path(path)):
            os.makedirs(path, exist_ok=True)
    except OutputError as error:
        if os.path.lexists(path):
            raise OutputError(f"{path}: not a folder, expected a free name or a folder") from error
        raise


def expect_writable(folder: str | os.PathLike[str]) -> None:
    """Makes a folder, if need be, before the long work whose results go there. Raises OutputError where none can."""
    import tempfile  # only now: it takes long to import

    make_folder(folder)
    with _writing(Path(folder)), tempfile.TemporaryFile(dir=folder):
        pass


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
    """A file that is not empty, mapped to be read. Let go, its pages come back as they were.

    One of at most COPIED_BYTES is copied first: nobody can change it then. Of a larger one the pages belong to the page
    cache; `expect_unchanged` tells whether it was shortened or written since. A change while its pages are being read
    is seen by the next such look, and if the file was shortened, the system ends the process (SIGBUS).

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
        except (OSError, ValueError, MemoryError) as error:  # ValueError: shorter than it was
            why = error.strerror if isinstance(error, OSError) else error
            raise ResourceError(f"{path}: cannot be mapped, {why}, got {status.st_size} bytes") from error
        mapped.path, mapped.identity = path, identity(status)
        return mapped

    @classmethod
    def _copied(cls, descriptor: int, size: int, path: str) -> MappedFile:
        """The content in memory that no other process has; as a file, so that its pages may be let go too."""
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
        """Raises LoadError when the file's size or time of change is another than when it was mapped."""
        if self._descriptor is None:
            return
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != self.identity[2:4]:
            raise LoadError(
                f"{self.path}: changed after it was loaded, got {status.st_size} bytes, expected the {len(self)} that"
                " were there and not to be written"
            )


def mapped_files(arrays: Iterable[np.ndarray]) -> tuple[MappedFile, ...]:
    """The files that arrays lie in and that others may change, each once."""
    found = {id(file): file for array in arrays if (file := _mapped_file(array)) is not None}
    return tuple(file for file in found.values() if file._descriptor is not None)


def _mapped_file(array: np.ndarray) -> MappedFile | None:
    owner: object = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, MappedFile) else None


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
        failed = ResourceError if error.errno in EXHAUSTED else LoadError
        raise failed(f"{described} cannot be opened, {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LoadError(f"{described} is not a regular file")
    return descriptor


def release(array: np.ndarray) -> None:
    """Lets go of the pages of a mapped file that an array lies in, until they are read again."""
    owner = _mapped_file(array)
    if owner is None or not array.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first, nbytes = pages(array)
    owner.madvise(mmap.MADV_DONTNEED, first - np.frombuffer(owner, np.uint8).ctypes.data, nbytes)


def pages(array: np.ndarray) -> tuple[int, int]:
    """The first address and the bytes of the pages of a mapped file that an array lies in, and of those that the system
    maps around them, so that of an array that is read and let go part by part none is left.
    """
    owner = _mapped_file(array)
    assert owner is not None
    start = np.frombuffer(owner, np.uint8).ctypes.data
    low, high = np.lib.array_utils.byte_bounds(array)
    first = max(low // _FOLIO * _FOLIO, start)
    return first, min(-(-high // _FOLIO) * _FOLIO, start + len(owner)) - first


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array lies in a mapped file, whose pages may be let go of."""
    return _mapped_file(array) is not None


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error

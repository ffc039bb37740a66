"""Output folders that several emissions share with other files: a manifest lists the files of each emission."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ingot.errors import OutputError, some
from ingot.support.files import make_folder, written

MANIFEST = ".ingot-files.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Row:
    """A file of the manifest.

    owner: the emission that wrote it, "" for shared files. sha256: None while the file is being written, so that an
    interrupted emission can be repeated.
    """

    owner: str
    sha256: str | None


@contextlib.contextmanager
def filled_folder(
    folder: str | os.PathLike[str],
    owner: str,
    names: Collection[str],
    *,
    shared: Collection[str] = (),
    force: bool = False,
) -> Iterator[None]:
    """Let a block write files into a folder, and record them in its manifest.

    owner: of the files, such as one model; an earlier emission of the same owner is replaced, and its files that this
    emission does not write again are removed. names: every file that the block writes, relative to the folder. shared:
    names of files that are equal for all owners; they stay. force: replace existing files, whoever wrote them.

    Raises OutputError, before anything is written, for an existing file that this owner did not write or that was
    changed since; and when the folder or its manifest cannot be read or written.
    """
    make_folder(folder)
    root, owners = Path(folder), {name: "" if name in shared else owner for name in names}
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        rows = {} if force and not _is_readable(root) else _read(root)
        if not force:
            _expect_own(root, owners, rows)
        earlier = {name for name, row in rows.items() if row.owner == owner and name not in owners}
        _write(root, {**rows, **{name: _Row(owners[name], None) for name in owners}})
        try:
            yield
        finally:
            if not rows and not any(os.path.lexists(root / name) for name in owners):
                os.unlink(root / MANIFEST)  # the block was refused before its first file
        for name in earlier:
            if _is_unchanged(root / name, rows.pop(name)):
                _remove(root, name)
        _write(root, {**rows, **{name: _Row(owners[name], _digest(root / name)) for name in owners}})
    finally:
        os.close(descriptor)


def _expect_own(root: Path, owners: Mapping[str, str], rows: Mapping[str, _Row]) -> None:
    foreign = []
    for name in sorted(owners):
        if os.path.lexists(root / name):
            row = rows.get(name)
            if row is None or row.owner != owners[name] or not _is_unchanged(root / name, row):
                foreign.append(name)
    if foreign:
        raise OutputError(
            f"{root}: contains files that this command did not write or that were changed since, got {some(foreign)},"
            " expected free names, or force to replace the files"
        )


def _is_unchanged(path: Path, row: _Row) -> bool:
    """Return whether a regular file exists with the content of its row; any content if it was being written."""
    if not path.exists() or not stat.S_ISREG(os.lstat(path).st_mode):
        return False
    return row.sha256 is None or _digest(path) == row.sha256


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise OutputError(f"{path}: cannot be read ({error.strerror})") from error


def _remove(root: Path, name: str) -> None:
    """Remove a file, and the folders around it that become empty."""
    path = root / name
    path.unlink()
    for parent in path.parents:
        if parent == root or any(parent.iterdir()):
            break
        parent.rmdir()


def _is_readable(root: Path) -> bool:
    try:
        _read(root)
    except OutputError:
        return False
    return True


def _read(root: Path) -> dict[str, _Row]:
    """Return the rows by name.

    A manifest may come from anywhere, and files that it names may be removed: names must stay inside the folder,
    without links.
    """
    path = root / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OutputError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        document = json.loads(content)
        files = document["files"]
        rows = {str(name): _Row(str(row["owner"]), row["sha256"]) for name, row in files.items()}
        is_known = document["version"] == _VERSION
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_known = False
    if not is_known or not all(_is_inside(root, name) for name in rows):
        raise OutputError(f"{path}: damaged, expected a manifest as Ingot writes it, or force to replace it")
    return rows


def _is_inside(root: Path, name: str) -> bool:
    parts = Path(name).parts
    if not parts or os.path.isabs(name) or ".." in parts or "\0" in name:
        return False
    return not any((root / Path(*parts[: end + 1])).is_symlink() for end in range(len(parts) - 1))


def _write(root: Path, rows: dict[str, _Row]) -> None:
    files = {name: asdict(rows[name]) for name in sorted(rows)}
    with written(root / MANIFEST) as file:
        file.write((json.dumps({"version": _VERSION, "files": files}, indent=1) + "\n").encode())

"""A cache of compiled ONNX files between processes: an entry is a saved program, named after its source files.

The name of an entry is a hash of the model file's identity (see `files.identity`), of the options, and of this
installation. Files of external data are listed in the entry and compared in the same way. An entry's arrays have
hashes, which are checked whenever it is read. An entry that is damaged, that another user owns or that others may write
is ignored: the model is compiled as if there were no cache.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingot import __version__
from ingot.errors import IngotError
from ingot.ir.graph import Graph
from ingot.passes.precision import F32, Precision
from ingot.run.library import abi_hash
from ingot.run.program import Program
from ingot.run.store import WeightStore
from ingot.session import saved_program as saved
from ingot.support.config import debug, knob
from ingot.support.files import identity

MAX_BYTES = 10 << 30  # of the cache of compiled models
# A file system may have timestamps this coarse: two changes within one tick look like one.
SETTLED_NANOSECONDS = 2_000_000_000
_LOCK_SECONDS = 10
_SOURCES = "sources.json"

Identity = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """The cache entry of one model file, which may not exist yet, and its precision."""

    root: Path
    folder: Path
    model: str
    precision: Precision

    def read(self, weights: WeightStore) -> Graph | None:
        """Return the graph after its passes and put its packed weights in `weights`; None if the entry is unusable."""
        if not os.path.lexists(self.folder):
            return None
        try:
            for path in (self.root, self.folder, *self.folder.iterdir()):
                _expect_private(path)
            expected = json.loads((self.folder / _SOURCES).read_text())["files"]
            if expected != _identities(self.model, expected):
                return None
            graph, _ = saved.read(os.fspath(self.folder), weights)
            os.utime(self.folder)
        except (OSError, ValueError, LookupError, TypeError, RecursionError, IngotError) as error:
            _note(f"entry of {self.model!r} is not used: {error}")
            return None
        return graph

    def write(self, files: Mapping[str, Identity], graph: Graph, program: Program, weights: WeightStore) -> None:
        """Store a program, then remove the least recently used entries if the cache is too large.

        files: identities of the model file, "", and of its external data by location, from the time they were read. If
        a file changed a moment ago, nothing is stored.
        """
        if any(time.time_ns() - max(times[-2:]) < SETTLED_NANOSECONDS for times in files.values()):
            _note(f"{self.model!r} is not cached: it changed a moment ago")
            return
        from filelock import FileLock

        try:
            os.makedirs(self.root, mode=0o700, exist_ok=True)
            _expect_private(self.root)
            with FileLock(self.root / ".lock", timeout=_LOCK_SECONDS, mode=0o600):
                self._write(files, graph, program, weights)
                _evict(self.root)
        except (OSError, IngotError) as error:
            _note(f"{self.model!r} is not cached: {error}")

    def _write(self, files: Mapping[str, Identity], graph: Graph, program: Program, weights: WeightStore) -> None:
        # The writer holds the lock: a partial entry belongs to a process that died.
        for remains in self.root.glob(".new-*"):
            _remove(remains)
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            saved.write_files(os.fspath(temporary), graph, self.precision, program, weights, mode=0o600, durable=False)
            sources = {"model": self.model, "files": {name: list(times) for name, times in files.items()}}
            with open(temporary / _SOURCES, "x", opener=_private_file) as file:
                json.dump(sources, file)
            if _bytes(temporary) <= MAX_BYTES:
                _remove(self.folder)
                os.rename(temporary, self.folder)
        finally:
            _remove(temporary)


@dataclass(slots=True)
class PendingEntry:
    """The cache entry for a session's first program, written once, by whichever context compiles it."""

    entry: Entry | None
    files: Mapping[str, tuple[int, ...]]

    def keep(self, graph: Graph, program: Program, weights: WeightStore) -> None:
        """Store a program in the cache, if the session has an entry for it."""
        entry, self.entry = self.entry, None
        if entry is not None:
            entry.write(self.files, graph, program, weights)


def folder_of(option: str | os.PathLike[str] | bool | None) -> Path | None:
    """Return the cache's folder: a path, True for the user's own, False for none, None for the value of INGOT_CACHE."""
    chosen = str(knob("INGOT_CACHE")) if option is None else option
    if chosen is True or chosen == "on":
        import platformdirs

        return Path(platformdirs.user_cache_dir("ingot", appauthor=False)) / "programs"
    return Path(os.fspath(chosen)).absolute() if chosen else None


def entry_of(
    root: Path,
    model: str | os.PathLike[str],
    passes: Sequence[str] | None,
    dims: Mapping[str, int] | None,
    precision: Precision = F32,
) -> Entry:
    """Return the entry of a model file with these options. Raises FileNotFoundError."""
    facts = [saved.FORMAT, __version__, abi_hash(), _installation(), identity(os.stat(model))]
    options = [None if passes is None else list(passes), sorted((dims or {}).items()), precision.name]
    key = hashlib.sha256(json.dumps([*facts, *options]).encode()).hexdigest()
    return Entry(root, root / key, os.path.abspath(model), precision)


def entries(root: Path) -> list[dict[str, object]]:
    """Return the stored entries, the latest used first: model, bytes, and time of use in seconds since 1970."""
    found = []
    for folder in _folders(root):
        try:
            model = str(json.loads((folder / _SOURCES).read_text())["model"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            model = "damaged"
        found.append({"model": model, "bytes": _bytes(folder), "used": _used(folder)})
    return sorted(found, key=lambda row: -float(str(row["used"])))


def clear(root: Path) -> None:
    """Remove every entry."""
    for folder in _folders(root):
        _remove(folder)


def _identities(model: str, locations: Mapping[str, object]) -> dict[str, list[int]]:
    """Return the current identities of an entry's files; external data is never behind a symbolic link."""
    folder = os.path.dirname(model)
    return {
        location: list(identity(os.lstat(os.path.join(folder, location)) if location else os.stat(model)))
        for location in locations
    }


def _installation() -> list[tuple[str, int, int]]:
    """Return the identities of this package's sources: another release, or an edit, may compile a model differently."""
    root = Path(str(importlib.resources.files("ingot")))
    files = sorted(root.rglob("*.py"))
    return [(os.fspath(file.relative_to(root)), s.st_size, s.st_mtime_ns) for file in files for s in (file.stat(),)]


def _expect_private(path: Path) -> None:
    status = os.lstat(path)
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        raise PermissionError(f"{path} is neither a folder nor a file")
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} belongs to another user, or others may write it")


def _private_file(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _folders(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from (path for path in root.iterdir() if len(path.name) == 64 and not path.name.startswith("."))


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*"))


def _used(folder: Path) -> float:
    return folder.lstat().st_mtime


def _evict(root: Path) -> None:
    kept = 0
    for folder in sorted(_folders(root), key=_used, reverse=True):
        kept += _bytes(folder)
        if kept > MAX_BYTES:
            _remove(folder)


def _remove(path: Path) -> None:
    """Remove a folder, or any file at its path. A process that has mapped it keeps its mapping."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _note(what: str) -> None:
    if debug() >= 1:
        print(f"cache: {what}", file=sys.stderr)

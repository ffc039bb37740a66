"""Blocks of prefixes in files, which later processes map instead of computing them again.

The name of a file is a hash of the model, of its options, and of all tokens up to the end of the block; so a prefix is
found by the names of its blocks, one after the other. `<hash>.block` has the block's keys and values, `<hash>.states`
the recurrent states after it; both are saved states of 64 tokens (`saved_state`). Each is written once, under its final
name only when complete, and is not synced to the disk: its own hash shows damage.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Tokens

import numpy as np

from ingot.errors import InputError, LoadError, OutputError, ResourceError
from ingot.ir.graph import TensorType
from ingot.llm.saved_state import map_state, write_state
from ingot.ops.kv_cache import CACHE_BLOCK
from ingot.support.files import make_folder

BLOCK, STATES = "block", "states"  # the kinds of files
DEFAULT_BYTES = 8 << 30
_KEPT = 0.9  # of the limit, after old files were removed
_NAME = re.compile(r"[0-9a-f]{64}\.(block|states)")
_LOGGER = logging.getLogger("ingot.llm.disk_cache")

Arrays = Mapping[str, np.ndarray]


class DiskCache:
    """The files of a model in a folder, which several models and processes may share.

    key: identifies the model and all options that change a bit of its keys and values. limit: bytes of all files of the
    folder, beyond which the files that were not used for the longest time are removed; files with other names are
    ignored. Damaged files are removed, with a line in the log. When a file cannot be written, a line in the log
    reports it, and no other is written.

    Raises InputError for a path that is not a folder, OutputError for a folder that cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str, limit: int):
        self.folder = os.fspath(folder)
        self._key = key
        self._limit = limit
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise InputError(f"option cache_dir: not a folder, got {self.folder!r}")
        make_folder(self.folder)
        self._is_writable = True
        self._nbytes = sum(size for _, size, _ in self._files())
        self._remove_oldest()

    def names(self, tokens: Tokens[int]) -> list[str]:
        """Return the name of each full block of some tokens, without the kind."""
        digest, found = hashlib.sha256(self._key.encode()), []
        rows = np.asarray(tokens, "<i4")
        for begin in range(0, len(tokens) - CACHE_BLOCK + 1, CACHE_BLOCK):
            digest.update(rows[begin : begin + CACHE_BLOCK].tobytes())
            found.append(digest.hexdigest())
        return found

    def has(self, name: str, kind: str) -> bool:
        """Return whether the folder has the file of a block."""
        return os.path.exists(self._path(name, kind))

    def write(self, name: str, kind: str, tokens: Tokens[int], arrays: Callable[[], Arrays]) -> None:
        """Write the arrays of a block with these 64 tokens, unless its file exists."""
        if not self._is_writable or self.has(name, kind):
            return
        path = self._path(name, kind)
        try:
            write_state(path, name, tokens, arrays(), durable=False)
            self._nbytes += os.stat(path).st_size
        except (OutputError, FileNotFoundError) as error:
            self._is_writable = False
            _LOGGER.warning("no more blocks are written to the folder of the cache: %s", error)
        if self._nbytes > self._limit:
            self._remove_oldest()

    def read(self, name: str, kind: str, tokens: Tokens[int], types: Mapping[str, TensorType]) -> Arrays | None:
        """Return the arrays of a block, mapped; None if there is no file. A damaged one is removed."""
        path = self._path(name, kind)
        try:
            return map_state(path, name, tokens, types)
        except FileNotFoundError:
            return None
        except LoadError as error:
            _LOGGER.warning("a block of the cache is ignored and removed: %s", error)
            _remove(path)
        except (ResourceError, OSError) as error:  # OSError: a link, or a file of another user
            _LOGGER.warning("a block of the cache is ignored: %s", error)
        return None

    def use(self, names: Iterable[str]) -> None:
        """Record that the blocks of a prefix were used now; the first block is removed last."""
        now = time.time_ns()
        for index, name in enumerate(names):
            for kind in (BLOCK, STATES):
                try:
                    os.utime(self._path(name, kind), ns=(now - index, now - index))
                except OSError:  # it was removed by another process, or belongs to another user
                    continue

    def _path(self, name: str, kind: str) -> str:
        return os.path.join(self.folder, f"{name}.{kind}")

    def _files(self) -> list[tuple[int, int, str]]:
        """Return the time of the last use, the size and the path of each file."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not _NAME.fullmatch(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed by another process
                    continue
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        return found

    def _remove_oldest(self) -> None:
        """Remove the files that were not used for the longest time if all together exceed the limit."""
        files = sorted(self._files())
        self._nbytes = sum(size for _, size, _ in files)
        if self._nbytes <= self._limit:
            return
        for _, size, path in files:
            if self._nbytes <= _KEPT * self._limit:
                break
            _remove(path)
            self._nbytes -= size


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:  # another process was faster
        return
    except OSError as error:
        _LOGGER.warning("a block of the cache cannot be removed: %s", error)

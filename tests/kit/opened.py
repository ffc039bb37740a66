"""Who opens a file, in whatever language: the kernel tells."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_IN_OPEN = 0x20  # of <sys/inotify.h>


@contextlib.contextmanager
def watched(*paths: Path) -> Iterator[list[int]]:
    """A list that holds, when the block is over, how many bytes of opened files of these the kernel reported."""
    libc = ctypes.CDLL(None, use_errno=True)
    told: list[int] = []
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for path in paths:
            if watch < 0 or libc.inotify_add_watch(watch, os.fsencode(path), _IN_OPEN) < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        yield told
        with contextlib.suppress(BlockingIOError):
            told.append(len(os.read(watch, 4096)))
    finally:
        os.close(watch)

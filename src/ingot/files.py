"""Files that are whole or absent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

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


@contextlib.contextmanager
def _creating(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error

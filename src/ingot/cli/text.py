"""Texts that commands read: files, and stdin for -."""

from __future__ import annotations

import sys
from pathlib import Path

from ingot.errors import InputError


def read_text(path: str) -> str:
    """Return the text of a file, or of stdin for -. Raises InputError, FileNotFoundError."""
    content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    return decoded(content, "stdin" if path == "-" else path)


def decoded(content: bytes, where: str) -> str:
    """Return the text that bytes encode. Raises InputError for no UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8, {error.reason} at byte {error.start}") from error

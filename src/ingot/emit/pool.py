"""The thread pool of an emitted model: csrc/runtime/pool.c with the model's prefix."""

from __future__ import annotations

import re

from ingot.emit.interface import Interface
from ingot.support import abi


def pool(face: Interface) -> dict[str, str]:
    """Return its files by name; none for a model of one thread."""
    if face.threads == 1:
        return {}
    return {f"{face.prefix}_pool.{ending}": _own(face, abi.source(f"runtime/pool.{ending}")) for ending in ("h", "c")}


def _own(face: Interface, text: str) -> str:
    """Return the text with the model's prefix in external symbols, file names and the include guard."""
    text = re.sub(r"\b(?:runtime/)?pool(\.[hc]|_run|_barrier)\b", rf"{face.prefix}_pool\1", text)
    text = text.replace("INGOT_POOL_H", f"{face.macro}_POOL_H")
    return text.replace(": ", ": emitted by Ingot: ", 1)

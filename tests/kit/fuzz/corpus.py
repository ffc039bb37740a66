"""Inputs that are kept: a small corpus for each target, and what was found once, one file for each."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
MAX_INPUTS = 100  # of a target
MAX_BYTES = 64 << 10  # of the inputs of a target
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # of a zip: the same inputs are the same file


def archive(target: str) -> Path:
    return HERE / "corpus" / f"{target}.zip"


def kept(target: str) -> list[bytes]:
    """The corpus of a target, smallest inputs first."""
    path = archive(target)
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as packed:
        return sorted((packed.read(name) for name in packed.namelist()), key=lambda each: (len(each), each))


def keep(target: str, inputs: list[bytes]) -> int:
    """Keep the smallest inputs, within the limits; return how many."""
    chosen: list[bytes] = []
    size = 0
    for content in sorted(set(inputs), key=lambda each: (len(each), each)):
        size += len(content)
        if len(chosen) == MAX_INPUTS or size > MAX_BYTES:
            break
        chosen.append(content)
    archive(target).parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive(target), "w", zipfile.ZIP_DEFLATED) as packed:
        for content in chosen:
            packed.writestr(zipfile.ZipInfo(hashlib.sha256(content).hexdigest()[:16], _EARLIEST), content)
    return len(chosen)


def findings(target: str) -> dict[str, bytes]:
    """By name: inputs that a target once did wrong on."""
    folder = HERE / "findings"
    return {path.name: path.read_bytes() for path in sorted(folder.glob(f"{target}-*"))}

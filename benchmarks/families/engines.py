"""The engines, each in a process of its own: `python -m benchmarks.families.engines ENGINE FOLDER THREADS`.

Requests are those of `benchmarks.llm.engines`; {"load": part} opens a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.families.model import path_of, read_bytes
from benchmarks.llm import engines


class LlamaCpp(engines.LlamaCpp):
    """llama.cpp on a part's file."""

    tries = 1

    def __init__(self, folder: Path, part: str, threads: int) -> None:
        self.open(path_of(folder, part), threads)


class Ingot(engines.Ingot):
    """Ingot on a part's file: blocks as they are, or bf16."""

    def __init__(self, folder: Path, part: str, threads: int) -> None:
        self.open(path_of(folder, part), threads, "bf16" if part.endswith("bf16") else None)


class Read(engines.Read):
    """Reads as many bytes as a token's weights have."""

    def __init__(self, folder: Path, part: str, threads: int) -> None:
        self.open(read_bytes(part), threads)


ENGINES: dict[str, Any] = {"llama.cpp": LlamaCpp, "ingot": Ingot, "read": Read}


if __name__ == "__main__":
    engines.serve(ENGINES)

"""The packages behind engines: whether they are installed, and their versions."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable

# Of engines that do not have the name of their distribution; those without one come with Ingot.
DISTRIBUTIONS = {
    "eager": "torch", "compile": "torch", "llama.cpp": "llama-cpp-python", "ingot": "", "emitted": "", "read": "",
    "openblas": "numpy",
}  # fmt: skip


def distribution(engine: str) -> str:
    """The distribution of an engine's package; nothing for one that comes with Ingot."""
    return DISTRIBUTIONS.get(engine, engine)


def require(*engines: str, instead: str = "") -> None:
    """End the program with a sentence where an engine's package is not installed.

    instead: how to measure without it.
    """
    missing = []
    for name in sorted({distribution(engine) for engine in engines} - {""}):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}; `make bench` and its like install all engines{instead}")


def versions(engines: Iterable[str]) -> str:
    """The distributions behind engines with their versions, Ingot's first."""
    import ingot

    names = sorted({distribution(engine) for engine in engines} - {""})
    return ", ".join([f"ingot {ingot.__version__}", *(f"{name} {importlib.metadata.version(name)}" for name in names)])

"""Facts on a GGUF file that commands print with its path."""

from __future__ import annotations


def bits_per_weight(path: str) -> float | None:
    """Return the bits per weight of a GGUF file; None for a folder. Raises FileNotFoundError, errors of `read_gguf`."""
    from ingot.load.gguf import is_gguf, read_gguf

    return read_gguf(path).bits_per_weight if is_gguf(path) else None


def named(path: str) -> str:
    """Return a model's name or path for the head of an output, with the bits per weight of a GGUF file."""
    from ingot.load.hub import shown_name

    bits = bits_per_weight(path)
    return shown_name(path) if bits is None else f"{path}, {bits:.2f} bits per weight"

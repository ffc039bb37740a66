"""What commands say of a GGUF file beside its path."""

from __future__ import annotations


def bits_per_weight(path: str) -> float | None:
    """Those of a GGUF file; None for a folder. Raises FileNotFoundError and what `read_gguf` does."""
    from ingot.load.gguf import is_gguf, read_gguf

    return read_gguf(path).bits_per_weight if is_gguf(path) else None


def named(path: str) -> str:
    """What a model is called in front of facts about it: name or path, and of a GGUF file the bits per weight."""
    from ingot.load.hub import shown_name

    bits = bits_per_weight(path)
    return shown_name(path) if bits is None else f"{path}, {bits:.2f} bits per weight"

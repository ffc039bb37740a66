"""What `ingot inspect` prints of a GGUF file: its metadata, and its tensors by type."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ingot.cli.terminal import human_bytes, print_json, print_table, print_text

if TYPE_CHECKING:
    from ingot.load.gguf import GgufFile
    from ingot.load.gguf.metadata import Entry

_SHOWN = 4  # elements of an array
_CHARACTERS = 60  # of a text


def print_gguf(path: str, as_json: bool) -> None:
    """Reads the header of a file and prints it. Raises FileNotFoundError, LoadError, LimitError."""
    from ingot.load.gguf import read_gguf

    file = read_gguf(path)
    if as_json:
        print_json(document(file))
        return
    print_text(
        f"GGUF version {file.version}, {len(file.metadata.entries)} keys, {len(file.tensors)} tensors,"
        f" {file.bits_per_weight:.2f} bits per weight"
    )
    print_table(["key", "type", "value"], ([k, e.described, _short(e)] for k, e in file.metadata.entries.items()))
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        counts[tensor.type] += 1
        sizes[tensor.type] += tensor.nbytes
    types = ([type, f"{counts[type]:,}", human_bytes(size)] for type, size in sizes.most_common())
    print_table(["type", "tensors", "bytes"], types, right=["tensors", "bytes"])
    rows = ([t.name, t.type, str(list(t.shape)), f"{t.nbytes:,}"] for t in file.tensors.values())
    print_table(["tensor", "type", "shape", "bytes"], rows, right=["bytes"])


def bits_per_weight(path: str) -> float | None:
    """Those of a GGUF file; None for a folder. Raises as `print_gguf` does."""
    from ingot.load.gguf import is_gguf, read_gguf

    return read_gguf(path).bits_per_weight if is_gguf(path) else None


def named(path: str) -> str:
    """What a model is called in front of facts about it: name or path, and of a GGUF file the bits per weight."""
    from ingot.load.hub import shown_name

    bits = bits_per_weight(path)
    return shown_name(path) if bits is None else f"{path}, {bits:.2f} bits per weight"


def document(file: GgufFile) -> dict[str, Any]:
    """A file's header as JSON; of arrays the first elements and how many there are."""
    metadata = {
        key: {"type": entry.type, "count": len(entry.value), "first": [_plain(each) for each in entry.value[:_SHOWN]]}
        if entry.is_array
        else _plain(entry.value)
        for key, entry in file.metadata.entries.items()
    }
    tensors = [
        {"name": t.name, "type": t.type, "shape": list(t.shape), "offset": t.offset, "bytes": t.nbytes}
        for t in file.tensors.values()
    ]
    return {"version": file.version, "bits_per_weight": file.bits_per_weight, "metadata": metadata, "tensors": tensors}


def _plain(value: Any) -> Any:
    """A value as JSON has it; bytes that are no text are escaped."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.item() if hasattr(value, "item") else value


def _short(entry: Entry) -> str:
    if not entry.is_array:
        return _cut(_plain(entry.value))
    first = ", ".join(_cut(_plain(each)) for each in entry.value[:_SHOWN])
    return f"{len(entry.value):,}: {first}{', ...' if len(entry.value) > _SHOWN else ''}"


def _cut(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."

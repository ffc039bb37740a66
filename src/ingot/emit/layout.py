"""Offsets and shapes of a model's tensors as C constants in <prefix>.h, and the memory that the model needs."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.emit.interface import RUN, Entry, Interface, comment, dims


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a model in bytes.

    arena: working memory of a run; kept: state that lives from run to run; state: both and one more cache line;
    inputs, outputs: buffers of the caller, for the largest entry; weights: read-only.
    """

    arena: int
    kept: int
    state: int
    inputs: int
    outputs: int
    weights: int

    @property
    def ram(self) -> int:
        """All writable memory except the stack."""
        return self.state + self.inputs + self.outputs


def memory(face: Interface) -> Memory:
    """Return the memory of a model by its plans. Code and stack depend on the compiler."""
    inputs, outputs = (
        max(sum(port.tensor.nbytes for port in ports) for ports in both)
        for both in zip(*((entry.inputs, entry.outputs) for entry in face.entries), strict=True)
    )
    return Memory(face.arena_bytes, face.kept_bytes, face.state_bytes, inputs, outputs, face.weights_bytes)


def offset(face: Interface, entry: Entry, id: str) -> str:
    """Return the name of the constant for a tensor's byte offset in its region."""
    return f"{_opening(face, entry)}_OFFSET_{entry.names[id].upper()}"


def layout_constants(face: Interface) -> str:
    """Return the constants of <prefix>.h."""
    about = (
        f"Constants of each tensor, by its C name; {face.file('layout.json')} has the names of the source model. "
        "OFFSET: bytes from the start of the weights, of the arena, or of the state. BYTES: its size. RANK and SHAPE: "
        "its dims; of a packed weight those of the matrix; of a run-time dim the largest size."
    )
    return f"\n{comment(about, '')}\n{''.join(_section(face, entry) for entry in face.entries)}"


def _section(face: Interface, entry: Entry) -> str:
    title = "" if entry.name == RUN else f"\n/* Of {face.function(entry)}. */\n"
    placed = [id for id in entry.names if id in entry.planned.addresses]
    works = [id for id in placed if entry.lowered.tensors[id].kind in ("activation", "scratch", "update")]
    text = title + "".join(_tensor(face, entry, id) for id in placed if id not in works)
    rows = [f"#define {offset(face, entry, id)} {entry.planned.addresses[id].offset}\n" for id in works]
    return text + ("\n/* The arena. */\n" + "".join(rows) if rows else "")


def _tensor(face: Interface, entry: Entry, id: str) -> str:
    opening, name, tensor = _opening(face, entry), entry.names[id].upper(), entry.lowered.tensors[id]
    text, address = "", entry.planned.addresses[id]
    if not address.region.startswith(("input:", "output:")):
        text += f"#define {offset(face, entry, id)} {address.offset}\n"
    text += f"#define {opening}_BYTES_{name} {tensor.nbytes}\n#define {opening}_RANK_{name} {len(tensor.shape)}\n"
    if tensor.shape:
        text += f"#define {opening}_SHAPE_{name} {{{', '.join(str(int(dim)) for dim in tensor.shape)}}}\n"
    return f"\n{comment(f'{entry.names[id]}: {tensor.kind}, {dims(tensor)}', '')}\n{text}"


def _opening(face: Interface, entry: Entry) -> str:
    return face.macro if entry.name == RUN else f"{face.macro}_{entry.name.upper()}"

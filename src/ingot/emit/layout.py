"""Where the tensors of a model lie, and their shapes, as constants of C in <prefix>.h; what memory it takes."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.emit.interface import RUN, Entry, Interface, comment, dims


@dataclass(frozen=True, slots=True)
class Memory:
    """What a model takes, in bytes. arena: what a run works in; kept: what lives from run to run; state: both, and a
    line of a cache beside them; inputs, outputs: of the largest entry, which the caller has; weights: read alone."""

    arena: int
    kept: int
    state: int
    inputs: int
    outputs: int
    weights: int

    @property
    def ram(self) -> int:
        """All that is written to, but for the stack."""
        return self.state + self.inputs + self.outputs


def memory(face: Interface) -> Memory:
    """What a model takes by its plans. Code and stack depend on the compiler."""
    inputs, outputs = (
        max(sum(port.tensor.nbytes for port in ports) for ports in both)
        for both in zip(*((entry.inputs, entry.outputs) for entry in face.entries), strict=True)
    )
    return Memory(face.arena_bytes, face.kept_bytes, face.state_bytes, inputs, outputs, face.weights_bytes)


def offset(face: Interface, entry: Entry, id: str) -> str:
    """The constant that says where a tensor lies in its memory, in bytes."""
    return f"{_opening(face, entry)}_OFFSET_{entry.names[id].upper()}"


def layout_constants(face: Interface) -> str:
    """The part of <prefix>.h."""
    about = (
        f"Each tensor by its name, sanitised; {face.file('layout.json')} has the names of the source model. OFFSET: "
        "bytes from the beginning of the weights, of the arena, or of what is kept from run to run. BYTES: all of it. "
        "RANK and SHAPE: dims in order, of a packed weight those of the matrix; the most that one can be where a run "
        "says it."
    )
    return f"\n{comment(about, '')}\n{''.join(_section(face, entry) for entry in face.entries)}"


def _section(face: Interface, entry: Entry) -> str:
    title = "" if entry.name == RUN else f"\n/* Of {face.function(entry)}. */\n"
    placed = [id for id in entry.names if id in entry.planned.addresses]
    works = [id for id in placed if entry.lowered.tensors[id].kind in ("activation", "scratch", "update")]
    text = title + "".join(_tensor(face, entry, id) for id in placed if id not in works)
    rows = [f"#define {offset(face, entry, id)} {entry.planned.addresses[id].offset}\n" for id in works]
    return text + ("\n/* What a run works in. */\n" + "".join(rows) if rows else "")


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

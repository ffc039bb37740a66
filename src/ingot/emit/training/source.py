"""The facts of main.c of a trainer: a program that fits the model to files of rows and writes a checkpoint."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.emit.interface import Companion, Interface, Port, dims, wrapped
from ingot.emit.platform import Platform
from ingot.emit.program import VECTOR
from ingot.emit.project import filled

_PIECE = 400  # bytes of a string in C


@dataclass(frozen=True, slots=True)
class Fitting:
    """The facts of a trainer for the program.

    rate: the input with the learning rate; given: its default. step: the state that counts steps. header: the JSON
    header of a checkpoint, a safetensors file; the states follow it, and at its end the digest. parts: the parts into
    which a step divides its rows (gradient accumulation); each adds to `sums`, states by name with their bytes, and may
    read its number from the input `part`.
    """

    rate: str
    given: float
    step: str
    header: bytes
    digest: bytes
    parts: int
    part: str
    sums: Mapping[str, int]


def state_memory(prefix: str, nbytes: int) -> Companion:
    """Return the function that gives a caller the memory of parameters and moments."""
    name = f"{prefix}_kept"
    header = f"""
/* The memory that lives from step to step, {nbytes} bytes: parameters, optimiser state, and the number of steps.
 * layout.json has the offset of each. */
void *{name}({prefix}_state *state);
"""
    return Companion(
        functions=f"\nvoid *{name}({prefix}_state *state) {{ return state->kept; }}\n", header=header, names=(name,)
    )


def training_program(face: Interface, fitting: Fitting, platform: Platform) -> str:
    """Return main.c. The first entry reads rows; with gradient accumulation, the second updates the parameters."""
    entry, ports = face.entries[0], _files(face, fitting)
    (loss,) = entry.outputs
    rows = [_row(port, platform) for port in ports]
    rate = next(i for i, port in enumerate(ports) if port.tensor.name == fitting.rate)
    taken = [f"inputs[{ports.index(port)}].data" if port in ports else "&number" for port in entry.inputs]
    given = [f".{port.identifier} = {memory}" for port, memory in zip(entry.inputs, taken, strict=True)]
    offsets = face.state_offsets
    *states, (_, _, digest_bytes) = _offsets(fitting.header)
    assert digest_bytes == len(fitting.digest), "the tensor with the smallest elements is the last"
    stored = [f"{{{offsets[name]}, {nbytes}}}" for _, name, nbytes in states]
    return filled(
        "train.c",
        name=face.prefix,
        file=face.file("main.c"),
        weights=face.file("weights.bin"),
        rows=rows,
        rate=rate,
        default_rate=float(fitting.given),
        step=offsets[fitting.step],
        header=list(_pieces(fitting.header)),
        header_bytes=len(fitting.header),
        states=stored,
        digest=[str(byte) for byte in fitting.digest],
        given=wrapped(given, ", ", "      "),
        loss=loss.identifier,
        parts=fitting.parts,
        train=entry.name,
        reads_part="&number" in taken,
        sums=[f"{{{offsets[name]}, {nbytes}}}" for name, nbytes in fitting.sums.items()],
        update=_update(face, fitting),
    )


def _files(face: Interface, fitting: Fitting) -> list[Port]:
    """Return the inputs that files of rows fill, and the learning rate."""
    entries = face.entries[: 1 if fitting.parts == 1 else 2]
    return [port for entry in entries for port in entry.inputs if port.tensor.name != fitting.part]


def _update(face: Interface, fitting: Fitting) -> dict[str, str]:
    """Return the C names of the entry that updates the parameters after the parts of a step; empty for one part."""
    if fitting.parts == 1:
        return {}
    entry = face.entries[1]
    (given,), (count,) = entry.inputs, entry.outputs
    return {
        "function": face.function(entry), "inputs": face.inputs(entry), "outputs": face.outputs(entry),
        "given": given.identifier, "count": count.identifier,
    }  # fmt: skip


def training_vector(
    face: Interface, fitting: Fitting, inputs: Sequence[np.ndarray], losses: np.ndarray
) -> dict[str, bytes]:
    """Return the files of `--check`: rows of each input of a step, in order, and the expected losses."""
    files = {}
    for port, array in zip((*_files(face, fitting), *face.entries[0].outputs), (*inputs, losses), strict=True):
        file = io.BytesIO()
        np.save(file, np.asarray(array, order="C"), allow_pickle=False)
        files[f"{face.file(VECTOR)}/{port.identifier}.npy"] = file.getvalue()
    return files


def _offsets(header: bytes) -> list[tuple[int, str, int]]:
    """Return the offset after the header, the name and the bytes of each tensor of a checkpoint, in order."""
    rows = ((*row["data_offsets"], name) for name, row in json.loads(header).items())
    return sorted((begin, name, end - begin) for begin, end, name in rows)


def _row(port: Port, platform: Platform) -> str:
    """Return an input's line in the table of main.c: the rows of a step. An input without axes is one row."""
    tensor = port.tensor
    rows, *inner = map(int, tensor.shape or (1,))
    descr = np.lib.format.dtype_to_descr(platform.dtype(tensor.dtype.numpy))
    rest = "".join(f", {dim}" for dim in inner) or ","
    nbytes = tensor.nbytes // max(rows, 1)
    words = [f'"{word}"' for word in (port.identifier, dims(tensor), descr, f"{rest})")]
    return "  {" + ", ".join([*words, str(rows), str(nbytes), "NULL", "0", "NULL"]) + "},"


def _pieces(content: bytes) -> Iterator[str]:
    """Yield bytes as C strings, short enough for every compiler. Bytes other than plain text are octal escapes."""
    plain = {byte for byte in range(32, 127) if chr(byte) not in '"\\?'}
    for row in re.findall(rb".*?\},|.+", content, re.DOTALL):
        for at in range(0, len(row), _PIECE):
            text = "".join(chr(b) if b in plain else f"\\{b:03o}" for b in row[at : at + _PIECE])
            yield f'"{text}"'

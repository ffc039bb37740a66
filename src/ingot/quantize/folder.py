"""A model folder -> the same with matrices as codes of few bits; docs/quantisation-folders.md says how they lie."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import IO

import numpy as np

from ingot.dtype import DType, f32, from_numpy, i8, u8
from ingot.errors import InputError, LoadError, OutputError
from ingot.files import release, written, written_folder
from ingot.load.hf import Folder, load_language_model, read_folder
from ingot.load.hf.coded import CODES, SCALES, VERSION, ZEROS
from ingot.load.hf.safetensors import DTYPES, StoredTensor
from ingot.load.hub import located
from ingot.quantize.codes import Coded, Coding, code
from ingot.quantize.feedback import code_with_feedback
from ingot.quantize.matrices import Matrix, Plan, matrices_of
from ingot.quantize.moments import Moments, Progress, Work

MAX_COPIED_BYTES = 256 << 20  # of a tokenizer or another file beside the weights
WEIGHTS = "model.safetensors"
_COPIED = re.compile(r"(?!\.).*\.(json|jinja|txt|model|md)|LICENSE.*|NOTICE.*")
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH_BYTES = 8  # of the header's length
_ALIGNMENT = 64
_BLOCK_BYTES = 4 << 20  # of a matrix as f32 that is coded at once, and of a tensor that is copied


@dataclass(frozen=True, slots=True)
class Written:
    """How many weights were coded and how many kept, and the bytes that all of them took and take."""

    coded: int
    kept: int
    before: int
    after: int


def quantize_folder(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    plan: Plan,
    *,
    text: str | None = None,
    on_progress: Progress | None = None,
) -> Written:
    """Writes the quantised folder, whole or not at all.

    text: the model is run over it, and codes are chosen for what its products are given then; each element gets the
    nearest code unless there is one. Of a matrix some rows at a time are in memory; with a text, all of it, its moments
    and the model besides.

    Raises OutputError for a target that is there or cannot be written, InputError for a plan that does not fit, a model
    that is quantised already and a text that is too short, and what reading a folder raises.
    """
    if os.path.lexists(target):
        raise OutputError(f"{os.fspath(target)}: exists, expected a free name")
    folder = read_folder(located(source))
    matrices = plain_matrices(folder)
    codings = codings_of(matrices, plan)
    moments = None if text is None else Moments(folder, text, [matrices[name] for name in codings])
    before = sum(tensor.nbytes for tensor in folder.tensors.values())
    work = Work(before, 0 if moments is None else moments.passes, on_progress)
    with written_folder(target, ()) as temporary:
        with written(temporary / WEIGHTS) as file:
            writer = _Writer(file, folder.tensors.values())
            for name, tensor in folder.tensors.items():
                if name in codings:
                    _write_coded(writer, tensor, matrices[name], codings[name], moments, work)
                else:
                    writer.add(name, tensor.array())
                work.add(tensor.nbytes)
            writer.finish()
        for name in sorted(filter(_COPIED.fullmatch, folder.names)):
            if not name.endswith(".safetensors.index.json"):
                content = folder.content(name, MAX_COPIED_BYTES)
                assert content is not None
                with written(temporary / name) as file:
                    file.write(_described(folder) if name == "config.json" else content)
    return Written(len(codings), len(folder.tensors) - len(codings), before, writer.nbytes)


def plain_matrices(folder: Folder) -> Mapping[str, Matrix]:
    """The matrices of a folder that is not quantised yet. Raises InputError, and what reading a folder raises."""
    if folder.config.get("quantization_config") is not None:
        raise InputError(f"{folder.path}: quantised already, got quantization_config in config.json, expected floats")
    return matrices_of(folder, load_language_model(folder, context=None))


def codings_of(matrices: Mapping[str, Matrix], plan: Plan) -> dict[str, Coding]:
    """How matrices are coded, those that are. Raises InputError for a plan that does not fit one, or names none."""
    for option, patterns in (("int8", plan.int8), ("keep", plan.keep)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in matrices):
                example = next(iter(matrices), "none")
                raise InputError(f"option {option}: names no matrix, got {pattern!r}, expected one such as {example!r}")
    codings = {name: plan.coding(matrix) for name, matrix in matrices.items()}
    return {name: coding for name, coding in codings.items() if coding is not None}


def rows_of(tensor: StoredTensor, matrix: Matrix) -> Iterator[np.ndarray]:
    """A matrix f32[n, k], some rows at a time; what was read is let go. Raises LoadError for NaN and infinities."""
    stored = tensor.array()
    rows = max(1, _BLOCK_BYTES // (4 * matrix.k))
    for begin in range(0, matrix.n, rows):
        part = stored[:, begin : begin + rows].T if matrix.transposed else stored[begin : begin + rows]
        block = np.ascontiguousarray(part.astype(f32.numpy))
        release(part)
        if not np.isfinite(block).all():
            raise LoadError(f"{tensor.path}: weight {tensor.name!r} holds NaN or infinities, expected numbers")
        yield block


def coded_parts(
    tensor: StoredTensor, matrix: Matrix, coding: Coding, moments: Moments | None, work: Work
) -> Iterator[Coded]:
    """The codes of a matrix, some rows at a time, or all together where there are moments of what it multiplies."""
    blocks = rows_of(tensor, matrix)
    if moments is None or matrix.input is None:
        yield from (code(block, coding) for block in blocks)
    else:
        yield code_with_feedback(np.concatenate(list(blocks)), coding, moments.of(matrix.input, work))


class _Writer:
    """Writes a safetensors file tensor by tensor, and at the end its header, for which it leaves room.

    tensors: those that the file's are made of, one or three of each.
    """

    def __init__(self, file: IO[bytes], tensors: Collection[StoredTensor]):
        self._file = file
        self._rows: dict[str, dict[str, object]] = {}
        most = 4 * sum(tensor.nbytes + 8 for tensor in tensors)
        longest = {
            f"{tensor.name}.{part}": _row("BF16", tensor.shape, most, most)
            for tensor in tensors
            for part in (CODES, SCALES, ZEROS)
        }
        self._room = -(-(_LENGTH_BYTES + len(_text(longest))) // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = 0
        file.write(bytes(self._room))

    def write(self, array: np.ndarray) -> None:
        """The elements of a tensor, or some of them; what was read of a mapped file is let go."""
        flat = array.reshape(-1)
        step = _BLOCK_BYTES // array.itemsize
        for begin in range(0, flat.size, step):
            part = flat[begin : begin + step]
            self._file.write(part.view(np.uint8).data)
            release(part)
        self.nbytes += array.nbytes

    def name(self, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        """Names what was written last, as much as the tensor takes."""
        begin = self.nbytes - dtype.nbytes(math.prod(shape))
        self._rows[name] = _row(_NAMES[dtype], shape, begin, self.nbytes)

    def add(self, name: str, array: np.ndarray) -> None:
        """A whole tensor."""
        self.write(array)
        self.name(name, from_numpy(array.dtype), array.shape)

    def finish(self) -> None:
        """Writes the header."""
        text = _text(self._rows).ljust(self._room - _LENGTH_BYTES)
        self._file.seek(0)
        self._file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)


def _row(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _text(rows: Mapping[str, object]) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode()


def _write_coded(
    writer: _Writer, tensor: StoredTensor, matrix: Matrix, coding: Coding, moments: Moments | None, work: Work
) -> None:
    scales, zeros = [], []
    for part in coded_parts(tensor, matrix, coding, moments, work):
        writer.write(packed(part.codes, coding))
        scales.append(part.scales)
        zeros += [] if part.zeros is None else [packed(part.zeros, coding)]
    writer.name(f"{matrix.name}.{CODES}", i8 if coding.bits == 8 else u8, (matrix.n, matrix.k * coding.bits // 8))
    writer.add(f"{matrix.name}.{SCALES}", np.concatenate(scales))
    if zeros:
        writer.add(f"{matrix.name}.{ZEROS}", np.concatenate(zeros))


def packed(codes: np.ndarray, coding: Coding) -> np.ndarray:
    """Codes [n, m] as they lie in a file: of four bits two in a byte, the first in the low bits."""
    if coding.bits == 8:
        return codes
    nibbles = codes.view(np.uint8) & np.uint8(15)
    if nibbles.shape[1] % 2:
        nibbles = np.pad(nibbles, ((0, 0), (0, 1)))
    return nibbles[:, ::2] | (nibbles[:, 1::2] << np.uint8(4))


def _described(folder: Folder) -> bytes:
    """`config.json` with what it holds now."""
    entry = {"quant_method": "ingot", "version": VERSION}
    return json.dumps(folder.config | {"quantization_config": entry}, indent=2).encode() + b"\n"

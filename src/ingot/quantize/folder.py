"""A model folder -> the same with matrices as codes of few bits; docs/quantization-folders.md says how they lie."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from ingot.errors import InputError, LoadError, OutputError
from ingot.ir.dtype import f32, i8, u8
from ingot.load.hf import Folder, load_language_model, read_folder
from ingot.load.hf.folder import SINGLE
from ingot.load.hf.quantized import CODES, SCALES, VERSION, ZEROS
from ingot.load.hf.safetensors import StoredTensor
from ingot.load.hf.writer import SafetensorsWriter, copy_others
from ingot.load.hub import located
from ingot.quantize.feedback import quantize_with_feedback
from ingot.quantize.matrices import Matrix, Plan, matrices_of
from ingot.quantize.moments import Moments, Progress, Work
from ingot.quantize.weights import Coding, Quantized, code
from ingot.support.files import release, written, written_folder

_BLOCK_BYTES = 4 << 20  # of a matrix as f32 that is coded at once


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
    template: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> Written:
    """Writes the quantized folder, whole or not at all.

    text: the model is run over it, and codes are chosen for what its products are given then; each element gets the
    nearest code unless there is one. Of a matrix some rows at a time are in memory; with a text, all of it, its moments
    and the model besides. template: see `Folder`; the written folder has it, too.

    Raises OutputError for a target that is there or cannot be written, InputError for a plan that does not fit, a model
    that is quantized already and a text that is too short, and what reading a folder raises.
    """
    if os.path.lexists(target):
        raise OutputError(f"{os.fspath(target)}: exists, expected a free name")
    folder = read_folder(located(source), template)
    matrices = plain_matrices(folder)
    codings = codings_of(matrices, plan)
    moments = None if text is None else Moments(folder, text, [matrices[name] for name in codings])
    before = sum(tensor.nbytes for tensor in folder.tensors.values())
    work = Work(before, 0 if moments is None else moments.passes, on_progress)
    with written_folder(target, ()) as temporary:
        with written(temporary / SINGLE) as file:
            writer = SafetensorsWriter(file, folder.tensors.values())
            for name, tensor in folder.tensors.items():
                if name in codings:
                    _write_quantized(writer, tensor, matrices[name], codings[name], moments, work)
                else:
                    writer.add(name, tensor.array())
                work.add(tensor.nbytes)
            writer.finish()
        copy_others(folder, temporary, _described(folder))
    return Written(len(codings), len(folder.tensors) - len(codings), before, writer.nbytes)


def plain_matrices(folder: Folder) -> Mapping[str, Matrix]:
    """The matrices of a folder that is not quantized yet. Raises InputError, and what reading a folder raises."""
    if folder.config.get("quantization_config") is not None:
        raise InputError(f"{folder.path}: quantized already, got quantization_config in config.json, expected floats")
    return matrices_of(folder, load_language_model(folder, context=None))


def codings_of(matrices: Mapping[str, Matrix], plan: Plan) -> dict[str, Coding]:
    """How matrices are coded, those that are. Raises InputError for a plan that does not fit one, or names none."""
    for option, patterns in (("int8", plan.int8), ("keep", plan.keep)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in matrices):
                example = next(iter(matrices), "none")
                raise InputError(f"option {option}: names no matrix, got {pattern!r}, expected one such as {example!r}")
    found = {name: plan.coding(matrix) for name, matrix in matrices.items()}
    codings = {name: coding for name, coding in found.items() if coding is not None}
    if plan.zero_points and not any(coding.has_zeros for coding in codings.values()):
        raise InputError("option zero_points: of int4 alone, got no weight in int4, expected --format int4")
    return codings


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


def quantized_parts(
    tensor: StoredTensor, matrix: Matrix, coding: Coding, moments: Moments | None, work: Work
) -> Iterator[Quantized]:
    """The codes of a matrix, some rows at a time, or all together where there are moments of what it multiplies."""
    blocks = rows_of(tensor, matrix)
    if moments is None or matrix.input is None:
        yield from (code(block, coding) for block in blocks)
    else:
        yield quantize_with_feedback(np.concatenate(list(blocks)), coding, moments.of(matrix.input, work))


def _write_quantized(
    writer: SafetensorsWriter, tensor: StoredTensor, matrix: Matrix, coding: Coding, moments: Moments | None, work: Work
) -> None:
    scales, zeros = [], []
    for part in quantized_parts(tensor, matrix, coding, moments, work):
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

"""Write a copy of a model folder with quantized matrices; docs/quantization-folders.md specifies the format."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from ingot.errors import InputError, LoadError, OutputError, bounded
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

_BLOCK_BYTES = 4 << 20  # bytes, as f32, of the rows that are quantized at once


@dataclass(frozen=True, slots=True)
class Written:
    """A summary. coded, kept: the number of weights quantized and unchanged; before, after: bytes of all weights.

    widened: the names of weights in int8 in place of int4, because 32 does not divide their columns.
    """

    coded: int
    kept: int
    before: int
    after: int
    widened: tuple[str, ...] = ()


@bounded("quantize")
def quantize_folder(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    plan: Plan,
    *,
    text: str | None = None,
    template: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> Written:
    """Write the quantized folder atomically.

    text: a calibration text; the model is run on it, and the quantized values minimize the error of its products
    (GPTQ). Without a text each element is rounded to the nearest value. Without a text some rows of a matrix are in
    memory at a time; with a text, the full matrix, its moments and the model. template: see
    `Folder`; the written folder keeps it.

    Raises OutputError for a target that exists or cannot be written, InputError for a plan that does not fit, for a
    model that is quantized already and for a text that is too short, ResourceError, and the errors of reading a folder.
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
    widened = tuple(name for name in codings if plan.is_widened(matrices[name]))
    return Written(len(codings), len(folder.tensors) - len(codings), before, writer.nbytes, widened)


def plain_matrices(folder: Folder) -> Mapping[str, Matrix]:
    """Return the matrices of a folder. Raises InputError if it is quantized already, and the errors of reading it."""
    if folder.config.get("quantization_config") is not None:
        raise InputError(
            f"{folder.path}: quantized already, got quantization_config in config.json, expected float weights"
        )
    return matrices_of(folder, load_language_model(folder, context=None))


def codings_of(matrices: Mapping[str, Matrix], plan: Plan) -> dict[str, Coding]:
    """Return the format of each matrix to quantize. Raises InputError for a plan that does not fit the matrices."""
    for option, patterns in (("int8", plan.int8), ("keep", plan.keep)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in matrices):
                example = next(iter(matrices), "none")
                raise InputError(
                    f"option {option}: matches no matrix, got {pattern!r}, expected one such as {example!r}"
                )
    found = {name: plan.coding(matrix) for name, matrix in matrices.items()}
    codings = {name: coding for name, coding in found.items() if coding is not None}
    if plan.zero_points and not any(coding.has_zeros for coding in codings.values()):
        raise InputError("option zero_points: for int4 only, got no weight in int4, expected --format int4")
    return codings


def rows_of(tensor: StoredTensor, matrix: Matrix) -> Iterator[np.ndarray]:
    """Yield a matrix f32[n, k] in blocks of rows and release read pages. Raises LoadError for NaN and infinity."""
    stored = tensor.array()
    rows = max(1, _BLOCK_BYTES // (4 * matrix.k))
    for begin in range(0, matrix.n, rows):
        part = stored[:, begin : begin + rows].T if matrix.transposed else stored[begin : begin + rows]
        block = np.ascontiguousarray(part.astype(f32.numpy))
        release(part)
        if not np.isfinite(block).all():
            raise LoadError(f"{tensor.path}: weight {tensor.name!r} contains NaN or infinity, expected numbers")
        yield block


def quantized_parts(
    tensor: StoredTensor, matrix: Matrix, coding: Coding, moments: Moments | None, work: Work
) -> Iterator[Quantized]:
    """Yield a quantized matrix in blocks of rows, or as one block if there are moments of its input."""
    blocks = rows_of(tensor, matrix)
    if moments is None or matrix.input is None:
        yield from (code(block, coding) for block in blocks)
    else:
        yield quantize_with_feedback(np.concatenate(list(blocks)), coding, moments.of(matrix.input, work))


def _write_quantized(
    writer: SafetensorsWriter, tensor: StoredTensor, matrix: Matrix, coding: Coding, moments: Moments | None, work: Work
) -> None:
    scales, zero_points = [], []
    for part in quantized_parts(tensor, matrix, coding, moments, work):
        writer.write(packed(part.quantized, coding))
        scales.append(part.scales)
        zero_points += [] if part.zeros is None else [packed(part.zeros, coding)]
    writer.name(f"{matrix.name}.{CODES}", i8 if coding.bits == 8 else u8, (matrix.n, matrix.k * coding.bits // 8))
    writer.add(f"{matrix.name}.{SCALES}", np.concatenate(scales))
    if zero_points:
        writer.add(f"{matrix.name}.{ZEROS}", np.concatenate(zero_points))


def packed(quantized: np.ndarray, coding: Coding) -> np.ndarray:
    """Pack quantized values [n, m] as stored in a file: with 4 bits, two in a byte, the first in the low bits."""
    if coding.bits == 8:
        return quantized
    nibbles = quantized.view(np.uint8) & np.uint8(15)
    if nibbles.shape[1] % 2:
        nibbles = np.pad(nibbles, ((0, 0), (0, 1)))
    return nibbles[:, ::2] | (nibbles[:, 1::2] << np.uint8(4))


def _described(folder: Folder) -> bytes:
    """Return config.json with the quantization entry."""
    entry = {"quant_method": "ingot", "version": VERSION}
    return json.dumps(folder.config | {"quantization_config": entry}, indent=2).encode() + b"\n"

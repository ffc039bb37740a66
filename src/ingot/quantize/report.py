"""The quantization error of each weight under a plan, and the best use of a budget of bytes for int8 weights."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingot.load.hf import read_folder
from ingot.load.hf.safetensors import StoredTensor
from ingot.load.hub import located
from ingot.quantize.folder import codings_of, plain_matrices, quantized_parts, rows_of
from ingot.quantize.matrices import Matrix, Plan
from ingot.quantize.moments import Moments, Progress, Work
from ingot.quantize.weights import Coding
from ingot.support.columns import counted, table

_LAYER = re.compile(r".*?\.\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Loss:
    """The quantization error of a matrix. Errors are relative: the norm of the error divided by the norm of the values.

    weight_error: of the elements. output_error: of the products with the activations of a text; None without a text.
    int8: the error as int8, and the additional bytes of int8; None for a matrix that is int8.
    """

    name: str
    format: str
    nbytes: int
    weight_error: float
    output_error: float | None
    int8: tuple[float, int] | None

    @property
    def error(self) -> float:
        """The error of outputs if there is a text, else of weights."""
        return self.weight_error if self.output_error is None else self.output_error

    @property
    def layer(self) -> str:
        """The path of the matrix's layer, such as model.layers.0; outside of layers the matrix's name."""
        found = _LAYER.match(self.name)
        return self.name if found is None else found[0]


@dataclass(frozen=True, slots=True)
class Report:
    """The losses of all quantized matrices, in the order of the file."""

    losses: Sequence[Loss]

    def __repr__(self) -> str:
        nbytes = sum(loss.nbytes for loss in self.losses)
        return f"<Report: {counted(len(self.losses), 'matrix', 'matrices')}, {nbytes} bytes>"

    def __str__(self) -> str:
        return table(repr(self), [(loss.name, loss.format, f"{loss.error:.3%}") for loss in self.losses])

    def layers(self) -> dict[str, float]:
        """Return the error of each layer: the root mean square of the errors of its matrices."""
        squares: dict[str, list[float]] = {}
        for loss in self.losses:
            squares.setdefault(loss.layer, []).append(loss.error**2)
        return {layer: math.sqrt(sum(each) / len(each)) for layer, each in squares.items()}

    def raised(self, budget: int) -> list[Loss]:
        """Return the matrices to store as int8 within `budget` additional bytes, the largest gain per byte first."""

        def gain(loss: Loss) -> float:
            assert loss.int8 is not None
            return (loss.error**2 - loss.int8[0] ** 2) / max(loss.int8[1], 1)

        chosen = []
        for loss in sorted((loss for loss in self.losses if loss.int8 is not None), key=gain, reverse=True):
            assert loss.int8 is not None
            if gain(loss) > 0 and loss.int8[1] <= budget:
                chosen.append(loss)
                budget -= loss.int8[1]
        return chosen


def report(
    source: str | os.PathLike[str],
    plan: Plan,
    *,
    text: str | None = None,
    template: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> Report:
    """Return the loss of each matrix that `quantize_folder` would quantize. Raises its errors, except for target."""
    folder = read_folder(located(source), template)
    matrices = plain_matrices(folder)
    codings = codings_of(matrices, plan)
    moments = None if text is None else Moments(folder, text, [matrices[name] for name in codings])
    nbytes = sum(folder.tensors[name].nbytes for name in codings)
    work, losses = Work(nbytes, 0 if moments is None else moments.passes, on_progress), []
    for name, coding in codings.items():
        losses.append(_loss(folder.tensors[name], matrices[name], coding, moments, plan, work))
        work.add(folder.tensors[name].nbytes)
    return Report(losses)


def _loss(
    tensor: StoredTensor, matrix: Matrix, coding: Coding, moments: Moments | None, plan: Plan, work: Work
) -> Loss:
    weight_error, output_error = _errors(tensor, matrix, coding, moments, work)
    nbytes, int8 = _nbytes(matrix, coding), None
    if coding.bits < 8:
        wider = Coding(8, plan.group or 0, False)
        errors = _errors(tensor, matrix, wider, moments, work)
        int8 = (errors[0] if errors[1] is None else errors[1], _nbytes(matrix, wider) - nbytes)
    return Loss(matrix.name, f"int{coding.bits}", nbytes, weight_error, output_error, int8)


def _errors(
    tensor: StoredTensor, matrix: Matrix, coding: Coding, moments: Moments | None, work: Work
) -> tuple[float, float | None]:
    """Return the relative errors of elements, and of outputs if there are moments of the product's input."""
    moment = None if moments is None or matrix.input is None else moments.of(matrix.input, work)
    dequantized = (part.decoded() for part in quantized_parts(tensor, matrix, coding, moments, work))
    exact = rows_of(tensor, matrix) if moment is None else iter([np.concatenate(list(rows_of(tensor, matrix)))])
    squares = np.zeros(4)  # of errors and of elements, then of their products with the text's activations
    for rows, approximation in zip(exact, dequantized, strict=True):
        wide, error = rows.astype(np.float64), rows.astype(np.float64) - approximation
        squares[:2] += (error * error).sum(), (wide * wide).sum()
        if moment is not None:
            squares[2:] += ((error @ moment) * error).sum(), ((wide @ moment) * wide).sum()
    weight_error, output_error = np.sqrt(squares[::2] / np.maximum(squares[1::2], 1e-300)).tolist()
    return weight_error, None if moment is None else output_error


def _nbytes(matrix: Matrix, coding: Coding) -> int:
    """Return the bytes of a matrix's quantized values, scales in f16 and zero points."""
    groups = coding.groups(matrix.k)
    zero_points = -(-groups * coding.bits // 8) if coding.has_zeros else 0
    return matrix.n * (matrix.k * coding.bits // 8 + 2 * groups + zero_points)

"""Heat maps of errors: where in a tensor its errors are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingot.inspect.comparison.measure import relative_errors

_ROWS, _COLUMNS = 16, 64  # cells at most
_SHADES = " .:-=+*#%@"
_DECADES = 4  # from the lightest shade of an error to the darkest one


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The errors of an array as a matrix of cells.

    rows, columns: of the array as a matrix: about as many rows as columns, if
    its axes allow it. cells: the largest error in each cell,
    relative to max(1, |expected|), row by row.
    """

    rows: int
    columns: int
    cells: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(got: np.ndarray, expected: np.ndarray) -> HeatMap:
        """Return the heat map of an array with at least one element. expected: of the same shape."""
        errors = relative_errors(np.atleast_1d(got), np.atleast_1d(expected))
        first = range(errors.ndim) if errors.ndim > 1 else [0]
        rows = min((math.prod(errors.shape[:axis]) for axis in first), key=lambda n: abs(math.log(n * n / errors.size)))
        matrix = errors.reshape(rows, -1)
        rows, columns = matrix.shape
        for axis, most in enumerate((_ROWS, _COLUMNS)):
            size = math.ceil(matrix.shape[axis] / most)
            matrix = np.maximum.reduceat(matrix, np.arange(0, matrix.shape[axis], size), axis=axis)
        return HeatMap(rows, columns, tuple(map(tuple, matrix.tolist())))

    def lines(self) -> Iterator[str]:
        """Yield the map as text: a letter for each cell, darker for a larger error."""
        down, across = (math.ceil(n / m) for n, m in ((self.rows, _ROWS), (self.columns, _COLUMNS)))
        largest = max(map(max, self.cells))
        yield f"{self.rows} rows down, {self.columns} columns across; a letter is the largest of {down} x {across}"
        yield f"@ is {largest:.3g}; the shades {_SHADES[1:]} span {_DECADES} decades, blank is none"
        for row in self.cells:
            yield f"|{''.join(_shade(error, largest) for error in row)}|"


def _shade(error: float, largest: float) -> str:
    if not error:
        return _SHADES[0]
    if error == largest:
        return _SHADES[-1]
    part = 0.0 if math.isinf(largest) else 1 + math.log10(error / largest) / _DECADES
    return _SHADES[max(1, math.ceil(part * (len(_SHADES) - 2)))]

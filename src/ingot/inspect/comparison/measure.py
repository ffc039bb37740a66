"""The difference of two arrays in numbers: errors, units in the last place, and where the largest error is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from ingot.ir.dtype import bf16, f16, f32, f64, from_numpy

# Binary digits of a float, and the exponent of the smallest one above 0.
_PLACES = {bf16: (8, -133), f16: (11, -24), f32: (24, -149), f64: (53, -1074)}
_MOST_PERMUTED = 5  # the largest rank whose orders of axes are tried


@dataclass(frozen=True, slots=True)
class Error:
    """The error of an array against the expected one.

    maximum, mean, median, quantile: of |got - expected| / max(1, |expected|) over all elements; quantile is that of
    99.9 %. A NaN or an infinity that the other side lacks counts as an infinite error. ulp: the largest distance in
    units in the last place of the array's dtype; None for integers. at: the index of the largest error; got, expected:
    the elements there. different: how many elements differ.
    """

    maximum: float
    mean: float
    median: float
    quantile: float
    ulp: float | None
    at: tuple[int, ...]
    got: float
    expected: float
    different: int
    size: int


def relative_errors(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return |got - expected| / max(1, |expected|) of each element, in float64.

    It is infinite where only one side is NaN, and where an infinity differs; 0 where both sides are NaN.
    """
    a, b = _wide(got), _wide(expected)
    with np.errstate(all="ignore"):
        errors = np.asarray(np.abs(a - b) / np.maximum(1, np.abs(b)))
    errors[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
    errors[~np.isfinite(errors)] = np.inf
    return errors


def measure(got: np.ndarray, expected: np.ndarray) -> Error:
    """Return the error of an array. expected: of the same shape, possibly of a wider dtype."""
    if got.size == 0:
        return Error(0, 0, 0, 0, 0, (), math.nan, math.nan, 0, 0)
    errors = relative_errors(got, expected)
    flat = errors.reshape(-1)
    worst = int(flat.argmax())
    at = tuple(int(i) for i in np.unravel_index(worst, got.shape))
    middle, high = (len(flat) - 1) // 2, math.ceil(0.999 * len(flat)) - 1
    ordered = np.partition(flat, [middle, high])
    return Error(
        float(flat[worst]), float(flat.mean()), float(ordered[middle]), float(ordered[high]), _ulp(got, expected),
        at, float(_wide(got[at])), float(_wide(expected[at])), int(np.count_nonzero(flat)), got.size,
    )  # fmt: skip


def _wide(array: Any) -> np.ndarray:
    """Return an array in float64; complex numbers do not occur."""
    return np.asarray(array).astype(np.float64)


def _ulp(got: np.ndarray, expected: np.ndarray) -> float | None:
    """Return the largest distance in units in the last place of the dtype of `got`; None for integers."""
    dtype = from_numpy(got.dtype)
    if dtype.kind != "f":
        return None
    a, b = _wide(got), _wide(expected)
    both = np.isfinite(a) & np.isfinite(b)
    if not both.all() and not np.array_equal(a[~both], b[~both], equal_nan=True):
        return math.inf
    if not both.any():
        return 0.0
    digits, smallest = _PLACES[dtype]
    _, exponent = np.frexp(np.maximum(np.abs(a[both]), np.abs(b[both])))
    unit = np.ldexp(1.0, np.maximum(exponent - digits, smallest))
    return float((np.abs(a[both] - b[both]) / unit).max())


def permuted_axes(got: np.ndarray, expected: np.ndarray, tolerance: float) -> tuple[int, ...] | None:
    """Return an order of axes in which the expected elements are those of the array; None if there is none.

    It tells an array in another layout from one of wrong numbers.
    """
    if not 2 <= got.ndim <= _MOST_PERMUTED or got.size < 2:
        return None
    for axes in permutations(range(got.ndim)):
        if axes == tuple(range(got.ndim)):
            continue
        transposed = expected.transpose(axes).reshape(got.shape)
        if relative_errors(got, transposed).max() <= tolerance:
            return axes
    return None


def cosine(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the cosine of the angle between two arrays as vectors; 1 if both are zero.

    Elements that are equal and infinite, or both NaN, are left out.
    """
    a, b = _comparable(got, expected)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else float(not a.any() and not b.any())


def divergence(got: np.ndarray, expected: np.ndarray) -> float | None:
    """Return the mean Kullback-Leibler divergence, in nats, of the softmax over the last axis of two arrays.

    None where rows have fewer than two elements.
    """
    if expected.ndim == 0 or expected.shape[-1] < 2 or expected.size == 0:
        return None
    p, q = _log_softmax(_wide(expected)), _log_softmax(_wide(got))
    with np.errstate(all="ignore"):
        terms = np.where(np.isneginf(p), 0, np.exp(p) * (p - q))  # no weight on what cannot occur
    return float(np.maximum(terms.sum(-1), 0).mean())


def _log_softmax(array: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        shifted = array - array.max(-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def kurtosis(array: np.ndarray) -> float | None:
    """Return the fourth moment of the finite elements around their mean, relative to the squared variance.

    1 for two values, 1.8 for even spread, 3 for a normal distribution; large where few elements are much larger than
    the others, which few bits cannot hold. None if all elements are equal.
    """
    wide = _wide(array)
    wide = wide[np.isfinite(wide)]
    squares = (wide - wide.mean()) ** 2 if wide.size else wide
    variance = float(squares.mean()) if wide.size else 0.0
    return float((squares**2).mean()) / variance**2 if variance > 0 else None


def noise(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the norm of the error relative to the norm of the expected array; infinity if an element is not finite.

    Elements that are equal and infinite, or both NaN, are left out.
    """
    a, b = _comparable(got, expected)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    size, error = np.linalg.norm(b), np.linalg.norm(a - b)
    return float(error / size) if size else float(error)


def _comparable(got: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of two arrays, without those that are equal and infinite, or both NaN."""
    a, b = _wide(got).reshape(-1), _wide(expected).reshape(-1)
    is_shared = (np.isinf(a) & (a == b)) | (np.isnan(a) & np.isnan(b))
    return a[~is_shared], b[~is_shared]

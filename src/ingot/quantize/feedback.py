"""Codes of a matrix that are chosen column by column, each making up for the errors of those before it.

Frantar et al., "GPTQ: accurate post-training quantization for generative pre-trained transformers", 2022
(arXiv:2210.17323), with scales fixed beforehand and the columns that count most coded first.
"""

from __future__ import annotations

import numpy as np

from ingot.quantize.weights import Coding, Quantized, fit

_DAMPING = 0.01  # of the mean moment, added to each column's own
_BLOCK = 128  # columns whose errors are passed on together


def quantize_with_feedback(matrix: np.ndarray, coding: Coding, moments: np.ndarray) -> Quantized:
    """The codes of a matrix f32[n, k] that is multiplied with rows whose second moments are f64[k, k]."""
    n, k = matrix.shape
    own = np.diag(moments).copy()
    own += _DAMPING * own.mean() if own.any() else 1.0
    scales, zeros = fit(matrix, coding, (own / own.mean()).astype(np.float32))
    order = np.argsort(-own, kind="stable")
    damped = moments.copy()
    np.fill_diagonal(damped, own)
    # Row i of the factor says what an error of column i does to those that are coded later.
    inverse = np.linalg.inv(damped[np.ix_(order, order)])
    factor = np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
    left = matrix.T[order]
    codes = np.empty((k, n), np.uint8 if coding.limits[0] == 0 else np.int8)
    group_of = order // (coding.group or k)
    wide = np.ascontiguousarray(scales.T.astype(np.float32))
    inverses = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
    points = np.zeros_like(wide) if zeros is None else np.ascontiguousarray(zeros.T.astype(np.float32))
    for begin in range(0, k, _BLOCK):
        end = min(begin + _BLOCK, k)
        errors = np.empty((end - begin, n), np.float32)
        for place in range(begin, end):
            group = group_of[place]
            steps = np.clip(np.rint(left[place] * inverses[group]) + points[group], *coding.limits)
            codes[order[place]] = steps
            error = (left[place] - (steps - points[group]) * wide[group]) / factor[place, place]
            left[place:end] -= factor[place, place:end, None] * error
            errors[place - begin] = error
        left[end:] -= factor[begin:end, end:].T @ errors
    return Quantized(np.ascontiguousarray(codes.T), scales, zeros)

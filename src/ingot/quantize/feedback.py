"""GPTQ: quantize a matrix column by column; each column compensates the errors of the columns before it.

Frantar et al., "GPTQ: accurate post-training quantization for generative pre-trained transformers", 2022
(arXiv:2210.17323), with scales fixed beforehand, and the columns with the largest moments first.
"""

from __future__ import annotations

import numpy as np

from ingot.quantize.weights import Coding, Quantized, fit

_DAMPING = 0.01  # share of the mean moment that is added to each column's own
_BLOCK = 128  # columns whose errors are propagated together


def quantize_with_feedback(matrix: np.ndarray, coding: Coding, moments: np.ndarray) -> Quantized:
    """Quantize a matrix f32[n, k] whose inputs have the second moments f64[k, k]."""
    n, k = matrix.shape
    own = np.diag(moments).copy()
    own += _DAMPING * own.mean() if own.any() else 1.0
    scales, zero_points = fit(matrix, coding, (own / own.mean()).astype(np.float32))
    order = np.argsort(-own, kind="stable")
    damped = moments.copy()
    np.fill_diagonal(damped, own)
    # Row i of the factor is the effect of an error of column i on the columns after it.
    inverse = np.linalg.inv(damped[np.ix_(order, order)])
    factor = np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
    left = matrix.T[order]
    quantized = np.empty((k, n), np.uint8 if coding.limits[0] == 0 else np.int8)
    group_of = order // (coding.group or k)
    wide = np.ascontiguousarray(scales.T.astype(np.float32))
    inverses = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
    points = np.zeros_like(wide) if zero_points is None else np.ascontiguousarray(zero_points.T.astype(np.float32))
    for begin in range(0, k, _BLOCK):
        end = min(begin + _BLOCK, k)
        errors = np.empty((end - begin, n), np.float32)
        for i in range(begin, end):
            group = group_of[i]
            rounded = np.clip(np.rint(left[i] * inverses[group]) + points[group], *coding.limits)
            quantized[order[i]] = rounded
            error = (left[i] - (rounded - points[group]) * wide[group]) / factor[i, i]
            left[i:end] -= factor[i, i:end, None] * error
            errors[i - begin] = error
        left[end:] -= factor[begin:end, end:].T @ errors
    return Quantized(np.ascontiguousarray(quantized.T), scales, zero_points)

"""Codes of a matrix that are chosen column by column, each making up for the errors of those before it.

Frantar et al., "GPTQ: accurate post-training quantization for generative pre-trained transformers", 2022
(arXiv:2210.17323), with scales fixed beforehand and the columns that count most coded first.
"""

from __future__ import annotations

import numpy as np

from ingot.quantize.codes import Coded, Coding, assigned, fit

_DAMPING = 0.01  # of the mean moment, added to each column's own
_BLOCK = 128  # columns whose errors are passed on together


def code_with_feedback(matrix: np.ndarray, coding: Coding, moments: np.ndarray) -> Coded:
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
    left = matrix[:, order]
    codes = np.empty((n, k), np.uint8 if coding.limits[0] == 0 else np.int8)
    group_of = order // (coding.group or k)
    wide = scales.astype(np.float32)
    points = np.zeros_like(wide) if zeros is None else zeros.astype(np.float32)
    for begin in range(0, k, _BLOCK):
        end = min(begin + _BLOCK, k)
        block, errors = left[:, begin:end], np.empty((n, end - begin), np.float32)
        for column in range(end - begin):
            place = begin + column
            group = slice(group_of[place], group_of[place] + 1)
            given = block[:, column : column + 1]
            chosen = assigned(given, scales[:, group], None if zeros is None else zeros[:, group], coding)
            decoded = (chosen.astype(np.float32) - points[:, group]) * wide[:, group]
            errors[:, column] = (given - decoded)[:, 0] / factor[place, place]
            block[:, column:] -= errors[:, column : column + 1] * factor[place, place:end]
            codes[:, order[place]] = chosen[:, 0]
        left[:, end:] -= errors @ factor[begin:end, end:]
    return Coded(codes, scales, zeros)

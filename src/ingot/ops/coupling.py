"""Class probabilities from pairwise probabilities."""

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.graph import TensorType
from ingot.ops.define import expect_kind, op, sample


def _infer(pairs):
    expect_kind("pairwise_coupling", pairs, "f")
    if pairs.rank != 3 or pairs.shape[1] != pairs.shape[2]:
        raise ShapeError(f"pairwise_coupling: bad operand, got {pairs}, expected [rows, classes, classes]")
    return TensorType(pairs.dtype, pairs.shape[:2])


@op(infer=_infer, domain=(0.1, 0.9), samples=[sample("r[5,2,2]"), sample("r[4,1,1]"), sample("r[0,3,3]")])
def pairwise_coupling(pairs):
    """Probabilities [rows, classes] that agree best with those of i against j, pairs[:, i, j].

    Iterates until the largest error is below 0.005 / classes, or 100 times, as in LIBSVM. Wu, Lin and Weng,
    "Probability estimates for multi-class classification by pairwise coupling", 2004, algorithm 2.
    """
    count = pairs.shape[1]
    wide = pairs.astype(np.float64)
    lost = np.swapaxes(wide, 1, 2)
    q = -lost * wide
    squares = np.where(np.eye(count, dtype=bool), 0, lost**2).sum(2)
    q[:, np.arange(count), np.arange(count)] = squares
    p = np.full(wide.shape[:2], 1 / max(count, 1))
    active = np.arange(len(p))
    for _ in range(max(100, count)):
        product = np.einsum("rij,rj->ri", q[active], p[active])
        total = (p[active] * product).sum(1)
        going = np.abs(product - total[:, None]).max(1, initial=0) >= 0.005 / max(count, 1)
        active, product, total = active[going], product[going], total[going]
        if not active.size:
            break
        p[active] = _swept(p[active], q[active], product, total)
    return p.astype(pairs.dtype)


def _swept(p, q, product, total):
    """Optimize one probability after the other, and rescale all to a sum of 1 after each."""
    for i in range(p.shape[1]):
        step = (total - product[:, i]) / q[:, i, i]
        p[:, i] += step
        scale = 1 + step
        total = (total + step * (step * q[:, i, i] + 2 * product[:, i])) / scale**2
        product = (product + step[:, None] * q[:, i]) / scale[:, None]
        p /= scale[:, None]
    return p

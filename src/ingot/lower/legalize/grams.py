"""Legalize counts of n-grams as comparisons of all windows with the complete n-gram pool at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.ir.dtype import DType, i64
from ingot.lower.legalize.table import legalizes
from ingot.ops.define import Expansion

_MAX_COMPARED = 1 << 22  # elements at once; beyond that, the reference's dictionary is faster


@legalizes("tfidf")
def _tfidf(
    g: Expansion,
    x: str,
    *,
    integers: Sequence[int],
    strings: Sequence[str],
    starts: Sequence[int],
    columns: Sequence[int],
    weights: Sequence[float],
    least: int,
    most: int,
    skips: int,
    mode: str,
    dtype: DType,
) -> str | None:
    """Legalize tfidf of numbers if the pool is small and its n-grams are distinct."""
    shape = g.type(x).dims
    rows, length = (shape if len(shape) == 2 else (1, *shape))[:2]
    pools = [
        np.array(integers[start:end], np.int64).reshape(-1, n)
        for n, (start, end) in enumerate(zip(starts, [*starts[1:], len(integers)], strict=True), 1)
    ]
    is_small = rows * length * max(map(len, pools)) <= _MAX_COMPARED
    if strings or not is_small or any(len(np.unique(pool, axis=0)) < len(pool) for pool in pools):
        return None
    elements = g.cast(g.reshape(x, shape=(rows, length)), dtype=i64)
    counted = [g.constant(np.zeros((rows, 1)), dtype)]
    for n, pool in enumerate(pools, 1):
        steps = range(1, (skips if n > 1 else 0) + 2) if least <= n <= most else ()
        counts = g.constant(np.zeros((rows, len(pool))), dtype)
        for step in (step for step in steps if (n - 1) * step < length):
            counts = g.add(counts, _counts(g, elements, pool, step, dtype))
        counted.append(counts)
    values = g.concat(*counted, axis=1)
    scale = g.constant(np.array([1.0, *(weights or [1.0] * len(columns))]), dtype)
    if mode != "tf":
        values = g.mul(g.cast(g.greater(values, 0.0), dtype=dtype) if mode == "idf" else values, scale)
    return g.reshape(_scattered(g, values, columns), shape=(*shape[:-1], max(columns) + 1))


def _counts(g: Expansion, elements: str, pool: np.ndarray, step: int, dtype: DType) -> str:
    """Count each n-gram of the pool [count, n] in each row, its elements `step` positions apart: [rows, count]."""
    rows, length = g.type(elements).dims
    n = pool.shape[1]
    width = length - (n - 1) * step
    is_there = None
    for k in range(n):
        window = g.slice(elements, starts=(0, k * step), stops=(rows, k * step + width), steps=(1, 1))
        same = g.equal(g.reshape(window, shape=(rows, 1, width)), g.constant(pool[:, k : k + 1], i64))
        is_there = same if is_there is None else g.logical_and(is_there, same)
    return g.reduce_sum(g.cast(is_there, dtype=dtype), axes=(2,), keepdims=False)


def _scattered(g: Expansion, values: str, positions: Sequence[int]) -> str:
    """Add up columns [rows, 1 + n-grams] at their output positions, in order; the first column is zeros."""
    columns: list[list[int]] = [[] for _ in range(max(positions) + 1)]
    for column, position in enumerate(positions, 1):
        columns[position].append(column)
    layers = [[each[i] if i < len(each) else 0 for each in columns] for i in range(max(map(len, columns)))]
    total, *others = (g.gather(values, g.constant(np.array(layer), i64), axis=1) for layer in layers)
    for other in others:
        total = g.add(total, other)
    return total

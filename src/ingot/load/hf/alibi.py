"""Attention with linear biases (ALiBi): scores fall with the distance of a key, faster in some heads than in others.

Press et al., "Train Short, Test Long", 2022 (arXiv:2108.12409).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError
from ingot.ir.dtype import bf16
from ingot.load.hf.document import Item
from ingot.load.hf.expression import Expression

MAX_BIASES = 1 << 26  # elements of a table of biases by position


@dataclass(frozen=True, slots=True)
class Alibi:
    """The biases of scores: the slope of the head times the position of the key, times `factor`.

    Slopes are powers of 2 with exponents of -most / heads, twice that, and so on to -most; of a number of heads that is
    no power of 2, the last ones are between these. rounded: slopes, positions and their products are rounded to bf16.
    """

    where: str
    most: Expression
    when: Expression  # without biases where it is false
    factor: Expression
    rounded: Expression

    def table(self, names: Mapping[str, Any], columns: int, *, from_key: bool) -> np.ndarray | None:
        """Return the biases of keys, f32 [heads, columns], or None where there are none.

        from_key: column j is that of position j; else the last column is that of the row's own position. Biases that
        differ by a constant are the same to a softmax, but small ones have smaller errors.

        Raises LoadError, and LimitError for too many biases.
        """
        if not self.when.evaluate(names):
            return None
        most = self.most.number(names)
        if not 0 < most <= 64:
            raise LoadError(f"{self.where}: most: out of range, got {most}, expected above 0, at most 64")
        if names["heads"] * columns > MAX_BIASES:
            got = f"{names['heads']} heads with {columns} positions"
            raise LimitError(f"{self.where}: too many biases, got {got}, expected a product of at most {MAX_BIASES}")
        slopes = _slopes(names["heads"], most)[:, None]
        positions = np.arange(columns, dtype=np.float64) - (0 if from_key else columns - 1)
        if self.rounded.evaluate(names):
            slopes, positions = _to_bf16(slopes), _to_bf16(positions)
            return (_to_bf16(slopes * positions) * self.factor.number(names)).astype(np.float32)
        return (slopes * positions * self.factor.number(names)).astype(np.float32)


def read_alibi(item: Item) -> Alibi:
    """Return the biases that an item describes. Raises LoadError."""
    found = item.fields(("most",), ("when", "factor", "rounded"))

    def option(key: str, default: str) -> Expression:
        return found[key].expression() if key in found else Expression(default, item.where)

    return Alibi(
        item.where,
        found["most"].expression(),
        option("when", "true"),
        option("factor", "1"),
        option("rounded", "false"),
    )


def _slopes(heads: int, most: float) -> np.ndarray:
    """Return the slope of each head, f64 [heads]."""
    power = 1 << (heads.bit_length() - 1)  # the largest power of 2 that is not more than heads
    steps = np.concatenate([np.arange(1, power + 1), np.arange(0.5, power)[: heads - power]])
    return 2.0 ** (-most / power * steps)


def _to_bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(bf16.numpy).astype(np.float64)

"""Slices of weight expressions are those of the whole matrix, and are evaluated without it."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir.dtype import bf16, f32, from_numpy, i32
from ingot.ir.graph import TensorType
from ingot.lower.weight_expr import WeightExpr
from ingot.ops.blocks import BLOCKS
from ingot.run.slices import Slices, is_divisible

ROWS, BLOCKS_OF_ROW = 23, 3


def weight(name: str, data: np.ndarray) -> WeightExpr:
    return WeightExpr(name, (TensorType(from_numpy(data.dtype), data.shape),), data=data, is_weight=True)


def blocks(type: str) -> WeightExpr:
    random = np.random.default_rng(2)
    return weight("w", random.integers(0, 60, (ROWS, BLOCKS_OF_ROW * BLOCKS[type].nbytes), np.uint8))


def scaled(axis: int, block: int, *shape: int) -> WeightExpr:
    """Codes by scales of a shape."""
    random = np.random.default_rng(3)
    codes = weight("c", random.integers(-128, 128, (ROWS, 12)).astype(np.int8))
    scales = weight("s", random.random(shape, np.float32))
    return codes.derive("dequantize", scales, axis=axis, block=block, dtype=f32)


def decoded(type: str) -> WeightExpr:
    return blocks(type).derive("decode_blocks", type=type, dtype=f32)


def moved(type: str) -> WeightExpr:
    """All rows but the first."""
    rows = blocks(type)
    return rows.derive("slice", starts=(1, 0), stops=rows.dims, steps=(1, 1))


def ordered(axis: int) -> WeightExpr:
    """Codes along an axis in another order."""
    count = (ROWS, 12)[axis]
    order = np.random.default_rng(4).permutation(count).astype(np.int32)
    codes = weight("c", np.arange(ROWS * 12, dtype=np.int64).astype(np.int8).reshape(ROWS, 12))
    places = WeightExpr("p", (TensorType(i32, (count,)),), data=order)
    return codes.derive("gather", places, axis=axis).derive("cast", dtype=f32)


# The matrix, and whether it is made row by row.
CASES = {
    **{f"{type} decoded": (decoded(type), True) for type in BLOCKS},
    "rounded": (scaled(1, 4, ROWS, 3).derive("cast", dtype=bf16).derive("cast", dtype=f32), True),
    "a scale a row": (scaled(0, 0, ROWS), True),
    "a scale for all": (scaled(0, 0), True),
    "a scale a column": (scaled(1, 0, 12), False),
    "scales of blocks of a row": (scaled(1, 4, ROWS, 3), True),
    "columns in another order": (ordered(1), True),
    "rows in another order": (ordered(0), True),
    "scales of blocks of a column": (scaled(0, 4, 6, 12), False),
    "rows moved": (moved("q6_k").derive("decode_blocks", type="q6_k", dtype=f32), False),
}


@pytest.mark.parametrize("name", CASES)
def test_slices_are_those_of_the_whole(name: str) -> None:
    value, by_rows = CASES[name]
    whole = value.evaluate()
    for matrix, axis in ((value, 0), (value.derive("permute", axes=(1, 0)), 1)):
        assert is_divisible(matrix, axis) == by_rows
        for begin, end in ((0, 5), (5, 6), (20, len(whole)), (3, 3)):
            rows = Slices().take(matrix, begin, end, axis)
            assert rows.dtype == whole.dtype
            np.testing.assert_array_equal(rows if axis == 0 else rows.T, whole[begin:end])


def test_columns_of_a_cast_are_those_of_its_source() -> None:
    value = weight("w", np.arange(60, dtype=np.int8).reshape(5, 12)).derive("cast", dtype=f32)
    assert is_divisible(value, 1)
    np.testing.assert_array_equal(Slices().take(value, 2, 7, 1), value.evaluate()[:, 2:7])


def test_only_the_rows_that_are_asked_for_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    value = decoded("q5_0").derive("abs").derive("cast", dtype=bf16)
    evaluated = _count_rows(monkeypatch)
    Slices().take(value, 4, 9, 0)
    assert evaluated == [5, 5, 5]


def test_a_matrix_that_cannot_be_divided_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The halves of a gated matrix are slices of one expression."""
    value, slices = CASES["rows moved"][0], Slices()
    evaluated = _count_rows(monkeypatch)
    slices.take(value, 0, 4, 0)
    assert len(evaluated) == 2  # the slice and the decoding
    slices.take(value, 8, 12, 0)
    assert len(evaluated) == 2


def _count_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of the first operand of each op that is evaluated from now on."""
    evaluated: list[int] = []
    apply = WeightExpr.apply

    def counted(self: WeightExpr, *operands: np.ndarray) -> np.ndarray:
        evaluated.append(len(operands[0]))
        return apply(self, *operands)

    monkeypatch.setattr(WeightExpr, "apply", counted)
    return evaluated

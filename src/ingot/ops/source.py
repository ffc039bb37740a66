"""Ops without operands."""

from typing import Annotated, Any

import numpy as np

from ingot.dim import Known
from ingot.dtype import DType, f32, i64
from ingot.errors import ShapeError
from ingot.ir import TensorType
from ingot.ops.define import Size, Sizes, expect_numbers, op, sample

Number = Annotated[Any, Known | float]


def _infer_iota(*, length, start, step, dtype):
    if (isinstance(length, int) and length < 0) or dtype.kind == "b":
        raise ShapeError(f"iota: bad length or dtype, got {length} of {dtype}, expected 0 or more numbers")
    expect_numbers("iota", dtype, start, step)
    return TensorType(dtype, (length,))


@op(
    infer=_infer_iota,
    samples=[
        sample("", length=7, start=0, step=1, dtype=i64),
        sample("", length=5, start=-3, step=2, dtype=i64),
        sample("", length=33, start=0.5, step=-0.25, dtype=f32),
        sample("", length=0, start=0, step=1, dtype=i64),
        sample("", length=1, start=9, step=1, dtype=f32),
    ],
)
def iota(*, length: Size, start: Number, step: Number, dtype: DType):
    """start + step * i for i in 0..length-1; floats are computed in float64 and rounded once."""
    positions = np.arange(length, dtype=np.float64 if dtype.kind == "f" else dtype.numpy)
    return (positions * step + start).astype(dtype.numpy)


@op(
    infer=lambda *, values: TensorType(i64, (len(values),)),
    samples=[sample("", values=(2, 3, 5)), sample("", values=()), sample("", values=(1,))],
)
def dims(*, values: Sizes):
    """The given dims as data: i64[n]."""
    return np.array(values, np.int64)

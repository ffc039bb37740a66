"""A pen that computes what others write down, so that a formula over sizes is written once, known sizes or not."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.errors import LimitError
from ingot.ir.dim import Expr, Known
from ingot.ir.dtype import DType, from_numpy
from ingot.ir.graph import OPS, REQUIRED, Graph, TensorType
from ingot.ops.define import Builder, compute

MAX_TABLE = 2**24  # elements of what a rule computes

Value = Any  # a value's name where a pen writes, an array where it computes


class Eager(Builder):
    """Computes ops by their references, at once: a result is an array in place of a name. It knows no symbols."""

    def __init__(self) -> None:
        super().__init__(Graph("eager"))

    def type(self, x: Value) -> TensorType:
        """The type of an array."""
        return TensorType(from_numpy(x.dtype), x.shape)

    def scalar(self, value: Known | float, dtype: DType) -> Value:
        """An array of rank 0."""
        assert not isinstance(value, Expr), value
        return np.array(value).astype(dtype.numpy)

    def _add(self, op: str, *operands: Value | float | None, **attributes: Any) -> Value:
        """Raises LimitError for a result that is too large, before it is made."""
        dtypes = [self.type(o).dtype for o in operands if isinstance(o, np.ndarray)]
        arrays = [self.scalar(o, dtypes[-1]) if isinstance(o, (int, float)) else o for o in operands]
        record = OPS[op]
        attributes = {k: v for k, v in record.attributes.items() if v is not REQUIRED} | attributes
        type = record.infer(*(None if a is None else self.type(a) for a in arrays), **attributes)
        if type.extent > MAX_TABLE:
            raise LimitError(f"{op}: table too large, got {type}, expected at most {MAX_TABLE} elements")
        (result,) = compute(record, arrays, attributes)
        return result


def is_known(*values: Any) -> bool:
    """Whether all are numbers and arrays."""
    return not any(isinstance(value, (str, Expr)) for value in values)

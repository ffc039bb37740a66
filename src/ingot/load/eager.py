"""A builder that evaluates ops at once, so that one formula over sizes serves both known and symbolic sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.errors import LimitError
from ingot.ir.dim import Expr, Known
from ingot.ir.dtype import DType, from_numpy
from ingot.ir.graph import OPS, REQUIRED, Graph, TensorType
from ingot.ops.define import Builder, compute

MAX_TABLE = 2**24  # elements of a result that a rule evaluates

Value = Any  # the name of a value for a graph builder, an array for `Eager`


class Eager(Builder):
    """Evaluate ops with their references, immediately: a result is an array instead of a name. Symbols are not
    supported.
    """

    def __init__(self) -> None:
        super().__init__(Graph("eager"))

    def type(self, x: Value) -> TensorType:
        """Return the type of an array."""
        return TensorType(from_numpy(x.dtype), x.shape)

    def scalar(self, value: Known | float, dtype: DType) -> Value:
        """Return an array of rank 0."""
        assert not isinstance(value, Expr), value
        return np.array(value).astype(dtype.numpy)

    def _add(self, op: str, *operands: Value | float | None, **attributes: Any) -> Value:
        """Evaluate an op. Raises LimitError for a result that is too large, before it is computed."""
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
    """Return whether all values are numbers or arrays."""
    return not any(isinstance(value, (str, Expr)) for value in values)

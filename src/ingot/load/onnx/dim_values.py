"""Evaluate plain ops on small arrays that hold dims: shapes of symbolic inputs, and arithmetic on them.

Arrays of numbers alone are evaluated by the references of the ops, in their own dtype. If an element is a dim
expression, the tables of this module define the result. Expressions are exact, not modulo 2**64: dims that a run binds,
and values computed from them, are assumed to fit the model's dtype. If a number or coefficient does not fit, the result
is undecided: the node stays in the graph and is computed like any other data.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ingot.errors import LimitError
from ingot.ir import dim
from ingot.ir.dim import Expr
from ingot.ir.dtype import DType, boolean, f32, f64, i32, i64
from ingot.ir.graph import OPS
from ingot.load.onnx.shapes import is_negative, sign

MAX_EXPRESSION_CHARACTERS = 512  # of a dim over symbols

Array = np.ndarray  # of Python ints, bools and Exprs
Element = Any  # int, bool, float or Expr; None where it is undecided at load time

# These references only move elements, so they accept expressions, too.
_MOVES = frozenset(("concat", "expand", "gather", "permute", "reshape", "slice"))


def elements(data: np.ndarray) -> Array:
    """Convert a numpy array to an array of Python numbers."""
    array = np.empty(data.shape, object)
    array.ravel()[:] = data.ravel().tolist()
    return array


def is_symbolic(value: Any) -> bool:
    """Return True for a dim expression, and for an array or attribute that contains one."""
    if isinstance(value, np.ndarray):
        return value.dtype == object and any(isinstance(v, Expr) for v in value.flat)
    return any(map(is_symbolic, value)) if isinstance(value, tuple) else isinstance(value, Expr)


def evaluate(op: str, attributes: Mapping[str, Any], operands: list[Array], dtype: DType) -> Array | None:
    """Return the only result of a plain op, of the given dtype; None when an element is undecided at load time. Raises
    LimitError for an expression that has become too long, InputError for an index out of range.
    """
    if dtype in _FLOATS or any(isinstance(v, float) for operand in operands for v in operand.flat):
        result = _apply_to_floats(op, attributes, operands)
    else:
        result = _apply(op, attributes, operands)
    if result is None or dtype not in _RANGES or not all(_fits(v, dtype) for v in result.flat):
        return None
    return result


_RANGES = {i64: (-(2**63), 2**63 - 1), i32: (-(2**31), 2**31 - 1), boolean: (0, 1), f32: (-math.inf, math.inf)}
_RANGES |= {f64: _RANGES[f32]}
_FLOATS = (f32, f64)


def _fits(value: Element, dtype: DType) -> bool:
    low, high = _RANGES[dtype]
    if isinstance(value, Expr):
        if len(str(value)) > MAX_EXPRESSION_CHARACTERS:
            raise LimitError(f"a dim expression is too long, expected at most {MAX_EXPRESSION_CHARACTERS} characters")
        return dtype is not boolean and all(low <= coefficient <= high for _, coefficient in value.terms)
    return value is not None and low <= value <= high


def _apply(op: str, attributes: Mapping[str, Any], operands: list[Array]) -> Array | None:
    if op == "dims":
        return _filled((len(attributes["values"]),), list(attributes["values"]))
    if any(is_symbolic(value) for value in attributes.values()):
        return None
    if op in _MOVES:
        if op == "gather":
            if is_symbolic(operands[1]):
                return None
            operands = [operands[0], operands[1].astype(np.int64)]
        return np.asarray(OPS[op].function(*operands, **attributes), object)
    if op == "cast":
        to_bool = attributes["dtype"] is boolean
        return _mapped(lambda v: _not(_equal(v, 0)) if to_bool else v if isinstance(v, Expr) else int(v), operands)
    if op in _ELEMENTWISE:
        return _mapped(_ELEMENTWISE[op], operands)
    if op in _REDUCTIONS:
        return _reduced(_REDUCTIONS[op], operands[0], attributes["axes"], attributes["keepdims"])
    return None


def _apply_to_floats(op: str, attributes: Mapping[str, Any], operands: list[Array]) -> Array | None:
    """Treat whole numbers as integers; other elements can only be moved."""
    integral = [_mapped(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v, [x]) for x in operands]
    if op in _MOVES or (op == "cast" and not any(isinstance(v, float) for v in integral[0].flat)):
        return _apply(op, attributes, integral)
    if op not in _OF_WHOLE:
        return None
    return _mapped(lambda *values: None if float in map(type, values) else _OF_WHOLE[op](*values), integral)


def _filled(shape: tuple[int, ...], values: list[Element]) -> Array:
    array = np.empty(shape, object)
    array.ravel()[:] = values
    return array


def _mapped(function: Callable[..., Element], operands: list[Array]) -> Array:
    broadcast = np.broadcast(*operands)
    return _filled(broadcast.shape, [function(*values) for values in broadcast])


def _reduced(function: Callable[..., Element], x: Array, axes: tuple[int, ...], keepdims: bool) -> Array | None:
    remaining = [axis for axis in range(x.ndim) if axis not in axes]
    if 0 in x.shape:
        return None
    rows = np.transpose(x, (*remaining, *axes)).reshape(*(x.shape[axis] for axis in remaining), -1)
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape) if keepdims or axis not in axes)
    return _filled(shape, [functools.reduce(function, rows[index]) for index in np.ndindex(rows.shape[:-1])])


def _truncated(a: int | Expr, b: int | Expr) -> int | Expr | None:
    if b == 0:
        return None
    a, b = dim.cancelled(a, b)  # dividing both by a common dim is safe: if that dim is 0, both are 0
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if sign(b) != 1 or is_negative(a + b - 1) is not False:
        return None
    floored = dim.floordiv(a, b)
    return floored if is_negative(a) is False else dim.maximum(floored, 0)  # from -b + 1 to -1 it is -1


def _floored(a: int | Expr, b: int | Expr) -> int | Expr | None:
    return dim.floordiv(a, b) if sign(b) == 1 else None


def _quotient(a: int | Expr, b: int | Expr) -> int | Expr | None:
    """A multiple of a dim divided by the dim is a number, though a dim of 0 at run time would give NaN."""
    if isinstance(a, Expr) and isinstance(b, Expr):
        times = a.terms[0][1] // b.terms[0][1]
        return times if b * times == a else None
    floored = _floored(a, b)
    return floored if floored is not None and floored * b == a else None


def _remainder(a: int | Expr, b: int | Expr) -> int | Expr | None:
    return a - dim.floordiv(a, b) * b if sign(b) == 1 else None


def _absolute(a: int | Expr) -> int | Expr | None:
    return next((each for each in (a, a * -1) if is_negative(each) is False), None)


def _equal(a: Element, b: Element) -> bool | None:
    if a == b:
        return True
    return False if sign(a - b) in (-1, 1) else None


def _less(a: Element, b: Element) -> bool | None:
    return is_negative(a - b)


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a


_ELEMENTWISE: dict[str, Callable[..., Element]] = {
    "abs": _absolute,
    "add": operator.add,
    "div": _truncated,
    "equal": _equal,
    "floor_div": _floored,
    "greater": lambda a, b: _less(b, a),
    "greater_equal": lambda a, b: _not(_less(a, b)),
    "less": _less,
    "less_equal": lambda a, b: _not(_less(b, a)),
    "maximum": dim.maximum,
    "minimum": dim.minimum,
    "mod": _remainder,
    "mul": operator.mul,
    "neg": lambda a: a * -1,
    "not_equal": lambda a, b: _not(_equal(a, b)),
    "sub": operator.sub,
    "where": lambda condition, a, b: a if condition else b,
}
# For floats that are whole numbers; None where the result is not a whole number.
_OF_WHOLE: dict[str, Callable[..., Element]] = {
    **{op: _ELEMENTWISE[op] for op in ("add", "maximum", "minimum", "mul", "neg", "sub")},
    **{op: lambda a: a for op in ("ceil", "floor", "round")},
    "div": _quotient,
}
_REDUCTIONS: dict[str, Callable[..., Element]] = {
    "reduce_max": dim.maximum,
    "reduce_min": dim.minimum,
    "reduce_prod": operator.mul,
    "reduce_sum": operator.add,
}

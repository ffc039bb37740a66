"""Integers that are known at load: shapes, axes, sizes, and arithmetic on them, with symbols where dims are symbolic.

`VALUES` says how an ONNX op type acts on such arrays. A function there gets the call and its operands as numpy arrays
of Python ints, bools and dim expressions, and returns such an array, or None where the result is not decided at load;
the node then becomes ordinary ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot import dim
from ingot.dim import Expr
from ingot.dtype import DType
from ingot.errors import LimitError

if TYPE_CHECKING:
    from ingot.load.onnx.call import Call

MAX_KNOWN_ELEMENTS = 64
MAX_INTEGER = 2**63
MAX_EXPRESSION_CHARACTERS = 512

Array = np.ndarray
ValueFunction = Callable[..., Array | None]
VALUES: dict[str, ValueFunction] = {}


@dataclass(slots=True, eq=False)
class Known:
    """An integer or bool tensor whose elements are known; `value` names it in the graph once it was needed there."""

    array: Array  # of ints, bools and Exprs
    dtype: DType
    name: str
    value: str | None = None

    @property
    def is_static(self) -> bool:
        """True when no element is symbolic."""
        return not any(isinstance(v, Expr) for v in self.array.flat)


def known_array(data: np.ndarray) -> Array:
    """A numpy integer or bool array as an array of Python ints or bools."""
    array = np.empty(data.shape, object)
    array.ravel()[:] = data.ravel().tolist()
    return array


def evaluate(call: Call) -> Known | None:
    """The node's only output as known integers, when all its operands are known."""
    function = VALUES.get(call.op) if call.domain == "" else None
    if function is None or len(call.outputs) != 1:
        return None
    arrays = [call.known(i) for i in range(len(call))]
    if any(a is None and call.has(i) for i, a in enumerate(arrays)):
        return None
    result = function(call, *arrays)
    if result is None or any(v is None for v in result.flat):
        return None
    _check_bounded(result)
    return Known(result, _result_dtype(call), call.outputs[0])


def _result_dtype(call: Call) -> DType:
    match call.op:
        case "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "Not" | "And" | "Or":
            return boolean
        case "Cast":
            return call.dtype_attribute("to")
        case "ConstantOfShape":
            return call.tensor("value").dtype
        case "Where":
            return call.type(1).dtype
    return call.type(0).dtype


def _check_bounded(array: Array) -> None:
    for value in array.flat:
        if isinstance(value, Expr):
            if len(str(value)) > MAX_EXPRESSION_CHARACTERS:
                raise LimitError("a dim expression is too long")
        elif not -MAX_INTEGER <= value < MAX_INTEGER:
            raise LimitError(f"an integer leaves 64 bits, got {value if abs(value) < 2**128 else 'a huge one'}")


def sign(value: int | Expr) -> int | None:
    """-1, 0 or 1 when it is the same for every non-negative value of the symbols, else None."""
    if isinstance(value, int):
        return (value > 0) - (value < 0)
    if not _is_polynomial_in_dims(value):
        return None
    constants = [c for monomial, c in value.terms if not monomial]
    for direction in (1, -1):
        if all(c * direction > 0 for _, c in value.terms) and constants:
            return direction
    return None


def is_negative(value: int | Expr) -> bool | None:
    """Whether a value is below zero, dims being non-negative; None when that depends on them."""
    if isinstance(value, int):
        return value < 0
    if not _is_polynomial_in_dims(value):
        return None
    if all(c > 0 for _, c in value.terms):
        return False
    return True if sign(value) == -1 else None


def _is_polynomial_in_dims(value: Expr) -> bool:
    atoms = [atom for monomial, _ in value.terms for atom in monomial]
    return all(is_negative(arg) is False for atom in atoms for arg in atom.args)


def value(*names: str) -> Callable[[ValueFunction], ValueFunction]:
    """Declares how op types act on known integers."""

    def declare(function: ValueFunction) -> ValueFunction:
        VALUES.update(dict.fromkeys(names, function))
        return function

    return declare


def map_values(function: Callable[..., Any], *arrays: Array) -> Array | None:
    """`function` over broadcast arrays; None when they do not broadcast or the result is large."""
    try:
        broadcast = np.broadcast(*arrays)
    except ValueError:
        return None
    if broadcast.size > MAX_KNOWN_ELEMENTS:
        return None
    result = np.empty(broadcast.shape, object)
    result.ravel()[:] = [function(*values) for values in broadcast]
    return result


def _elementwise(name: str, function: Callable[..., Any]) -> None:
    VALUES[name] = lambda call, *arrays: map_values(function, *arrays)


def _truncated(a: int | Expr, b: int | Expr) -> int | Expr | None:
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else None
    return dim.floordiv(a, b) if is_negative(a) is False and sign(b) == 1 else None


def _remainder(a: int | Expr, b: int | Expr) -> int | Expr | None:
    return a % b if sign(b) == 1 else None


def _equal(a: Any, b: Any) -> bool | None:
    if a == b:
        return True
    return False if sign(a - b) in (-1, 1) else None


def _less(a: int | Expr, b: int | Expr) -> bool | None:
    return is_negative(a - b)


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a


_elementwise("Add", lambda a, b: a + b)
_elementwise("Sub", lambda a, b: a - b)
_elementwise("Mul", lambda a, b: a * b)
_elementwise("Div", _truncated)
_elementwise("Neg", lambda a: a * -1)
_elementwise("Min", lambda *values: functools.reduce(dim.minimum, values))
_elementwise("Max", lambda *values: functools.reduce(dim.maximum, values))
_elementwise("Equal", _equal)
_elementwise("Less", _less)
_elementwise("Greater", lambda a, b: _less(b, a))
_elementwise("LessOrEqual", lambda a, b: _not(_less(b, a)))
_elementwise("GreaterOrEqual", lambda a, b: _not(_less(a, b)))
_elementwise("Not", _not)
_elementwise("And", lambda a, b: a and b)
_elementwise("Or", lambda a, b: a or b)
_elementwise("Where", lambda condition, a, b: a if condition else b)
_elementwise("Identity", lambda a: a)


@value("Mod")
def _mod(call: Call, a: Array, b: Array) -> Array | None:
    return None if call.int("fmod", 0) else map_values(_remainder, a, b)


@value("Cast")
def _cast(call: Call, a: Array) -> Array | None:
    target = call.dtype_attribute("to")
    if target in (i64, i32):
        return map_values(lambda v: v if isinstance(v, Expr) else int(v), a)
    if target is boolean:
        return map_values(lambda v: _not(_equal(v, 0)), a)
    return None


@value("Gather")
def _gather(call: Call, data: Array, indices: Array) -> Array | None:
    axis = call.axis("axis", 0, data.ndim)
    if any(isinstance(i, Expr) for i in indices.flat):
        return None
    if any(not -data.shape[axis] <= i < data.shape[axis] for i in indices.flat):
        raise call.malformed(f"index out of range, got {indices.tolist()}, expected below {data.shape[axis]}")
    return _bounded(np.take(data, indices.astype(np.int64), axis))


@value("Concat")
def _concat(call: Call, *arrays: Array) -> Array | None:
    axis = call.axis("axis", None, arrays[0].ndim)
    rest = [a.shape[:axis] + a.shape[axis + 1 :] for a in arrays]
    return _bounded(np.concatenate(arrays, axis)) if all(r == rest[0] for r in rest) else None


@value("Slice")
def _slice(call: Call, data: Array, starts: Array, stops: Array, *rest: Array | None) -> Array | None:
    axes, steps = call.slice_axes(data.ndim), call.slice_steps()
    if any(isinstance(v, Expr) for v in [*starts.flat, *stops.flat]) or len(axes) != starts.size:
        return None
    index = [slice(None)] * data.ndim
    for axis, start, stop, step in zip(axes, starts.flat, stops.flat, steps, strict=True):
        index[axis] = slice(*slice_bounds(start, stop, step, data.shape[axis]))
    return data[tuple(index)]


def slice_bounds(start: int, stop: int, step: int, size: int) -> tuple[int, int | None, int]:
    """ONNX slice bounds as Python ones; a backwards slice that includes element 0 stops at None."""
    first, last, stride = slice(start, stop, step).indices(size)
    return first, None if last < 0 else last, stride


@value("Squeeze", "Unsqueeze", "Reshape", "Flatten", "Expand", "Tile")
def _reshaped(call: Call, data: Array, *operands: Array | None) -> Array | None:
    shape = call.result_shape()
    if not all(isinstance(d, int) for d in shape):
        return None
    if call.op in ("Expand", "Tile"):
        return None if int(np.prod(shape, dtype=object)) > MAX_KNOWN_ELEMENTS else _spread(call.op, data, shape)
    return data.reshape(shape)

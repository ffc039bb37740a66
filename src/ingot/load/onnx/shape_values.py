"""Integers that are known at load: shapes, axes, sizes, and arithmetic on them, with symbols where dims are symbolic.

`VALUES` says how an ONNX op type acts on such arrays. A function there gets the call and its operands as numpy arrays
of Python ints, bools and dim expressions, and returns such an array, or None where the result is not decided at load;
the node then becomes ordinary ops.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot import dim
from ingot.dim import Expr
from ingot.dtype import DType, boolean, from_numpy, i32, i64
from ingot.errors import LimitError
from ingot.ir import MAX_RANK
from ingot.load.onnx.shapes import Size, is_negative, reshaped, sign, squeezed, unsqueezed
from ingot.ops.define import normalize_axis

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
    found = function(call, *arrays)
    if found is None:
        return None
    result = np.asarray(found, object)  # numpy hands out the element of an array of rank 0
    if any(v is None for v in result.flat):
        return None
    _check_bounded(result)
    return Known(result, _result_dtype(call), call.outputs[0])


def _result_dtype(call: Call) -> DType:
    match call.op:
        case "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "Not" | "And" | "Or":
            return boolean
        case "Cast":
            return call.attr_dtype("to")
        case "ConstantOfShape":
            return from_numpy(call.attr_tensor("value").dtype)
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
    return a - dim.floordiv(a, b) * b if sign(b) == 1 else None


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
    return None if call.attr_int("fmod", 0) else map_values(_remainder, a, b)


@value("Cast")
def _cast(call: Call, a: Array) -> Array | None:
    target = call.attr_dtype("to")
    if target in (i64, i32):
        return map_values(lambda v: v if isinstance(v, Expr) else int(v), a)
    if target is boolean:
        return map_values(lambda v: _not(_equal(v, 0)), a)
    return None


@value("Gather")
def _gather(call: Call, data: Array, indices: Array) -> Array | None:
    axis = normalize_axis("gather", call.attr_int("axis", 0), data.ndim)
    size = data.shape[axis] if data.ndim else 0
    if any(isinstance(i, Expr) for i in indices.flat):
        return None
    if any(not -size <= i < size for i in indices.flat):
        raise call.malformed(f"index out of range, got {indices.tolist()}, expected {-size}..{size - 1}")
    return np.take(data, indices.astype(np.int64), axis)


@value("Concat")
def _concat(call: Call, *arrays: Array) -> Array | None:
    if any(a.ndim != arrays[0].ndim for a in arrays):
        return None
    axis = normalize_axis("concat", call.attr_int("axis"), arrays[0].ndim)
    others = [a.shape[:axis] + a.shape[axis + 1 :] for a in arrays]
    if arrays[0].ndim == 0 or any(o != others[0] for o in others):
        return None
    return np.concatenate(arrays, axis)


@value("Slice")
def _slice(call: Call, data: Array, starts: Array, stops: Array, *rest: Array | None) -> Array | None:
    axes, bounds, steps = call.slice_ranges()
    index = [slice(None)] * data.ndim
    for axis, (start, stop), step in zip(axes, bounds, steps, strict=True):
        if isinstance(start, Expr) or isinstance(stop, Expr):
            return None
        index[axis] = slice(start, stop, step)
    return data[tuple(index)]


@value("Squeeze")
def _squeeze(call: Call, data: Array, axes: Array | None = None) -> Array:
    return _seen_as(data, squeezed(data.shape, call.axes(1)))


@value("Unsqueeze")
def _unsqueeze(call: Call, data: Array, axes: Array | None = None) -> Array:
    return _seen_as(data, unsqueezed(data.shape, call.axes(1) or ()))


@value("Reshape")
def _reshape(call: Call, data: Array, target: Array) -> Array | None:
    if any(isinstance(d, Expr) for d in target.flat):
        return None
    return _seen_as(data, reshaped(data.shape, list(target.flat), bool(call.attr_int("allowzero", 0))))


def _seen_as(data: Array, shape: tuple[Size, ...]) -> Array:
    return data.reshape([int(d) for d in shape if isinstance(d, int)])


@value("Expand")
def _expand(call: Call, data: Array, target: Array) -> Array | None:
    return map_values(lambda v, _: v, data, _blank(target)) if _is_small(target) else None


@value("ConstantOfShape")
def _constant_of_shape(call: Call, shape: Array) -> Array | None:
    value = call.attr_tensor("value", np.zeros(1, np.float32))
    if value.dtype.kind not in "ib" or value.size != 1 or not _is_small(shape):
        return None
    return map_values(lambda _: value.item(), _blank(shape))


def _is_small(shape: Array) -> bool:
    if any(isinstance(d, Expr) or d < 0 for d in shape.flat) or shape.size > MAX_RANK:
        return False
    return math.prod(shape.flat) <= MAX_KNOWN_ELEMENTS


def _blank(shape: Array) -> Array:
    return np.empty(tuple(shape.flat), object)


@value("Range")
def _range(call: Call, start: Array, stop: Array, step: Array) -> Array | None:
    bounds = [a.item() for a in (start, stop, step) if a.ndim == 0]
    if len(bounds) != 3 or any(isinstance(b, Expr) for b in bounds) or bounds[2] == 0:
        return None
    numbers = range(*bounds)
    return known_array(np.array(numbers, np.int64)) if len(numbers) <= MAX_KNOWN_ELEMENTS else None


@value("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")
def _reduce(call: Call, data: Array, axes: Array | None = None) -> Array | None:
    if (
        data.ndim != 1
        or data.size == 0
        or call.axes(1) not in (None, (0,), (-1,))
        or call.attr_int("noop_with_empty_axes", 0)
    ):
        return None
    combine = {
        "ReduceSum": operator.add,
        "ReduceProd": operator.mul,
        "ReduceMax": dim.maximum,
        "ReduceMin": dim.minimum,
    }
    result = np.empty((1,) if call.attr_int("keepdims", 1) else (), object)
    result[...] = functools.reduce(combine[call.op], data)
    return result

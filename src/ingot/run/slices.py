"""Slices of weight expressions, so that neither a source nor a result is in memory completely."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ingot.lower.weight_expr import WeightExpr
from ingot.support.files import release

# Ops whose result rows are computed from the same rows of their operands, unless they reduce the first axis.
_BY_ROWS = frozenset(
    (
        "abs",
        "add",
        "affine_blocks",
        "bitcast",
        "bitwise_xor",
        "cast",
        "decode_blocks",
        "dequantize",
        "div",
        "greater",
        "mul",
        "neg",
        "quantize",
        "quantize_groups",
        "reduce_max",
        "reduce_min",
        "reshape",
        "unpack",
        "unpack_bits",
        "where",
    )
)

_FEW = 32  # an operand has few elements if the result has so many times as many


class Slices:
    """Slices of matrices along an axis, evaluated from slices of their operands where possible, each slice once."""

    def __init__(self) -> None:
        self._known: dict[tuple[WeightExpr, int, int, int], np.ndarray] = {}
        self._read: list[np.ndarray] = []  # of weights and constants

    def take(self, value: WeightExpr, begin: int, end: int, axis: int) -> np.ndarray:
        """Return the indices `begin` to `end` of an axis of a matrix."""
        if is_divisible(value, axis):
            return self._slice(value, begin, end, axis)
        key = value, axis, 0, value.dims[axis]
        if key not in self._known:
            self._known[key] = value.evaluate()
            self._read += [source.evaluate() for source in value.sources()]
        return self._known[key][indices(begin, end, axis)]

    def release(self) -> None:
        """Release the pages of files that were read."""
        for array in self._read:
            release(array)

    def _slice(self, value: WeightExpr, begin: int, end: int, axis: int) -> np.ndarray:
        if value.type.rank == 0:
            return value.evaluate()
        if not is_divisible(value, axis):  # it has few elements
            return self.take(value, begin, end, axis)
        key = value, axis, begin, end
        if key not in self._known:
            self._known[key] = self._evaluate(value, begin, end, axis)
        return self._known[key]

    def _evaluate(self, value: WeightExpr, begin: int, end: int, axis: int) -> np.ndarray:
        match value.op:
            case None:
                self._read.append(value.evaluate()[indices(begin, end, axis)])
                return self._read[-1]
            case "permute":
                return self._slice(value.source, begin, end, 1 - axis).T
            case "concat":
                return self._joined(value, begin, end)
            case "gather" if _looks_up(value):
                return value.apply(value.source.evaluate(), self._slice(value.inputs[1], begin, end, axis))
            case "gather":
                return value.apply(self._slice(value.source, begin, end, axis), value.inputs[1].evaluate())
            case "reshape":
                return self._slice(value.source, begin, end, axis).reshape(end - begin, *value.dims[1:])
        return value.apply(*(self._slice(operand, begin, end, axis) for operand in value.inputs))

    def _joined(self, value: WeightExpr, begin: int, end: int) -> np.ndarray:
        """Return rows of a concat from the operands that contain them."""
        pieces: list[np.ndarray] = []
        first = 0
        for operand in value.inputs:
            low, high = max(begin, first), min(end, first + operand.dims[0])
            if low < high or (begin == end and not pieces):
                pieces.append(self._slice(operand, low - first, max(low, high) - first, 0))
            first += operand.dims[0]
        return np.concatenate(pieces)


def indices(begin: int, end: int, axis: int) -> tuple[slice, ...]:
    """Return the index of `begin` to `end` of an axis of a matrix."""
    return (slice(begin, end),) if axis == 0 else (slice(None), slice(begin, end))


def is_divisible(value: WeightExpr, axis: int) -> bool:
    """Return whether a slice along an axis is computed from the same slice of the operands and from single elements.

    Rows of a transposed matrix come from columns of the operand, rows of a concat from rows of one of its operands.
    """
    node = value.node
    if node is None:
        return True
    if value.op == "cast":
        return is_divisible(value.source, axis)
    if value.op == "permute" and value.type.rank == 2 and node.axes == (1, 0):
        return is_divisible(value.source, 1 - axis)
    if axis != 0:
        return False
    if value.op == "concat" and node.axis == 0:
        return all(is_divisible(operand, 0) for operand in value.inputs)
    if value.op == "gather":
        return is_divisible(value.inputs[1], 0) if _looks_up(value) else node.axis > 0 and is_divisible(value.source, 0)
    if value.op not in _BY_ROWS or 0 in node.attributes.get("axes", ()):
        return False
    if value.op in ("quantize", "dequantize") and node.axis != (1 if node.block else 0):
        return False
    if (value.op == "unpack" and node.axis == 0) or (value.op == "reshape" and value.source.type.rank == 0):
        return False
    return all(_is_of_rows(operand, value) for operand in value.inputs)


def _is_of_rows(operand: WeightExpr, value: WeightExpr) -> bool:
    """Return whether rows of a value need only the same rows of an operand, or an operand with few elements."""
    if operand.type.rank == 0:
        return True
    if operand.dims[:1] != value.dims[:1]:
        return False
    return is_divisible(operand, 0) or _FEW * math.prod(operand.dims) <= math.prod(value.dims)


def _looks_up(value: WeightExpr) -> bool:
    """Return whether a gather reads slices of a stored table by a tensor of indices."""
    node = value.node
    assert node is not None
    return node.axis == 0 and value.source.op is None and value.inputs[1].type.rank > 0


def pieces_of(value: WeightExpr) -> Iterator[np.ndarray]:
    """Yield a value piece by piece along its first axis: for a concat on that axis, one weight after another."""
    node = value.node
    if node is None or value.op not in ("cast", "permute", "reshape", "concat"):
        yield value.evaluate()
    elif value.op == "cast":
        for piece in pieces_of(value.source):
            result = node.op.function(piece, **node.attributes)
            release(piece)
            yield result
    elif value.op == "permute" and node.axes[0] == 0:
        yield from (piece.transpose(node.axes) for piece in pieces_of(value.source))
    elif value.op == "concat" and node.axis == 0:
        for operand in value.inputs:
            yield from pieces_of(operand)
    elif value.op == "reshape" and value.source.dims[1:] == value.dims[2:] != ():
        rows, held = value.dims[1], 0
        waiting: list[np.ndarray] = []
        for piece in pieces_of(value.source):
            waiting.append(piece)
            held += len(piece)
            if rows and held % rows == 0:
                whole = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
                yield whole.reshape(-1, *value.dims[1:])
                waiting, held = [], 0
    else:
        yield value.evaluate()

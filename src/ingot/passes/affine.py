"""Arithmetic on indices, read from a graph: which integer values are affine functions of their own index.

An integer value is affine when its element at (i, j, ..) is a constant plus a coefficient times each index. A condition
is an affine value too, and means `value <= 0`. Constants are read from their data; iota, comparisons, and nodes that
move elements are read from the graph, so that lengths may be symbolic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingot.ir.dim import Dim, Expr, Known
from ingot.ir.graph import Graph, Node
from ingot.passes.fold import TOTAL_BYTES, known

_MAX_DEPTH = 64  # of an expression: a deeper one is not a mask, and recursion stays bounded


@dataclass(frozen=True)
class Affine:
    """constant + sum of coefficient * index over the axes of a value; axes of one element have coefficient 0."""

    coefficients: tuple[Known, ...]
    constant: Known

    def __neg__(self) -> Affine:
        return self * -1

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.coefficients, self.constant + other)
        rank = max(len(self.coefficients), len(other.coefficients))
        pairs = zip(self.padded(rank).coefficients, other.padded(rank).coefficients, strict=True)
        return Affine(tuple(a + b for a, b in pairs), self.constant + other.constant)

    def __sub__(self, other: Affine) -> Affine:
        return self + -other

    def __mul__(self, factor: Known) -> Affine:
        return Affine(tuple(c * factor for c in self.coefficients), self.constant * factor)

    def padded(self, rank: int) -> Affine:
        """Return the same function with axes of one element in front."""
        return Affine((0,) * (rank - len(self.coefficients)) + self.coefficients, self.constant)

    @property
    def is_uniform(self) -> bool:
        """Whether every element is the constant."""
        return all(c == 0 for c in self.coefficients)

    @property
    def always(self) -> bool:
        """As a condition: true everywhere."""
        return all(is_natural(c * -1) for c in (*self.coefficients, self.constant))

    @property
    def never(self) -> bool:
        """As a condition: true nowhere."""
        return self.inverse.always

    @property
    def inverse(self) -> Affine:
        """As a condition: the negation; not (v <= 0) is 1 - v <= 0."""
        return -self + 1


def is_natural(value: Known) -> bool:
    """Return whether a value cannot be negative: a sum of dims times natural numbers."""
    if isinstance(value, Expr):
        return all(coefficient > 0 for _, coefficient in value.terms)
    return value >= 0


def both(a: Affine, b: Affine) -> Affine | None:
    """Return the conjunction of two conditions if one implies the other; else None."""
    rank = max(len(a.coefficients), len(b.coefficients))
    a, b = a.padded(rank), b.padded(rank)
    if a.always or b.always:
        return b if a.always else a
    if a.coefficients == b.coefficients and isinstance(a.constant, int) and isinstance(b.constant, int):
        return a if a.constant > b.constant else b
    return None


class Indices:
    """Reads the affine values and conditions of a graph, as long as the graph does not change."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.depth = 0
        self.read: dict[tuple[str, bool], Affine | None] = {}

    def value(self, name: str | None) -> Affine | None:
        """Return an integer tensor as an affine function of its indices."""
        return self._cached(name, False)

    def condition(self, name: str | None) -> Affine | None:
        """Return a bool tensor as `affine <= 0`."""
        return self._cached(name, True)

    def _cached(self, name: str | None, is_condition: bool) -> Affine | None:
        if name is None or self.depth >= _MAX_DEPTH:
            return None
        key = name, is_condition
        if key not in self.read:
            self.depth += 1
            self.read[key] = self._condition(name) if is_condition else self._value(name)
            self.depth -= 1
        return self.read[key]

    def _value(self, name: str) -> Affine | None:
        array = known(self.graph, name, TOTAL_BYTES)
        if array is not None:
            return value_of_array(array)
        node = self.graph.producer(name)
        if node is None:
            return None
        match node.op.name:
            case "iota" if isinstance(node.step, int) and isinstance(node.start, int):
                return Affine((node.step if node.length != 1 else 0,), node.start)
            case "dims" if len(node.values) == 1 and node.values[0] is not None:
                return Affine((0,), node.values[0])
            case "add" | "sub" | "mul":
                return self._arithmetic(node)
            case "checked_index" if not node.wraps:
                return self.value(node.operands[0])
            case "gather":
                return self._gather(node)
            case "gather_elements":
                source = self.value(node.operands[0])
                rank = self.graph.type(name).rank
                return Affine((0,) * rank, source.constant) if source is not None and source.is_uniform else None
            case "concat":
                return self._concat(node)
            case "cumsum":
                source = self.value(node.operands[0])
                return source if source is not None and source.is_uniform and source.constant == 0 else None
            case "cast":
                return self._cast(node)
        return self._moved(node, self.value(node.operands[0])) if node.op.view else None

    def _condition(self, name: str) -> Affine | None:
        array = known(self.graph, name, TOTAL_BYTES)
        if array is not None:
            return condition_of_array(array)
        node = self.graph.producer(name)
        if node is None:
            return None
        match node.op.name:
            case "less" | "less_equal" | "greater" | "greater_equal" | "equal" | "not_equal":
                return self._comparison(node)
            case "logical_not":
                source = self.condition(node.operands[0])
                return None if source is None else source.inverse
            case "logical_and":
                a, b = (self.condition(o) for o in node.operands)
                return None if a is None or b is None else both(a, b)
            case "trilu":
                source = self.condition(node.operands[0])
                return triangle(self.graph, node) if source is not None and source.always else None
            case "cast" if self.graph.type(str(node.operands[0])).dtype.kind == "b":
                return self.condition(node.operands[0])
        return self._moved(node, self.condition(node.operands[0])) if node.op.view else None

    def _arithmetic(self, node: Node) -> Affine | None:
        a, b = (self.value(o) for o in node.operands)
        if a is None or b is None:
            return None
        if node.op.name != "mul":
            return a + b if node.op.name == "add" else a - b
        for x, factor in ((a, b), (b, a)):
            if factor.is_uniform:
                rank = max(len(x.coefficients), len(factor.coefficients))
                return x.padded(rank) * factor.constant
        return None

    def _comparison(self, node: Node) -> Affine | None:
        a, b = (self.value(o) for o in node.operands)
        if a is None or b is None:
            return None
        difference = a - b
        match node.op.name:
            case "less_equal":
                return difference
            case "less":
                return difference + 1
            case "greater_equal":
                return -difference
            case "greater":
                return -difference + 1
        if not difference.is_uniform or not isinstance(difference.constant, int):
            return None
        holds = (difference.constant == 0) == (node.op.name == "equal")
        return Affine(difference.coefficients, 0 if holds else 1)

    def _cast(self, node: Node) -> Affine | None:
        if self.graph.type(str(node.operands[0])).dtype.kind != "b":
            return self.value(node.operands[0]) if node.dtype.kind in "fiu" else None
        condition = self.condition(node.operands[0])
        if condition is None or not (condition.always or condition.never):
            return None
        return Affine((0,) * len(condition.coefficients), int(condition.always))

    def _gather(self, node: Node) -> Affine | None:
        """Gather rows of an affine value by affine indices, if no index counts from the end."""
        source, indices = (self.value(o) for o in node.operands)
        if source is None or indices is None or not (-indices).always:
            return None
        factor = source.coefficients[node.axis]
        moved = (indices * factor).coefficients
        coefficients = (*source.coefficients[: node.axis], *moved, *source.coefficients[node.axis + 1 :])
        return Affine(coefficients, source.constant + indices.constant * factor)

    def _concat(self, node: Node) -> Affine | None:
        """Concatenate pieces if each continues where the previous piece ends."""
        pieces = [self.value(o) for o in node.operands]
        lengths = [self.graph.type(str(o)).shape[node.axis] for o in node.operands]
        steps = [p.coefficients[node.axis] for p, d in zip(pieces, lengths, strict=True) if p is not None and d != 1]
        if not steps or None in pieces or None in lengths:
            return None
        end: Known | None = None
        results = []
        for piece, length in zip(pieces, lengths, strict=True):
            assert piece is not None and length is not None
            if end is not None and piece.constant != end:
                return None
            end = piece.constant + steps[0] * length
            step = steps[0] if length == 1 else piece.coefficients[node.axis]
            results.append((*piece.coefficients[: node.axis], step, *piece.coefficients[node.axis + 1 :]))
        first = pieces[0]
        assert first is not None
        return Affine(results[0], first.constant) if all(r == results[0] for r in results) else None

    def _moved(self, node: Node, source: Affine | None) -> Affine | None:
        return None if source is None else moved(self.graph, node, source)


def moved(graph: Graph, node: Node, source: Affine) -> Affine | None:
    """Return the affine function after a view."""
    match node.op.name:
        case "reshape":
            return _reshaped(graph, node, source)
        case "expand":
            before: tuple[Dim, ...] = graph.type(str(node.operands[0])).shape
            steps = tuple(0 if d == 1 else c for d, c in zip(before, source.coefficients, strict=True))
            return Affine(steps, source.constant).padded(len(node.shape))
        case "permute":
            return Affine(tuple(source.coefficients[a] for a in node.axes), source.constant)
        case "slice" if None not in node.starts:
            constant = source.constant
            for coefficient, start in zip(source.coefficients, node.starts, strict=True):
                constant = constant + coefficient * start
            shape = graph.type(node.output).shape
            steps = tuple(
                0 if d == 1 else c * s for d, c, s in zip(shape, source.coefficients, node.steps, strict=True)
            )
            return Affine(steps, constant)
    return None


def _reshaped(graph: Graph, node: Node, source: Affine) -> Affine | None:
    """Return the function after a reshape that only adds or drops dims of 1."""
    before, after = graph.type(str(node.operands[0])).shape, graph.type(node.output).shape
    if source.is_uniform:
        return Affine((0,) * len(after), source.constant)
    steps = [(d, c) for d, c in zip(before, source.coefficients, strict=True) if d != 1]
    if tuple(d for d, _ in steps) != tuple(d for d in after if d != 1) or None in before:
        return None
    remaining = iter(steps)
    return Affine(tuple(0 if d == 1 else next(remaining)[1] for d in after), source.constant)


def triangle(graph: Graph, node: Node) -> Affine:
    """Return where trilu keeps its operand: j - i <= k below, j - i >= k above."""
    below = Affine((-1, 1), -node.k).padded(graph.type(node.output).rank)
    return -below if node.upper else below


def value_of_array(array: np.ndarray) -> Affine | None:
    """Return the affine function that an array tabulates."""
    if array.size == 0 or array.dtype.kind == "b" or not np.array_equal(array, np.trunc(array)):
        return None
    if array.dtype.kind == "f" and not (np.abs(array) < 2**53).all():
        return None
    origin = int(array[(0,) * array.ndim])
    steps = [int(array.take(1, axis).flat[0]) - origin if size > 1 else 0 for axis, size in enumerate(array.shape)]
    grids = np.ogrid[tuple(slice(size) for size in array.shape)]
    if not np.array_equal(array, sum((g * s for g, s in zip(grids, steps, strict=True)), np.int64(origin))):
        return None
    return Affine(tuple(steps), origin)


def condition_of_array(visible: np.ndarray) -> Affine | None:
    """Return the condition that an array of bools tabulates, if it is constant or a lower triangle."""
    if visible.all():
        return Affine((0,) * visible.ndim, 0)
    if not visible.any():
        return Affine((0,) * visible.ndim, 1)
    if visible.ndim < 2:
        return None
    rows, columns = visible.shape[-2:]
    counts = visible.reshape(-1, rows, columns)[0].sum(1)
    first = int(np.argmax(counts > 0))
    offset = int(counts[first]) - 1 - first
    if not np.array_equal(visible, np.broadcast_to(np.tri(rows, columns, offset, dtype=bool), visible.shape)):
        return None
    return Affine((-1, 1), -offset).padded(visible.ndim)

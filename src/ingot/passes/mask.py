"""Recognition of attention masks that are causal, or that mask nothing.

A mask is read as arithmetic on indices. An integer value is affine when its element at (i, j, ..) is a constant plus
an integer times each index; a condition is an affine value and means `value <= 0`; a float mask chooses between two
numbers by a condition. This covers constants, where such arithmetic is found in the data, and graphs of symbolic
length, where iota is compared with iota.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ingot.dim import Dim, Known
from ingot.ir import Graph, Node
from ingot.passes.fold import TOTAL_BYTES, known
from ingot.passes.fuse_attention import MASKED
from ingot.passes.match import scalar, substitute


def recognise_masks(graph: Graph) -> bool:
    """Turns a mask of attention that is exactly causal into the `causal` attribute; one that masks nothing vanishes.

    Refused: causal and padding in one mask, and a finite mask under which a row sees nothing (it is uniform then,
    while a row that `causal` masks is zeros).
    """
    changed = False
    for node in graph.nodes:
        if node.op.name == "attention" and len(node.operands) == 4 and node.operands[3] is not None:
            changed |= _recognise(graph, node)
    return changed


@dataclass(frozen=True)
class _Affine:
    """constant + sum of coefficient * index over the axes of a value."""

    coefficients: tuple[int, ...]
    constant: Known

    def __neg__(self) -> _Affine:
        return _Affine(tuple(-c for c in self.coefficients), self.constant * -1)

    def __add__(self, other: _Affine | int) -> _Affine:
        if isinstance(other, int):
            return _Affine(self.coefficients, self.constant + other)
        rank = max(len(self.coefficients), len(other.coefficients))
        pairs = zip(self._padded(rank), other._padded(rank), strict=True)
        return _Affine(tuple(a + b for a, b in pairs), self.constant + other.constant)

    def __sub__(self, other: _Affine) -> _Affine:
        return self + -other

    def __mul__(self, factor: int) -> _Affine:
        return _Affine(tuple(c * factor for c in self.coefficients), self.constant * factor)

    def _padded(self, rank: int) -> tuple[int, ...]:
        return (0,) * (rank - len(self.coefficients)) + self.coefficients

    @property
    def is_uniform(self) -> bool:
        return not any(self.coefficients)

    @property
    def always(self) -> bool:
        """True when it is <= 0 at every index."""
        return max(self.coefficients, default=0) <= 0 and isinstance(self.constant, int) and self.constant <= 0

    @property
    def inverse(self) -> _Affine:
        """The condition that holds where this one does not: not (v <= 0) is 1 - v <= 0."""
        return -self + 1


@dataclass(frozen=True)
class _Choice:
    """One number where a condition holds, another elsewhere."""

    condition: _Affine
    yes: float
    no: float


def _recognise(graph: Graph, node: Node) -> bool:
    name = node.operands[3]
    expand = graph.producer(name)
    if expand is not None and expand.op.name == "expand":
        operands = [*node.operands[:3], expand.operands[0]]
        return substitute(graph, node, "attention", operands, node.attributes) is not None
    found = _kept(graph, str(name))
    if found is None:
        return False
    kept, is_finite = found
    if kept.always:
        return substitute(graph, node, "attention", node.operands[:3], node.attributes) is not None
    offset = _causal_offset(graph, node, kept)
    if offset is None or (is_finite and offset < 0):
        return False
    if node.causal:
        offset = min(offset, node.causal_offset)
    attributes = node.attributes | {"causal": True, "causal_offset": offset}
    return substitute(graph, node, "attention", node.operands[:3], attributes) is not None


def _kept(graph: Graph, mask: str) -> tuple[_Affine, bool] | None:
    """Where a mask keeps a score, and whether what it does elsewhere is finite."""
    if graph.type(mask).dtype.kind == "b":
        condition = _condition(graph, mask)
        return None if condition is None else (condition, False)
    choice = _choice(graph, mask)
    if choice is None:
        return None
    for condition, kept, masked in (
        (choice.condition, choice.yes, choice.no),
        (choice.condition.inverse, choice.no, choice.yes),
    ):
        if kept == 0 and (masked <= MASKED or condition.always):
            return condition, masked != -math.inf
    return None


def _causal_offset(graph: Graph, node: Node, kept: _Affine) -> int | None:
    """o of the condition j - i - o <= 0 over the last two of [B, H, S, T]."""
    mask, q, k = (graph.type(str(node.operands[i])).shape for i in (3, 0, 1))
    if mask[-2:] != (q[2], k[2]) or None in mask or not isinstance(kept.constant, int):
        return None
    if kept.coefficients[-2:] != (-1, 1) or any(kept.coefficients[:-2]):
        return None
    return -kept.constant


def _choice(graph: Graph, name: str) -> _Choice | None:
    """A float value that takes two numbers at most."""
    array = known(graph, name, TOTAL_BYTES)
    if array is not None:
        return _choice_of_array(array)
    node = graph.producer(name)
    if node is None:
        return None
    operands = [str(o) for o in node.operands]
    match node.op.name:
        case "where":
            yes, no = scalar(graph, operands[1]), scalar(graph, operands[2])
            condition = _condition(graph, operands[0])
            return None if condition is None or yes is None or no is None else _Choice(condition, yes, no)
        case "cast" if graph.type(operands[0]).dtype.kind == "b":
            condition = _condition(graph, operands[0])
            return None if condition is None else _Choice(condition, 1.0, 0.0)
        case "mul" | "add" | "sub" | "div":
            return _choice_of_arithmetic(graph, node, operands)
        case "trilu":
            number = scalar(graph, operands[0])
            condition = _triangle(graph, node)
            return None if number is None else _Choice(condition, number, 0.0)
    source = _choice(graph, operands[0]) if node.op.name in _MOVES else None
    condition = None if source is None else _moved(graph, node, source.condition)
    return None if source is None or condition is None else _Choice(condition, source.yes, source.no)


def _choice_of_array(array: np.ndarray) -> _Choice | None:
    kept = array == 0
    if not (kept | (array <= MASKED)).all():
        return None
    condition = _condition_of_array(kept)
    lowest = array.max(initial=-math.inf, where=~kept)
    return None if condition is None else _Choice(condition, 0.0, float(lowest))


_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "div": lambda a, b: a / b if b else math.nan,
}


def _choice_of_arithmetic(graph: Graph, node: Node, operands: list[str]) -> _Choice | None:
    """A choice and a number."""
    apply = _ARITHMETIC[node.op.name]
    for i in range(2):
        number = scalar(graph, operands[1 - i])
        source = None if number is None else _choice(graph, operands[i])
        if number is None or source is None:
            continue
        pairs = [(each, number) if i == 0 else (number, each) for each in (source.yes, source.no)]
        yes, no = (apply(a, b) for a, b in pairs)
        return None if math.isnan(yes) or math.isnan(no) else _Choice(source.condition, yes, no)
    return None


def _condition(graph: Graph, name: str) -> _Affine | None:
    """A bool value as `affine <= 0`."""
    array = known(graph, name, TOTAL_BYTES)
    if array is not None:
        return _condition_of_array(array)
    node = graph.producer(name)
    if node is None:
        return None
    operands = [str(o) for o in node.operands]
    match node.op.name:
        case "less" | "less_equal" | "greater" | "greater_equal" | "equal" | "not_equal":
            return _comparison(graph, node.op.name, operands)
        case "logical_not":
            source = _condition(graph, operands[0])
            return None if source is None else source.inverse
        case "logical_and":
            a, b = _condition(graph, operands[0]), _condition(graph, operands[1])
            return None if a is None or b is None else _both(a, b)
        case "trilu":
            source = _condition(graph, operands[0])
            return _triangle(graph, node) if source is not None and source.always else None
    if node.op.name not in _MOVES:
        return None
    source = _condition(graph, operands[0])
    return None if source is None else _moved(graph, node, source)


def _condition_of_array(kept: np.ndarray) -> _Affine | None:
    """The condition that an array of bools tabulates, if it is constant or a lower triangle."""
    zeros = (0,) * kept.ndim
    if kept.all():
        return _Affine(zeros, 0)
    if not kept.any():
        return _Affine(zeros, 1)
    if kept.ndim < 2:
        return None
    rows, columns = kept.shape[-2:]
    counts = kept.reshape(-1, rows, columns)[0].sum(1)
    first = int(np.argmax(counts > 0))
    offset = int(counts[first]) - 1 - first
    if not np.array_equal(kept, np.broadcast_to(np.tri(rows, columns, offset, dtype=bool), kept.shape)):
        return None
    return _Affine((*zeros[2:], -1, 1), -offset)


def _comparison(graph: Graph, op: str, operands: list[str]) -> _Affine | None:
    a, b = (_index(graph, o) for o in operands)
    if a is None or b is None:
        return None
    difference = a - b
    match op:
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
    holds = (difference.constant == 0) == (op == "equal")
    return _Affine(difference.coefficients, 0 if holds else 1)


def _both(a: _Affine, b: _Affine) -> _Affine | None:
    """Two conditions at once, where one of them or one triangle says it."""
    zero = (a - b) * 0
    a, b = a + zero, b + zero
    if a.always or b.always:
        return b if a.always else a
    if a.coefficients == b.coefficients and isinstance(a.constant, int) and isinstance(b.constant, int):
        return a if a.constant > b.constant else b
    return None


def _triangle(graph: Graph, node: Node) -> _Affine:
    """Where trilu keeps its operand: j - i <= k below, j - i >= k above."""
    zeros = (0,) * (graph.type(node.output).rank - 2)
    below = _Affine((*zeros, -1, 1), -node.k)
    return -below if node.upper else below


def _index(graph: Graph, name: str) -> _Affine | None:
    """An integer-valued tensor as an affine function of its indices."""
    array = known(graph, name, TOTAL_BYTES)
    if array is not None:
        return _index_of_array(array)
    node = graph.producer(name)
    if node is None:
        return None
    match node.op.name:
        case "iota" if isinstance(node.step, int) and isinstance(node.start, int):
            return _Affine((node.step,), node.start)
        case "dims" if len(node.values) == 1 and node.values[0] is not None:
            return _Affine((0,), node.values[0])
        case "add" | "sub" | "mul":
            a, b = (_index(graph, str(o)) for o in node.operands)
            return None if a is None or b is None else _combined(node.op.name, a, b)
        case "gather":
            return _gathered(graph, node)
        case "cast" if graph.type(str(node.operands[0])).dtype.kind != "b" != node.dtype.kind:
            return _index(graph, str(node.operands[0]))
    if node.op.name not in _MOVES:
        return None
    source = _index(graph, str(node.operands[0]))
    return None if source is None else _moved(graph, node, source)


def _index_of_array(array: np.ndarray) -> _Affine | None:
    if array.size == 0 or array.dtype.kind == "b" or not np.array_equal(array, np.trunc(array)):
        return None
    origin = array[(0,) * array.ndim]
    steps = [int(array.take(1, axis).flat[0] - origin) if size > 1 else 0 for axis, size in enumerate(array.shape)]
    grids = np.ogrid[tuple(slice(size) for size in array.shape)]
    if not np.array_equal(array, sum((g * s for g, s in zip(grids, steps, strict=True)), np.int64(int(origin)))):
        return None
    return _Affine(tuple(steps), int(origin))


def _combined(op: str, a: _Affine, b: _Affine) -> _Affine | None:
    if op != "mul":
        return a + b if op == "add" else a - b
    for x, factor in ((a, b), (b, a)):
        if factor.is_uniform and isinstance(factor.constant, int):
            return x * factor.constant + factor * 0
    return None


def _gathered(graph: Graph, node: Node) -> _Affine | None:
    """Rows of an affine value by affine indices, none of which counts from the end."""
    source, indices = (_index(graph, str(o)) for o in node.operands)
    if source is None or indices is None or not (-indices).always:
        return None
    factor = source.coefficients[node.axis]
    moved = tuple(c * factor for c in indices.coefficients)
    coefficients = (*source.coefficients[: node.axis], *moved, *source.coefficients[node.axis + 1 :])
    return _Affine(coefficients, source.constant + indices.constant * factor)


def _reshaped(graph: Graph, node: Node, source: _Affine) -> _Affine | None:
    """Through a reshape that only adds or drops dims of 1."""
    before, after = graph.type(str(node.operands[0])).shape, graph.type(node.output).shape
    if source.is_uniform:
        return _Affine((0,) * len(after), source.constant)
    steps = [(d, c) for d, c in zip(before, source.coefficients, strict=True) if d != 1]
    if tuple(d for d, _ in steps) != tuple(d for d in after if d != 1) or None in before:
        return None
    remaining = iter(steps)
    return _Affine(tuple(0 if d == 1 else next(remaining)[1] for d in after), source.constant)


def _expanded(graph: Graph, node: Node, source: _Affine) -> _Affine:
    before: tuple[Dim, ...] = graph.type(str(node.operands[0])).shape
    steps = [0 if d == 1 else c for d, c in zip(before, source.coefficients, strict=True)]
    return _Affine((0,) * (len(node.shape) - len(steps)) + tuple(steps), source.constant)


def _sliced(graph: Graph, node: Node, source: _Affine) -> _Affine | None:
    if any(start is None for start in node.starts):
        return None
    constant = source.constant
    for c, start in zip(source.coefficients, node.starts, strict=True):
        constant = constant + start * c
    return _Affine(tuple(c * s for c, s in zip(source.coefficients, node.steps, strict=True)), constant)


def _permuted(graph: Graph, node: Node, source: _Affine) -> _Affine:
    return _Affine(tuple(source.coefficients[a] for a in node.axes), source.constant)


_MOVES: dict[str, Callable[[Graph, Node, _Affine], _Affine | None]] = {
    "reshape": _reshaped,
    "expand": _expanded,
    "slice": _sliced,
    "permute": _permuted,
}


def _moved(graph: Graph, node: Node, source: _Affine) -> _Affine | None:
    """The affine function after a node that only moves elements."""
    return _MOVES[node.op.name](graph, node, source)

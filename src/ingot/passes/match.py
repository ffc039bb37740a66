"""A small matcher for patterns in a graph: what a fusion looks for, written as an expression.

A pattern is a tree whose captures may repeat, so it describes a DAG: the same capture must be the same value.

    Capture("x")                 any value
    Number(0.5)                  a constant of one element with this value, after rounding to f32
    Call("add", a, b)            a node; commutative ops match either way round
    Either(a, b)                 the first alternative that fits
    Product(0.5, a, b)           a product of these factors, however it is associated, divided, negated or squared
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ingot.ir.graph import OPS, Graph, Node, TensorType

COMMUTATIVE = frozenset(
    ("add", "mul", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or", "logical_xor")
)
_TWO_ROUNDINGS = 2.5e-7  # relative; the largest error of a factor that a model computed from two f32 constants
_MAX_POWER = 4
_FACTORED = ("mul", "div", "neg", "pow")  # the ops that products consist of
_MAX_FIXED_DEPTH = 5  # of nodes over parameters that count as a parameter
_MAX_DEPTH = 6  # of the multiplications in a product, and of the views of a number


@dataclass(frozen=True)
class Capture:
    """Any value, with a label."""

    label: str


@dataclass(frozen=True)
class Number:
    """A one-element constant: of this value, or of any value when None, then captured under `label`."""

    value: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Call:
    """A node of op `op` whose operands match; `where(graph, node)` may refuse it; `label` names it in the match."""

    op: str
    operands: tuple[Pattern, ...]
    where: Callable[[Graph, Node], bool] | None = None
    label: str = ""

    @cached_property
    def producers(self) -> frozenset[str]:
        """The ops that may compute its operands, as far as the pattern fixes them."""
        return frozenset(operand.op for operand in self.operands if isinstance(operand, Call))


@dataclass(frozen=True)
class Either:
    """One of several patterns."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True)
class Product:
    """The product of a number and factors, in any association; a number of None is captured under `label`."""

    number: float | None
    factors: tuple[Pattern, ...]
    label: str = ""


Pattern = Capture | Number | Call | Either | Product


def call(op: str, *operands: Pattern | float, where: Any = None, label: str = "") -> Call:
    """Return a `Call`; plain numbers become `Number`s."""
    return Call(op, tuple(Number(o) if isinstance(o, (int, float)) else o for o in operands), where, label)


def either(*options: Pattern) -> Either:
    """Return an `Either`."""
    return Either(options)


def product(number: float | None, *factors: Pattern, label: str = "") -> Product:
    """Return a `Product`."""
    return Product(number, factors, label)


@dataclass(frozen=True)
class Match:
    """The result of a match: captured values, captured numbers, labelled nodes, and every covered node."""

    values: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    calls: dict[str, Node] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    def is_closed(self, graph: Graph) -> bool:
        """Return whether only the root (the first node) is read from outside, so that fusing computes nothing twice."""
        inside = set(self.nodes)
        inner = [output for node in self.nodes[1:] for output in node.outputs]
        return not any(graph.is_output(name) or not inside.issuperset(graph.values[name].users) for name in inner)


def scalar(graph: Graph, name: str | None) -> float | None:
    """Return the number in a one-element constant, also through a few reshapes and expands; else None."""
    for _ in range(_MAX_DEPTH):
        if name is None:
            break
        value = graph.values[name]
        if value.kind == "constant" and value.data is not None:
            return float(value.data.item()) if value.data.size == 1 and value.data.dtype.kind != "b" else None
        if value.producer is None or value.producer.op.name not in ("reshape", "expand"):
            break
        name = value.producer.operands[0]
    return None


def match(graph: Graph, pattern: Pattern, name: str) -> Iterator[Match]:
    """Yield the matches of a pattern with the value `name`."""
    return _match(graph, pattern, name, Match())


def _match(graph: Graph, pattern: Pattern, name: str | None, found: Match) -> Iterator[Match]:
    if name is None:
        return
    if isinstance(pattern, Capture):
        if pattern.label not in found.values:
            yield Match(found.values | {pattern.label: name}, found.numbers, found.calls, found.nodes)
        elif found.values[pattern.label] == name:
            yield found
    elif isinstance(pattern, Number):
        number = scalar(graph, name)
        if number is not None and pattern.value is None:
            yield _number(found, pattern.label, number)
        elif number is not None and np.float32(number) == np.float32(pattern.value):
            yield found
    elif isinstance(pattern, Either):
        for option in pattern.options:
            yield from _match(graph, option, name, found)
    elif isinstance(pattern, Product):
        yield from _match_product(graph, pattern, name, found)
    else:
        yield from _match_call(graph, pattern, name, found)


def _number(found: Match, label: str, number: float) -> Match:
    return Match(found.values, found.numbers | {label: number}, found.calls, found.nodes)


def _cover(found: Match, nodes: Sequence[Node], label: str = "") -> Match:
    calls = found.calls | {label: nodes[0]} if label else found.calls
    return Match(found.values, found.numbers, calls, (*found.nodes, *nodes))


def _match_call(graph: Graph, pattern: Call, name: str, found: Match) -> Iterator[Match]:
    node = graph.producer(name)
    if node is None or node.op.name != pattern.op:
        return
    if pattern.where is not None and not pattern.where(graph, node):
        return
    for order in _orders(graph, pattern, node):
        yield from _match_all(graph, pattern.operands, order, _cover(found, [node], pattern.label))


def _orders(graph: Graph, pattern: Call, node: Node) -> list[tuple[str | None, ...]]:
    """Return the operand orders of a node in which the producers may match: most nodes have none."""
    if len(node.operands) < len(pattern.operands):
        return []
    operands = node.operands[: len(pattern.operands)]
    orders = [operands] if _may_fit(graph, pattern.operands, operands) else []
    if pattern.op in COMMUTATIVE and operands[0] != operands[1]:
        transposed = operands[::-1]
        orders += [transposed] if _may_fit(graph, pattern.operands, transposed) else []
    return orders


def _may_fit(graph: Graph, patterns: Sequence[Pattern], names: Sequence[str | None]) -> bool:
    """Return False if a pattern is a node and another op computes the value."""
    for pattern, name in zip(patterns, names, strict=True):
        if isinstance(pattern, Call):
            node = graph.producer(name)
            if node is None or node.op.name != pattern.op or (pattern.where and not pattern.where(graph, node)):
                return False
    return True


def _match_all(graph: Graph, patterns: Sequence[Pattern], names: Sequence[str | None], found: Match) -> Iterator[Match]:
    if not patterns:
        yield found
        return
    for first in _match(graph, patterns[0], names[0], found):
        yield from _match_all(graph, patterns[1:], names[1:], first)


def _match_product(graph: Graph, pattern: Product, name: str, found: Match) -> Iterator[Match]:
    number, factors, nodes = _factors(graph, name)
    if not nodes or len(factors) != len(pattern.factors):
        return
    if pattern.number is None:
        found = _number(found, pattern.label, number)
    elif abs(number - pattern.number) > _TWO_ROUNDINGS * abs(pattern.number):
        return
    yield from _assign(graph, pattern.factors, factors, _cover(found, nodes))


def _assign(graph: Graph, patterns: Sequence[Pattern], names: list[str], found: Match) -> Iterator[Match]:
    """Yield the assignments of a different factor to each pattern."""
    if not patterns:
        yield found
        return
    for i, name in enumerate(names):
        if name not in names[:i]:
            for first in _match(graph, patterns[0], name, found):
                yield from _assign(graph, patterns[1:], names[:i] + names[i + 1 :], first)


def _factors(graph: Graph, name: str, depth: int = 0) -> tuple[float, list[str], list[Node]]:
    """Split a value into a number, factors, and the nodes that multiply them; a shared value is one factor."""
    number = scalar(graph, name)
    if number is not None:
        return number, [], []
    node = graph.producer(name)
    if node is None or depth > _MAX_DEPTH or (depth > 0 and graph.only_user(name) is None):
        return 1.0, [name], []
    operands = [o for o in node.operands if o is not None]
    match node.op.name:
        case "mul":
            left, right = (_factors(graph, o, depth + 1) for o in operands)
            return left[0] * right[0], left[1] + right[1], [node, *left[2], *right[2]]
        case "neg":
            number, factors, nodes = _factors(graph, operands[0], depth + 1)
            return -number, factors, [node, *nodes]
        case "div":
            divisor = scalar(graph, operands[1])
            if divisor:
                number, factors, nodes = _factors(graph, operands[0], depth + 1)
                return number / divisor, factors, [node, *nodes]
        case "pow":
            power = scalar(graph, operands[1])
            if power is not None and power in range(1, _MAX_POWER + 1):
                return 1.0, [operands[0]] * int(power), [node]
    return 1.0, [name], []


@dataclass(frozen=True)
class Rule:
    """A pattern and the replacement of its root: `build` returns op, operands and attributes, or None to refuse."""

    pattern: Pattern
    build: Callable[[Graph, Match], tuple[str, Sequence[str | None], dict[str, Any]] | None]

    @cached_property
    def alternatives(self) -> tuple[tuple[Call | Product, frozenset[str]], ...]:
        """The alternatives of its pattern at the root, in order, each with the ops that a match must contain."""
        return tuple((spelling, _needs(spelling)) for spelling in _spellings(self.pattern))


def rewrite(graph: Graph, rules: Sequence[Rule]) -> bool:
    """Replace every closed match of a rule; the first rule that matches wins. Return whether something changed."""
    by_root: dict[str, list[tuple[Pattern, frozenset[str], Rule]]] = {}
    for rule in rules:
        for spelling, needs in rule.alternatives:
            for root in (spelling.op,) if isinstance(spelling, Call) else _FACTORED:
                by_root.setdefault(root, []).append((spelling, needs, rule))
    present = graph.ops
    if not any(root in present and needs <= present for root, rows in by_root.items() for _, needs, _ in rows):
        return False  # nothing can match later either, since only a replacement adds ops
    changed = False
    for node in graph.nodes:
        if node.op.name not in by_root:
            continue
        producers = {source.op.name for operand in node.operands if (source := graph.producer(operand)) is not None}
        for pattern, needs, rule in by_root[node.op.name]:
            if isinstance(pattern, Call) and not pattern.producers <= producers:
                continue
            if needs <= present and (added := _apply(graph, node, pattern, rule)):
                present.add(added.op.name)
                changed = True
                break
    return changed


def _apply(graph: Graph, node: Node, pattern: Pattern, rule: Rule) -> Node | None:
    if isinstance(pattern, Call) and not _orders(graph, pattern, node):
        return None
    for found in match(graph, pattern, node.output):
        if not found.is_closed(graph):
            continue
        built = rule.build(graph, found)
        if built is not None and (added := substitute(graph, node, *built)):
            return added
    return None


def _spellings(pattern: Pattern) -> list[Call | Product]:
    if isinstance(pattern, Either):
        return [spelling for option in pattern.options for spelling in _spellings(option)]
    assert isinstance(pattern, (Call, Product)), "a rule needs a node at its root"
    return [pattern]


def _needs(pattern: Pattern) -> frozenset[str]:
    """Return the ops that every match contains."""
    match pattern:
        case Call():
            return frozenset((pattern.op,)).union(*map(_needs, pattern.operands))
        case Product():
            return frozenset[str]().union(*map(_needs, pattern.factors))
        case Either():
            return frozenset.intersection(*map(_needs, pattern.options))
    return frozenset()


def substitute(
    graph: Graph, node: Node, op: str, operands: Sequence[str | None], attributes: dict[str, Any]
) -> Node | None:
    """Replace a one-output node by another that takes over its output name; return None when their types differ."""
    definition = OPS[op]
    types = [None if o is None else graph.values[o].type for o in operands]
    if not same_type(definition.infer(*types, **attributes), graph.type(node.output)):
        return None
    name = node.output
    added = graph.add(op, operands, name, before=node, **attributes)
    graph.replace(node, added.output)
    graph.rename(added.output, name)
    return added


def replace(graph: Graph, node: Node, name: str) -> bool:
    """Replace a one-output node by an existing value of the same type; return False when their types differ."""
    (output,) = node.outputs
    if name == output or not same_type(graph.type(name), graph.type(output)):
        return False
    graph.replace(node, name)
    return True


def same_type(a: TensorType, b: TensorType) -> bool:
    """Return whether dtype and shape are equal; an unknown dim equals nothing."""
    return a.dtype == b.dtype and a.shape == b.shape and None not in a.shape


def has_known_type(graph: Graph, name: str) -> bool:
    """Return whether a value is a tensor without unknown dims; other values cannot be compared and stay unchanged."""
    return None not in graph.type(name).shape


def is_fixed(graph: Graph, name: str | None, depth: int = 0) -> bool:
    """Return whether a value is a weight, a constant, or a few nodes over weights and constants only."""
    if name is None or graph.values[name].kind in ("weight", "constant"):
        return True
    producer = graph.producer(name)
    if producer is None or not producer.operands or depth > _MAX_FIXED_DEPTH:
        return False
    return all(is_fixed(graph, o, depth + 1) for o in producer.operands)


def is_float(graph: Graph, name: str) -> bool:
    """Return whether a value is a floating-point tensor."""
    return graph.type(name).dtype.kind == "f"


def add_scalar(graph: Graph, number: float, like: str, hint: str) -> str:
    """Add a rank-0 constant in the dtype of `like`."""
    return graph.add_constant(graph.fresh(hint), np.array(number, graph.type(like).dtype.numpy))

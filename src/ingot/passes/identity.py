"""Identities: nodes that change nothing, chains that are one node, and the canonical order of operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot.dim import Dim
from ingot.dtype import DType
from ingot.ir import Graph, Node
from ingot.passes.match import COMMUTATIVE, replace, same_type, scalar, substitute

_BROADCASTING = COMMUTATIVE | frozenset(
    ("sub", "div", "floor_div", "pow", "mod", "less", "less_equal", "greater", "greater_equal", "where")
)


def eliminate_identities(graph: Graph) -> bool:
    """Removes what changes nothing and joins chains; -0.0 + 0 may become -0.0, which is equal."""
    changed = False
    for node in graph.nodes:
        rule = _RULES.get(node.op.name)
        if (rule is not None and rule(graph, node)) or (node.op.name in _BROADCASTING and _drop_expand(graph, node)):
            changed = True
    return changed


def _inner(graph: Graph, node: Node, op: str) -> Node | None:
    """The producer of a node's first operand, when it is `op`."""
    producer = graph.producer(node.operands[0])
    return producer if producer is not None and producer.op.name == op else None


def _same(graph: Graph, node: Node) -> bool:
    assert node.operands[0] is not None
    return replace(graph, node, node.operands[0])


def _reshape(graph: Graph, node: Node) -> bool:
    if _same(graph, node):
        return True
    inner = _inner(graph, node, "reshape")
    if inner is not None:
        return substitute(graph, node, "reshape", inner.operands, node.attributes) is not None
    return _restore_keepdims(graph, node)


def _restore_keepdims(graph: Graph, node: Node) -> bool:
    """reshape(reduce(x, keepdims=False)) that puts the axes back is reduce(x, keepdims=True)."""
    inner = graph.producer(node.operands[0])
    if inner is None or not inner.op.name.startswith("reduce_") or inner.keepdims:
        return False
    assert inner.operands[0] is not None
    shape = [1 if i in inner.axes else d for i, d in enumerate(graph.type(inner.operands[0]).shape)]
    if graph.type(node.output).shape != tuple(shape) or graph.only_user(inner.output) is None:
        return False
    return substitute(graph, node, inner.op.name, inner.operands, inner.attributes | {"keepdims": True}) is not None


def _permute(graph: Graph, node: Node) -> bool:
    if node.axes == tuple(range(len(node.axes))) and _same(graph, node):
        return True
    inner = _inner(graph, node, "permute")
    if inner is None:
        return False
    axes = tuple(inner.axes[a] for a in node.axes)
    return substitute(graph, node, "permute", inner.operands, {"axes": axes}) is not None


def _expand(graph: Graph, node: Node) -> bool:
    if _same(graph, node):
        return True
    inner = _inner(graph, node, "expand")
    return inner is not None and substitute(graph, node, "expand", inner.operands, node.attributes) is not None


def _slice(graph: Graph, node: Node) -> bool:
    assert node.operands[0] is not None
    shape = graph.type(node.operands[0]).shape
    whole = all(
        start == 0 and stop == dim and step == 1
        for start, stop, step, dim in zip(node.starts, node.stops, node.steps, shape, strict=True)
    )
    if whole and _same(graph, node):
        return True
    inner = _inner(graph, node, "slice")
    if inner is None or any(step != 1 for step in (*inner.steps, *node.steps)):
        return False
    starts = tuple(a + b for a, b in zip(inner.starts, node.starts, strict=True))
    stops = tuple(a + b for a, b in zip(inner.starts, node.stops, strict=True))
    attributes = {"starts": starts, "stops": stops, "steps": node.steps}
    return substitute(graph, node, "slice", inner.operands, attributes) is not None


def _pad(graph: Graph, node: Node) -> bool:
    return not any((*node.low, *node.high)) and _same(graph, node)


def _holds(wide: DType, narrow: DType) -> bool:
    """True when every value of `narrow` is a value of `wide`."""
    if narrow is wide or narrow.kind == "b":
        return True
    if wide.kind == "f":
        return wide.itemsize > narrow.itemsize if narrow.kind == "f" else wide.itemsize >= 2 * narrow.itemsize
    if wide.kind == narrow.kind:
        return wide.itemsize >= narrow.itemsize
    return wide.kind == "i" and narrow.kind == "u" and wide.itemsize > narrow.itemsize


def _cast(graph: Graph, node: Node) -> bool:
    if _same(graph, node):
        return True
    inner = _inner(graph, node, "cast")
    if inner is None or inner.operands[0] is None:
        return False
    source = graph.type(inner.operands[0])
    if not _holds(inner.dtype, source.dtype):
        return False
    if source.dtype is node.dtype:
        return replace(graph, node, inner.operands[0])
    return substitute(graph, node, "cast", inner.operands, node.attributes) is not None


def _neutral(right: float, *, commutes: bool) -> Callable[[Graph, Node], bool]:
    """x op `right` is x."""

    def rule(graph: Graph, node: Node) -> bool:
        a, b = node.operands
        assert a is not None and b is not None
        if scalar(graph, b) == right and replace(graph, node, a):
            return True
        return commutes and scalar(graph, a) == right and replace(graph, node, b)

    return rule


def _commutative(neutral: float) -> Callable[[Graph, Node], bool]:
    drop = _neutral(neutral, commutes=True)
    return lambda graph, node: drop(graph, node) or _order(graph, node)


def _order(graph: Graph, node: Node) -> bool:
    """Products of matmul and conv come first, then other activations, weights, constants: epilogues look there."""
    ranks = [_rank(graph, o) for o in node.operands if o is not None]
    if ranks == sorted(ranks):
        return False
    graph.set_operands(node, node.operands[::-1])
    return True


def _rank(graph: Graph, name: str) -> int:
    value = graph.values[name]
    if value.producer is not None and value.producer.op.name in ("matmul", "conv"):
        return 0
    return {"weight": 2, "constant": 3}.get(value.kind, 1)


def _concat(graph: Graph, node: Node) -> bool:
    return len(node.operands) == 1 and _same(graph, node)


def _clip(graph: Graph, node: Node) -> bool:
    return node.minimum == float("-inf") and node.maximum == float("inf") and _same(graph, node)


def _reduce(graph: Graph, node: Node) -> bool:
    return not node.axes and _same(graph, node)


def _logical_and(graph: Graph, node: Node) -> bool:
    return _absorb_bool(graph, node, neutral=True)


def _logical_or(graph: Graph, node: Node) -> bool:
    return _absorb_bool(graph, node, neutral=False)


def _absorb_bool(graph: Graph, node: Node, neutral: bool) -> bool:
    a, b = node.operands
    assert a is not None and b is not None
    for name, other in ((a, b), (b, a)):
        data = graph.data(name)
        if data is not None and (data == neutral).all() and replace(graph, node, other):
            return True
    return False


def _logical_not(graph: Graph, node: Node) -> bool:
    inner = _inner(graph, node, "logical_not")
    return inner is not None and inner.operands[0] is not None and replace(graph, node, inner.operands[0])


def _gather(graph: Graph, node: Node) -> bool:
    """gather of consecutive constant indices is a slice: positional embeddings become a view of their table."""
    source, indices = node.operands
    assert source is not None and indices is not None
    data = graph.data(indices)
    shape = graph.type(source).shape
    length = shape[node.axis]
    shape_out: tuple[Dim, ...] = graph.type(node.output).shape
    if data is None or data.size == 0 or not isinstance(length, int) or None in (*shape, *shape_out):
        return False
    start, stop = int(data.flat[0]), int(data.flat[0]) + data.size
    if start < 0 or stop > length or not np.array_equal(data.ravel(), np.arange(start, stop)):
        return False
    cut = (start, stop, 1)
    ranges = [cut if i == node.axis else (0, d, 1) for i, d in enumerate(shape)]
    starts, stops, steps = zip(*ranges, strict=True)
    rows = graph.add("slice", [source], f"{node.output}.rows", before=node, starts=starts, stops=stops, steps=steps)
    return substitute(graph, node, "reshape", [rows.output], {"shape": shape_out}) is not None


def _drop_expand(graph: Graph, node: Node) -> bool:
    """An expand is dropped where the node broadcasts anyway and its result keeps its shape."""
    for i, name in enumerate(node.operands):
        producer = graph.producer(name)
        if producer is None or producer.op.name != "expand":
            continue
        operands = [producer.operands[0] if j == i else o for j, o in enumerate(node.operands)]
        types = [graph.values[o].type for o in operands if o is not None]
        if same_type(node.op.infer(*types, **node.attributes), graph.type(node.output)):
            graph.set_operands(node, operands)
            return True
    return False


_RULES: dict[str, Callable[[Graph, Node], bool]] = {
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "pad": _pad,
    "cast": _cast,
    "concat": _concat,
    "clip": _clip,
    "gather": _gather,
    "add": _commutative(0.0),
    "mul": _commutative(1.0),
    "sub": _neutral(0.0, commutes=False),
    "div": _neutral(1.0, commutes=False),
    "pow": _neutral(1.0, commutes=False),
    "reduce_sum": _reduce,
    "reduce_mean": _reduce,
    "reduce_max": _reduce,
    "reduce_min": _reduce,
    "reduce_prod": _reduce,
    "logical_and": _logical_and,
    "logical_or": _logical_or,
    "logical_not": _logical_not,
}

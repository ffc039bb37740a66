"""Identities: nodes that change nothing, chains that equal one node, and the canonical order of operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.ir.dim import Dim, Known
from ingot.ir.dtype import DType
from ingot.ir.graph import Graph, Node
from ingot.ops.define import product
from ingot.passes.affine import Affine, Indices
from ingot.passes.match import replace, same_type, scalar, substitute


def eliminate_identities(graph: Graph) -> bool:
    """Remove nodes without effect and merge chains; -0.0 + 0 may become -0.0, which compares equal."""
    changed, expands = False, "expand" in graph.ops
    for node in graph.nodes:
        rule = _RULES.get(node.op.name)
        if rule is not None and rule(graph, node):
            changed, expands = True, "expand" in graph.ops
        elif expands and node.op.acts_on == "element" and _move_expand(graph, node):
            changed = True
    return changed


def _inner(graph: Graph, node: Node, op: str) -> Node | None:
    """Return the producer of a node's first operand, if it is `op`."""
    producer = graph.producer(node.operands[0])
    return producer if producer is not None and producer.op.name == op else None


def _same(graph: Graph, node: Node) -> bool:
    assert node.operands[0] is not None
    return replace(graph, node, node.operands[0])


def _at_rest(graph: Graph, node: Node) -> bool:
    """Remove a dropout outside of training."""
    return node.operands[1] is None and _same(graph, node)


def _reshape(graph: Graph, node: Node) -> bool:
    if _same(graph, node):
        return True
    inner = _inner(graph, node, "reshape")
    if inner is not None:
        return substitute(graph, node, "reshape", inner.operands, node.attributes) is not None
    return _restore_keepdims(graph, node) or _split_permute(graph, node)


def _split_permute(graph: Graph, node: Node) -> bool:
    """Merge a permute with the reshapes around it, which merge leading dims and split them again, into one permute."""
    permute = _inner(graph, node, "permute")
    merge = None if permute is None else _inner(graph, permute, "reshape")
    if permute is None or merge is None or permute.axes[0] != 0:
        return False
    source, merged = (graph.type(str(name)).shape for name in (merge.operands[0], merge.output))
    leading = len(source) - (len(merged) - 1)
    if leading < 1 or source[leading:] != merged[1:]:
        return False
    axes = (*range(leading), *(axis - 1 + leading for axis in permute.axes[1:]))
    return substitute(graph, node, "permute", merge.operands, {"axes": axes}) is not None


def _restore_keepdims(graph: Graph, node: Node) -> bool:
    """Rewrite reshape(reduce(x, keepdims=False)) that puts the axes back to reduce(x, keepdims=True)."""
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
    if axes == tuple(range(len(axes))):
        return replace(graph, node, str(inner.operands[0]))
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
    if _slice_of_concat(graph, node):
        return True
    inner = _inner(graph, node, "slice")
    if inner is None or any(step != 1 for step in (*inner.steps, *node.steps)):
        return False
    starts = tuple(a + b for a, b in zip(inner.starts, node.starts, strict=True))
    stops = tuple(a + b for a, b in zip(inner.starts, node.stops, strict=True))
    attributes = {"starts": starts, "stops": stops, "steps": node.steps}
    return substitute(graph, node, "slice", inner.operands, attributes) is not None


def _slice_of_concat(graph: Graph, node: Node) -> bool:
    """Replace a slice that is exactly one operand of a concat by that operand."""
    concat = _inner(graph, node, "concat")
    if concat is None or set(node.steps) != {1}:
        return False
    start: Dim = 0
    for operand in concat.operands:
        length = graph.type(str(operand)).shape[concat.axis]
        if length is None or start is None:
            return False
        if (start, start + length) == (node.starts[concat.axis], node.stops[concat.axis]):
            return replace(graph, node, str(operand))
        start = start + length
    return False


def _pad(graph: Graph, node: Node) -> bool:
    return not any((*node.low, *node.high)) and _same(graph, node)


def _contains(wide: DType, narrow: DType) -> bool:
    """Return whether every value of `narrow` is a value of `wide`."""
    if narrow is wide or "n" in (wide.kind, narrow.kind) or "s" in (wide.kind, narrow.kind):
        return narrow is wide
    if narrow.kind == "b":
        return True
    if wide.kind == "f":
        return wide.bits > narrow.bits if narrow.kind == "f" else wide.bits >= 2 * narrow.bits
    if wide.kind == narrow.kind:
        return wide.bits >= narrow.bits
    return wide.kind == "i" and narrow.kind == "u" and wide.bits > narrow.bits


def _cast(graph: Graph, node: Node) -> bool:
    if _same(graph, node):
        return True
    inner = _inner(graph, node, "cast")
    if inner is None or inner.operands[0] is None:
        return False
    source = graph.type(inner.operands[0])
    if not _contains(inner.dtype, source.dtype):
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


def _power(graph: Graph, node: Node) -> bool:
    """Rewrite x ** 1 to x, and x ** 2 to a product, which is exact and needs no logarithm."""
    base, exponent = node.operands
    if _neutral(1.0, commutes=False)(graph, node):
        return True
    return scalar(graph, exponent) == 2.0 and substitute(graph, node, "mul", [base, base], {}) is not None


def _commutative(neutral: float) -> Callable[[Graph, Node], bool]:
    drop = _neutral(neutral, commutes=True)
    return lambda graph, node: drop(graph, node) or _order(graph, node)


def _order(graph: Graph, node: Node) -> bool:
    """Order operands as epilogues expect: products of matmul and conv, then other activations, weights, constants."""
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


def _pool(graph: Graph, node: Node) -> bool:
    """Rewrite a pool whose only window is the complete image to a reduction."""
    image = graph.type(str(node.operands[0])).shape[2:]
    if set(graph.type(node.output).shape[2:]) != {1} or set(node.dilations) != {1}:
        return False
    if any(not isinstance(d, int) or k < d + p for d, k, p in zip(image, node.kernel, node.pads, strict=False)):
        return False
    if node.op.name == "avg_pool" and node.count_include_pad and any(node.pads):
        return False
    attributes = {"axes": tuple(range(2, 2 + len(image))), "keepdims": True}
    op = "reduce_mean" if node.op.name == "avg_pool" else "reduce_max"
    return substitute(graph, node, op, node.operands, attributes) is not None


def _where(graph: Graph, node: Node) -> bool:
    return node.operands[1] == node.operands[2] and replace(graph, node, str(node.operands[1]))


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
    """Drop a condition that always holds (for or: never); the other one is expanded to the result's shape."""
    a, b = node.operands
    assert a is not None and b is not None
    shape = graph.type(node.output).shape
    if None in shape:
        return False
    for name, other in ((a, b), (b, a)):
        condition = Indices(graph).condition(name)
        if condition is not None and (condition.always if neutral else condition.never):
            return (
                replace(graph, node, other) or substitute(graph, node, "expand", [other], {"shape": shape}) is not None
            )
    return False


def _logical_not(graph: Graph, node: Node) -> bool:
    inner = _inner(graph, node, "logical_not")
    return inner is not None and inner.operands[0] is not None and replace(graph, node, inner.operands[0])


def _gather(graph: Graph, node: Node) -> bool:
    """Rewrite a gather of consecutive indices to a slice: positional embeddings become a view of their table.

    A gather of the same index everywhere (token types) becomes an expanded slice.
    """
    source, indices = (str(o) for o in node.operands)
    shape, result = graph.type(source).shape, graph.type(node.output).shape
    count = product(graph.type(indices).shape)
    found = Indices(graph).value(indices)
    if found is None or not isinstance(found.constant, int) or found.constant < 0:
        return False
    if count is None or None in (*shape, *result):
        return False
    if found.is_uniform and count != 1:
        return _replace_gather(graph, node, found.constant, 1, is_repeated=True)
    return _is_row_major(graph, indices, found) and _replace_gather(
        graph, node, found.constant, count, is_repeated=False
    )


def _replace_gather(graph: Graph, node: Node, start: int, count: Known, is_repeated: bool) -> bool:
    """Replace a gather by rows start .. start + count of its source, or by one row repeated."""
    source, indices = (str(o) for o in node.operands)
    shape, result = graph.type(source).shape, graph.type(node.output).shape
    if not _may_fit(start + count, shape[node.axis]):
        return False
    if (start, start + count) != (0, shape[node.axis]):
        starts = tuple(start if i == node.axis else 0 for i in range(len(shape)))
        stops = tuple(start + count if i == node.axis else d for i, d in enumerate(shape))
        ranges: dict[str, Any] = {"starts": starts, "stops": stops, "steps": (1,) * len(shape)}
        source = graph.add("slice", [source], f"{node.output}.rows", before=node, **ranges).output
    if not is_repeated:
        return substitute(graph, node, "reshape", [source], {"shape": result}) is not None
    rank = graph.type(indices).rank
    row = (*shape[: node.axis], *(1,) * rank, *shape[node.axis + 1 :])
    source = graph.add("reshape", [source], f"{node.output}.row", before=node, shape=row).output
    return substitute(graph, node, "expand", [source], {"shape": result}) is not None


def _is_row_major(graph: Graph, name: str, found: Affine) -> bool:
    """Return whether a value counts up by one in row-major order."""
    stride: Known = 1
    for dim, coefficient in zip(reversed(graph.type(name).shape), reversed(found.coefficients), strict=True):
        if dim is None or (dim != 1 and coefficient != stride):
            return False
        stride = stride * dim
    return True


def _may_fit(stop: Known, length: Dim) -> bool:
    """Return False if a range certainly exceeds its dim; if only binding can decide, the slice raises the error."""
    assert length is not None
    rest = length - stop
    return not isinstance(rest, int) or rest >= 0


def _move_expand(graph: Graph, node: Node) -> bool:
    """Remove an expand before a node that broadcasts anyway; next to constants of one element, move it behind."""
    for i, name in enumerate(node.operands):
        producer = graph.producer(name)
        if producer is None or producer.op.name != "expand":
            continue
        operands = [producer.operands[0] if j == i else o for j, o in enumerate(node.operands)]
        types = [graph.values[o].type for o in operands if o is not None]
        if same_type(node.op.infer(*types, **node.attributes), graph.type(node.output)):
            graph.set_operands(node, operands)
            expanded = producer.output
            if (
                not graph.values[expanded].users
                and not graph.is_output(expanded)
                and expanded not in graph.measured.values()
            ):
                graph.remove(producer)  # otherwise all passes would run once more to remove it
            return True
        if _is_alone(graph, node, i):
            moved = graph.add(node.op.name, operands, f"{node.output}.narrow", before=node, **node.attributes).output
            return substitute(graph, node, "expand", [moved], {"shape": graph.type(node.output).shape}) is not None
    return False


def _is_alone(graph: Graph, node: Node, index: int) -> bool:
    """Return whether all operands but one are constants of one element, and that operand has the result's shape."""
    shape = graph.type(node.output).shape
    others = [o for i, o in enumerate(node.operands) if i != index]
    return (
        None not in shape
        and graph.type(str(node.operands[index])).shape == shape
        and all(scalar(graph, o) is not None for o in others)
    )


_RULES: dict[str, Callable[[Graph, Node], bool]] = {
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "pad": _pad,
    "cast": _cast,
    "concat": _concat,
    "where": _where,
    "clip": _clip,
    "dropout": _at_rest,
    "avg_pool": _pool,
    "max_pool": _pool,
    "gather": _gather,
    "add": _commutative(0.0),
    "mul": _commutative(1.0),
    "sub": _neutral(0.0, commutes=False),
    "div": _neutral(1.0, commutes=False),
    "pow": _power,
    "reduce_sum": _reduce,
    "reduce_mean": _reduce,
    "reduce_max": _reduce,
    "reduce_min": _reduce,
    "reduce_prod": _reduce,
    "logical_and": _logical_and,
    "logical_or": _logical_or,
    "logical_not": _logical_not,
}

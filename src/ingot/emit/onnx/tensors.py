"""Ops that move, make, pick and reduce elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ingot.emit.onnx.builder import NUMBERS, Pen, tensor
from ingot.emit.onnx.registry import rule
from ingot.errors import UnsupportedError
from ingot.ir.dim import Dim, Expr
from ingot.ir.dtype import bf16, boolean, f32, f64, i16, i32, i64
from ingot.ir.graph import Node
from ingot.load.onnx.registry import INGOT
from ingot.ops.define import evaluate, product

_LAST, _BEFORE_FIRST = 2**63 - 1, -(2**63)  # of a range, as ONNX has them


# ONNX states no rank, and refuses another where a node reads it.
_RANKED = {
    "has_rank": f"""<domain: "{INGOT}"> has_rank <rank> (x) => (y) {{
        s = Shape(x)  n = Size(s)  r = Constant<value_int: int = @rank>()  y = Equal(n, r) }}""",
    "as_rank": f"""<domain: "{INGOT}"> as_rank <rank> (x) => (y) {{ y = Identity(x) }}""",
}


@rule("reshape")
def reshape(pen: Pen, node: Node, x: str) -> str:
    """One dim that is no number is left to ONNX, where no other is 0 and whoever reads it again comes to the same."""
    free = [dim for dim in node.shape if not isinstance(dim, int)]
    if len(free) == 1 and 0 not in node.shape and _follows(pen.type(node, 0).shape, node.shape):
        dims = [dim if isinstance(dim, int) else -1 for dim in node.shape]
        return pen.Reshape(x, np.array(dims, np.int64))
    if None in node.shape:
        raise UnsupportedError(f"a dim that is unknown beside others, {list(node.shape)}, is not supported")
    return pen.Reshape(x, pen.sizes(node.shape), allowzero=1 if free or 0 in node.shape else None)


@rule("has_rank", "as_rank")
def ranked(pen: Pen, node: Node, x: str) -> str:
    """A function that is read again by its name, as the op that it was."""
    return pen.add_all(pen.define(_RANKED[node.op.name]), 1, x, domain=INGOT, rank=node.rank)[0]


@rule("squeeze")
def squeeze(pen: Pen, node: Node, x: str) -> str:
    return pen.Squeeze(x)


def _follows(source: Sequence[Dim], shape: Sequence[Dim]) -> bool:
    """Whether the only dim of a shape that is no number is what elements leave for it, as dims are computed."""
    (free,) = (dim for dim in shape if not isinstance(dim, int))
    elements = product(source)
    return free is None or elements is None or elements // math.prod(d for d in shape if isinstance(d, int)) == free


@rule("permute")
def permute(pen: Pen, node: Node, x: str) -> str:
    return pen.Transpose(x, perm=node.axes) if node.axes else pen.Identity(x)


@rule("slice")
def slice_(pen: Pen, node: Node, x: str) -> str:
    starts, stops, axes, steps = [], [], [], []
    shape = pen.type(node, 0).shape
    for axis, (start, stop, step) in enumerate(zip(node.starts, node.stops, node.steps, strict=True)):
        if (start, stop, step) == (0, shape[axis], 1):
            continue
        axes.append(axis)
        steps.append(step)
        starts.append(start)
        if step > 0 and stop == shape[axis]:
            stops.append(_LAST)
        else:
            stops.append(_BEFORE_FIRST if isinstance(stop, int) and stop < 0 else stop)
    if not axes:
        return pen.Identity(x)
    ends = pen.sizes(stops)
    if any(isinstance(stop, Expr) and step < 0 for stop, step in zip(stops, steps, strict=True)):
        below = pen.And(pen.Less(ends, pen.number(0, i64)), np.array(steps) < 0)
        ends = pen.Where(below, pen.number(_BEFORE_FIRST, i64), ends)
    return pen.Slice(x, pen.sizes(starts), ends, np.array(axes, np.int64), np.array(steps, np.int64))


@rule("concat")
def concat(pen: Pen, node: Node, *xs: str) -> str:
    return pen.Concat(*xs, axis=node.axis)


@rule("expand")
def expand(pen: Pen, node: Node, x: str) -> str:
    """ONNX leaves a dim alone where 1 is asked for."""
    shape = pen.type(node, 0).shape
    given = (None,) * (len(node.shape) - len(shape)) + shape
    return pen.Expand(x, pen.sizes([1 if dim == own else dim for dim, own in zip(node.shape, given, strict=True)]))


@rule("pad")
def pad(pen: Pen, node: Node, x: str) -> str:
    if not node.low:
        return pen.Identity(x)
    return pen.Pad(x, pen.sizes([*node.low, *node.high]), pen.number(node.value, pen.type(node, 0).dtype))


@rule("trilu")
def trilu(pen: Pen, node: Node, x: str) -> str:
    return pen.Trilu(x, pen.number(node.k, i64), upper=node.upper)


@rule("dims")
def dims(pen: Pen, node: Node) -> str:
    return pen.sizes(node.values)


@rule("iota")
def iota(pen: Pen, node: Node) -> str:
    """Floats are computed in float64 and rounded once, which ONNX's Range does not promise."""
    if not any(isinstance(value, Expr) for value in (node.length, node.start, node.step)):
        return pen.constant(evaluate(node, [])[0])
    places = pen.Range(pen.number(0, i64), pen.scalar_size(node.length), pen.number(1, i64))
    wide = f64 if node.dtype.kind == "f" else i64
    places = places if wide is i64 else pen.Cast(places, to=NUMBERS[f64])
    for op, value, neutral in (("Mul", node.step, 1), ("Add", node.start, 0)):
        if isinstance(value, Expr):
            number = pen.scalar_size(value)
            places = getattr(pen, op)(places, number if wide is i64 else pen.Cast(number, to=NUMBERS[f64]))
        elif value != neutral:
            places = getattr(pen, op)(places, pen.number(value, wide))
    return places if wide is node.dtype else pen.Cast(places, to=NUMBERS[node.dtype])


@rule("arange")
def arange(pen: Pen, node: Node, *bounds: str) -> str:
    dtype = pen.type(node, 0).dtype
    if dtype in (f32, f64, i16, i32, i64):
        return pen.Range(*bounds)
    wide = NUMBERS[f64 if dtype.kind == "f" else i64]
    return pen.Cast(pen.Range(*(pen.Cast(bound, to=wide) for bound in bounds)), to=NUMBERS[dtype])


@rule("random_uniform")
def random_uniform(pen: Pen, node: Node) -> str:
    """Its numbers, which no generator of ONNX makes."""
    if not all(isinstance(dim, int) for dim in node.shape):
        raise UnsupportedError(f"random numbers of a symbolic shape, {list(node.shape)}, are not supported")
    return pen.constant(evaluate(node, [])[0])


@rule("draw_uniform")
def draw_uniform(pen: Pen, node: Node, draws: str) -> str:
    """ONNX's own generator, which draws anew in each run, too; the state of Ingot's is no part of the model."""
    if not node.shape:  # of which ONNX's own reference fails
        return pen.Reshape(pen.RandomUniform(shape=[1], dtype=NUMBERS[f64]), np.zeros(0, np.int64))
    if all(isinstance(dim, int) for dim in node.shape):
        return pen.RandomUniform(shape=list(node.shape), dtype=NUMBERS[f64])
    return pen.RandomUniformLike(pen.ConstantOfShape(pen.sizes(node.shape)), dtype=NUMBERS[f64])


@rule("measure")
def measure(pen: Pen, node: Node, sizes: str) -> str:
    return pen.ConstantOfShape(sizes, value=tensor("false", np.array([False])))


@rule("checked_index")
def checked_index(pen: Pen, node: Node, x: str) -> str:
    """A look-up in a table of the numbers below the limit; a negative one that must not count from the end is made one
    that is too large.
    """
    dtype = NUMBERS[pen.type(node, 0).dtype]
    zero, limit, one = (pen.Cast(pen.scalar_size(n), to=dtype) for n in (0, node.limit, 1))
    if not node.wraps:
        x = pen.Where(pen.Less(x, zero), limit, x)
    return pen.Gather(pen.Range(zero, limit, one), x, axis=0)


@rule("gather")
def gather(pen: Pen, node: Node, x: str, indices: str) -> str:
    return pen.Gather(x, indices, axis=node.axis)


@rule("gather_elements")
def gather_elements(pen: Pen, node: Node, x: str, indices: str) -> str:
    return pen.GatherElements(x, indices, axis=node.axis)


@rule("scatter_elements")
def scatter_elements(pen: Pen, node: Node, x: str, indices: str, updates: str) -> str:
    return pen.ScatterElements(x, indices, updates, axis=node.axis, reduction=node.reduction)


@rule("topk")
def topk(pen: Pen, node: Node, x: str) -> tuple[str, ...]:
    return pen.add_all("TopK", 2, x, pen.sizes([node.k]), axis=node.axis, largest=node.largest)


REDUCTIONS = {
    "reduce_sum": "ReduceSum", "reduce_mean": "ReduceMean", "reduce_prod": "ReduceProd", "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
}  # fmt: skip


@rule(*REDUCTIONS)
def reduce(pen: Pen, node: Node, x: str) -> str:
    if not node.axes:
        return pen.Identity(x)
    return getattr(pen, REDUCTIONS[node.op.name])(x, np.array(node.axes, np.int64), keepdims=node.keepdims)


@rule("reduce_over")
def reduce_over(pen: Pen, node: Node, x: str, axes: str) -> str:
    return getattr(pen, REDUCTIONS[f"reduce_{node.kind}"])(x, axes, keepdims=node.keepdims, noop_with_empty_axes=1)


@rule("argmax", "argmin")
def position(pen: Pen, node: Node, x: str) -> str:
    return (pen.ArgMax if node.op.name == "argmax" else pen.ArgMin)(x, axis=node.axis, keepdims=node.keepdims)


@rule("cumsum")
def cumsum(pen: Pen, node: Node, x: str) -> str:
    return pen.CumSum(x, pen.number(node.axis, i64))


@rule("cumprod")
def cumprod(pen: Pen, node: Node, x: str) -> str:
    return pen.CumProd(x, pen.number(node.axis, i64))


@rule("nonzero")
def nonzero(pen: Pen, node: Node, x: str) -> str:
    """A scalar counts as a vector."""
    return pen.NonZero(x if pen.type(node, 0).rank else pen.Reshape(x, np.array([1], np.int64)))


@rule("compress")
def compress(pen: Pen, node: Node, x: str, condition: str) -> str:
    wide = _widened(pen, node, x)
    return _narrowed(pen, node, pen.Compress(wide, condition, axis=node.axis))


@rule("unique")
def unique(pen: Pen, node: Node, x: str) -> tuple[str, ...]:
    wide = _widened(pen, node, x)
    made, *places = pen.add_all("Unique", 4, wide, axis=node.axis, sorted=not node.in_order)
    return (_narrowed(pen, node, made), *places)


def _widened(pen: Pen, node: Node, x: str) -> str:
    """bf16 as f32: some ops that move elements do not take it."""
    return pen.Cast(x, to=NUMBERS[f32]) if pen.type(node, 0).dtype is bf16 else x


def _narrowed(pen: Pen, node: Node, y: str) -> str:
    return pen.Cast(y, to=NUMBERS[bf16]) if pen.type(node, 0).dtype is bf16 else y


@rule("non_max_suppression")
def non_max_suppression(pen: Pen, node: Node, *operands: str) -> str:
    boxes, scores, *limits = operands
    limits = [pen.Reshape(limit, np.array([1], np.int64)) for limit in limits]
    return pen.NonMaxSuppression(boxes, scores, *limits, center_point_box=node.centered)


# -- tables of strings and numbers --------------------------------------------------------------------------------


@rule("string_normalize")
def string_normalize(pen: Pen, node: Node, x: str) -> str:
    return pen.StringNormalizer(
        x,
        case_change_action=node.case.upper(),
        is_case_sensitive=not node.ignore_case,
        stopwords=node.stopwords or None,
    )


@rule("string_split")
def string_split(pen: Pen, node: Node, x: str) -> tuple[str, ...]:
    limit = None if node.limit < 0 else node.limit
    return pen.add_all("StringSplit", 2, x, delimiter=node.delimiter or None, maxsplit=limit)


@rule("regex_full_match")
def regex_full_match(pen: Pen, node: Node, x: str) -> str:
    return pen.RegexFullMatch(x, pattern=node.pattern)


@rule("label_encode")
def label_encode(pen: Pen, node: Node, x: str, keys: str, values: str, default: str) -> str:
    """Each element beside every key: the last one that it equals has its value."""
    dtype = pen.type(node, 0).dtype
    count = pen.type(node, 1).shape[0]
    if count == 0:
        return pen.Expand(default, pen.Shape(x))
    column = pen.Unsqueeze(x, np.array([-1], np.int64))
    found = pen.Equal(column, keys)
    if dtype.kind == "f":
        found = pen.Or(found, pen.And(pen.IsNaN(column), pen.IsNaN(keys)))
    found = pen.Cast(found, to=NUMBERS[i32])
    place = pen.ArgMax(found, axis=-1, keepdims=0, select_last_index=1)
    is_there = pen.Cast(pen.ReduceMax(found, np.array([-1], np.int64), keepdims=0), to=NUMBERS[boolean])
    return pen.Where(is_there, pen.Gather(values, place, axis=0), default)


@rule("tfidf")
def tfidf(pen: Pen, node: Node, x: str) -> str:
    made = pen.TfIdfVectorizer(
        x,
        max_gram_length=node.most,
        max_skip_count=node.skips,
        min_gram_length=node.least,
        mode=node.mode.upper(),
        ngram_counts=node.starts,
        ngram_indexes=node.places,
        pool_int64s=node.integers or None,
        pool_strings=node.strings or None,
        weights=node.weights or None,
    )
    return made if node.dtype is f32 else pen.Cast(made, to=NUMBERS[node.dtype])

"""ONNX rules of ops that move, create, select and reduce elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ingot.emit.onnx.builder import NUMBERS, Builder, tensor
from ingot.emit.onnx.registry import rule
from ingot.errors import UnsupportedError
from ingot.ir.dim import Dim, Expr
from ingot.ir.dtype import bf16, boolean, f32, f64, i16, i32, i64
from ingot.ir.graph import Node
from ingot.load.onnx.registry import INGOT
from ingot.ops.define import evaluate, product

_LAST, _BEFORE_FIRST = 2**63 - 1, -(2**63)  # of a slice, in ONNX


# ONNX has no op for a rank, and rejects a wrong one where a node reads it.
_RANKED = {
    "has_rank": f"""<domain: "{INGOT}"> has_rank <rank> (x) => (y) {{
        s = Shape(x)  n = Size(s)  r = Constant<value_int: int = @rank>()  y = Equal(n, r) }}""",
    "as_rank": f"""<domain: "{INGOT}"> as_rank <rank> (x) => (y) {{ y = Identity(x) }}""",
}


@rule("reshape")
def reshape(builder: Builder, node: Node, x: str) -> str:
    """Reshape; one symbolic dim is written as -1 if no other dim is 0 and ONNX shape inference gives the same dim."""
    free = [dim for dim in node.shape if not isinstance(dim, int)]
    if len(free) == 1 and 0 not in node.shape and _follows(builder.type(node, 0).shape, node.shape):
        dims = [dim if isinstance(dim, int) else -1 for dim in node.shape]
        return builder.Reshape(x, np.array(dims, np.int64))
    if None in node.shape:
        raise UnsupportedError(f"an unknown dim among others, {list(node.shape)}, is not supported")
    return builder.Reshape(x, builder.sizes(node.shape), allowzero=1 if free or 0 in node.shape else None)


@rule("has_rank", "as_rank")
def ranked(builder: Builder, node: Node, x: str) -> str:
    """A function that the importer recognises by name as the original op."""
    return builder.add_all(builder.define(_RANKED[node.op.name]), 1, x, domain=INGOT, rank=node.rank)[0]


@rule("squeeze")
def squeeze(builder: Builder, node: Node, x: str) -> str:
    return builder.Squeeze(x)


def _follows(source: Sequence[Dim], shape: Sequence[Dim]) -> bool:
    """Return whether the only symbolic dim of a shape equals the number of elements divided by the others."""
    (free,) = (dim for dim in shape if not isinstance(dim, int))
    elements = product(source)
    return free is None or elements is None or elements // math.prod(d for d in shape if isinstance(d, int)) == free


@rule("permute")
def permute(builder: Builder, node: Node, x: str) -> str:
    return builder.Transpose(x, perm=node.axes) if node.axes else builder.Identity(x)


@rule("slice")
def slice_(builder: Builder, node: Node, x: str) -> str:
    starts, stops, axes, steps = [], [], [], []
    shape = builder.type(node, 0).shape
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
        return builder.Identity(x)
    ends = builder.sizes(stops)
    if any(isinstance(stop, Expr) and step < 0 for stop, step in zip(stops, steps, strict=True)):
        below = builder.And(builder.Less(ends, builder.number(0, i64)), np.array(steps) < 0)
        ends = builder.Where(below, builder.number(_BEFORE_FIRST, i64), ends)
    return builder.Slice(x, builder.sizes(starts), ends, np.array(axes, np.int64), np.array(steps, np.int64))


@rule("concat")
def concat(builder: Builder, node: Node, *xs: str) -> str:
    return builder.Concat(*xs, axis=node.axis)


@rule("expand")
def expand(builder: Builder, node: Node, x: str) -> str:
    """ONNX keeps a dim where 1 is requested."""
    shape = builder.type(node, 0).shape
    given = (None,) * (len(node.shape) - len(shape)) + shape
    return builder.Expand(
        x, builder.sizes([1 if dim == own else dim for dim, own in zip(node.shape, given, strict=True)])
    )


@rule("pad")
def pad(builder: Builder, node: Node, x: str) -> str:
    if not node.low:
        return builder.Identity(x)
    return builder.Pad(
        x, builder.sizes([*node.low, *node.high]), builder.number(node.value, builder.type(node, 0).dtype)
    )


@rule("trilu")
def trilu(builder: Builder, node: Node, x: str) -> str:
    return builder.Trilu(x, builder.number(node.k, i64), upper=node.upper)


@rule("dims")
def dims(builder: Builder, node: Node) -> str:
    return builder.sizes(node.values)


@rule("iota")
def iota(builder: Builder, node: Node) -> str:
    """Floats are computed in float64 and rounded once, which ONNX's Range does not guarantee."""
    if not any(isinstance(value, Expr) for value in (node.length, node.start, node.step)):
        return builder.constant(evaluate(node, [])[0])
    indices = builder.Range(builder.number(0, i64), builder.scalar_size(node.length), builder.number(1, i64))
    wide = f64 if node.dtype.kind == "f" else i64
    indices = indices if wide is i64 else builder.Cast(indices, to=NUMBERS[f64])
    for op, value, neutral in (("Mul", node.step, 1), ("Add", node.start, 0)):
        if isinstance(value, Expr):
            number = builder.scalar_size(value)
            indices = getattr(builder, op)(indices, number if wide is i64 else builder.Cast(number, to=NUMBERS[f64]))
        elif value != neutral:
            indices = getattr(builder, op)(indices, builder.number(value, wide))
    return indices if wide is node.dtype else builder.Cast(indices, to=NUMBERS[node.dtype])


@rule("arange")
def arange(builder: Builder, node: Node, *bounds: str) -> str:
    dtype = builder.type(node, 0).dtype
    if dtype in (f32, f64, i16, i32, i64):
        return builder.Range(*bounds)
    wide = NUMBERS[f64 if dtype.kind == "f" else i64]
    return builder.Cast(builder.Range(*(builder.Cast(bound, to=wide) for bound in bounds)), to=NUMBERS[dtype])


@rule("random_uniform")
def random_uniform(builder: Builder, node: Node) -> str:
    """The generator's numbers, which no ONNX op produces."""
    if not all(isinstance(dim, int) for dim in node.shape):
        raise UnsupportedError(f"random numbers of a symbolic shape, {list(node.shape)}, are not supported")
    return builder.constant(evaluate(node, [])[0])


@rule("draw_uniform")
def draw_uniform(builder: Builder, node: Node, draws: str) -> str:
    """ONNX's own generator, which also draws anew in each run; Ingot's generator state is not exported."""
    if not node.shape:  # ONNX's reference implementation fails for it
        return builder.Reshape(builder.RandomUniform(shape=[1], dtype=NUMBERS[f64]), np.zeros(0, np.int64))
    if all(isinstance(dim, int) for dim in node.shape):
        return builder.RandomUniform(shape=list(node.shape), dtype=NUMBERS[f64])
    return builder.RandomUniformLike(builder.ConstantOfShape(builder.sizes(node.shape)), dtype=NUMBERS[f64])


@rule("measure")
def measure(builder: Builder, node: Node, sizes: str) -> str:
    return builder.ConstantOfShape(sizes, value=tensor("false", np.array([False])))


@rule("checked_index")
def checked_index(builder: Builder, node: Node, x: str) -> str:
    """Look indices up in a table of the numbers below the limit.

    A negative index that must not count from the end is replaced with one that is too large.
    """
    dtype = NUMBERS[builder.type(node, 0).dtype]
    zero, limit, one = (builder.Cast(builder.scalar_size(n), to=dtype) for n in (0, node.limit, 1))
    if not node.wraps:
        x = builder.Where(builder.Less(x, zero), limit, x)
    return builder.Gather(builder.Range(zero, limit, one), x, axis=0)


@rule("gather")
def gather(builder: Builder, node: Node, x: str, indices: str) -> str:
    return builder.Gather(x, indices, axis=node.axis)


@rule("gather_elements")
def gather_elements(builder: Builder, node: Node, x: str, indices: str) -> str:
    return builder.GatherElements(x, indices, axis=node.axis)


@rule("scatter_elements")
def scatter_elements(builder: Builder, node: Node, x: str, indices: str, updates: str) -> str:
    return builder.ScatterElements(x, indices, updates, axis=node.axis, reduction=node.reduction)


@rule("topk")
def topk(builder: Builder, node: Node, x: str) -> tuple[str, ...]:
    return builder.add_all("TopK", 2, x, builder.sizes([node.k]), axis=node.axis, largest=node.largest)


@rule("repeated_ngrams")
def repeated_ngrams(builder: Builder, node: Node, tokens: str) -> str:
    """Find the scores that NGramRepeatBlock of com.microsoft replaces in a matrix of zeros."""
    shape = builder.graph.type(node.output).shape
    zeros = builder.Expand(builder.number(0, f32), builder.sizes(shape))
    i64_tokens = tokens if builder.type(node, 0).dtype is i64 else builder.Cast(tokens, to=NUMBERS[i64])
    return builder.IsInf(builder.NGramRepeatBlock(i64_tokens, zeros, domain="com.microsoft", ngram_size=node.size))


REDUCTIONS = {
    "reduce_sum": "ReduceSum", "reduce_mean": "ReduceMean", "reduce_prod": "ReduceProd", "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
}  # fmt: skip


@rule(*REDUCTIONS)
def reduce(builder: Builder, node: Node, x: str) -> str:
    if not node.axes:
        return builder.Identity(x)
    return getattr(builder, REDUCTIONS[node.op.name])(x, np.array(node.axes, np.int64), keepdims=node.keepdims)


@rule("reduce_over")
def reduce_over(builder: Builder, node: Node, x: str, axes: str) -> str:
    return getattr(builder, REDUCTIONS[f"reduce_{node.kind}"])(x, axes, keepdims=node.keepdims, noop_with_empty_axes=1)


@rule("argmax", "argmin")
def position(builder: Builder, node: Node, x: str) -> str:
    return (builder.ArgMax if node.op.name == "argmax" else builder.ArgMin)(x, axis=node.axis, keepdims=node.keepdims)


@rule("cumsum")
def cumsum(builder: Builder, node: Node, x: str) -> str:
    return builder.CumSum(x, builder.number(node.axis, i64))


@rule("cumprod")
def cumprod(builder: Builder, node: Node, x: str) -> str:
    return builder.CumProd(x, builder.number(node.axis, i64))


@rule("nonzero")
def nonzero(builder: Builder, node: Node, x: str) -> str:
    """A scalar is treated as a vector."""
    return builder.NonZero(x if builder.type(node, 0).rank else builder.Reshape(x, np.array([1], np.int64)))


@rule("compress")
def compress(builder: Builder, node: Node, x: str, condition: str) -> str:
    wide = _widened(builder, node, x)
    return _narrowed(builder, node, builder.Compress(wide, condition, axis=node.axis))


@rule("unique")
def unique(builder: Builder, node: Node, x: str) -> tuple[str, ...]:
    wide = _widened(builder, node, x)
    unique, *indices = builder.add_all("Unique", 4, wide, axis=node.axis, sorted=not node.in_order)
    return (_narrowed(builder, node, unique), *indices)


def _widened(builder: Builder, node: Node, x: str) -> str:
    """bf16 as f32: some ONNX ops that move elements do not support it."""
    return builder.Cast(x, to=NUMBERS[f32]) if builder.type(node, 0).dtype is bf16 else x


def _narrowed(builder: Builder, node: Node, y: str) -> str:
    return builder.Cast(y, to=NUMBERS[bf16]) if builder.type(node, 0).dtype is bf16 else y


@rule("non_max_suppression")
def non_max_suppression(builder: Builder, node: Node, *operands: str) -> str:
    boxes, scores, *limits = operands
    limits = [builder.Reshape(limit, np.array([1], np.int64)) for limit in limits]
    return builder.NonMaxSuppression(boxes, scores, *limits, center_point_box=node.centered)


# -- tables of strings and numbers --------------------------------------------------------------------------------


@rule("string_normalize")
def string_normalize(builder: Builder, node: Node, x: str) -> str:
    return builder.StringNormalizer(
        x,
        case_change_action=node.case.upper(),
        is_case_sensitive=not node.ignore_case,
        stopwords=node.stopwords or None,
    )


@rule("string_split")
def string_split(builder: Builder, node: Node, x: str) -> tuple[str, ...]:
    limit = None if node.limit < 0 else node.limit
    return builder.add_all("StringSplit", 2, x, delimiter=node.delimiter or None, maxsplit=limit)


@rule("regex_full_match")
def regex_full_match(builder: Builder, node: Node, x: str) -> str:
    return builder.RegexFullMatch(x, pattern=node.pattern)


@rule("label_encode")
def label_encode(builder: Builder, node: Node, x: str, keys: str, values: str, default: str) -> str:
    """Compare each element with every key; the last equal key has its value."""
    dtype = builder.type(node, 0).dtype
    count = builder.type(node, 1).shape[0]
    if count == 0:
        return builder.Expand(default, builder.Shape(x))
    column = builder.Unsqueeze(x, np.array([-1], np.int64))
    found = builder.Equal(column, keys)
    if dtype.kind == "f":
        found = builder.Or(found, builder.And(builder.IsNaN(column), builder.IsNaN(keys)))
    found = builder.Cast(found, to=NUMBERS[i32])
    index = builder.ArgMax(found, axis=-1, keepdims=0, select_last_index=1)
    is_there = builder.Cast(builder.ReduceMax(found, np.array([-1], np.int64), keepdims=0), to=NUMBERS[boolean])
    return builder.Where(is_there, builder.Gather(values, index, axis=0), default)


@rule("tfidf")
def tfidf(builder: Builder, node: Node, x: str) -> str:
    counts = builder.TfIdfVectorizer(
        x,
        max_gram_length=node.most,
        max_skip_count=node.skips,
        min_gram_length=node.least,
        mode=node.mode.upper(),
        ngram_counts=node.starts,
        ngram_indexes=node.columns,
        pool_int64s=node.integers or None,
        pool_strings=node.strings or None,
        weights=node.weights or None,
    )
    return counts if node.dtype is f32 else builder.Cast(counts, to=NUMBERS[node.dtype])

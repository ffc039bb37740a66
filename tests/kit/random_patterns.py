"""What random graphs are made of: single nodes of every op, and rows normalised in the spellings that models have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from ingot.ir.dtype import DType, boolean, f32, f64, from_numpy, i8, i32, i64, u8
from ingot.ir.graph import OPS
from ingot.ops.define import draw
from random_growth import Growth, Refused

Pattern = Callable[[Growth], object]

_UNARY = [op for op in OPS.values() if op.operand_names == ("x",) and op.name != "cast" and op.samples]
_UNARY = [op for op in _UNARY if {s.operands for s in op.samples} >= {"x[2,5,7]", "x[67]"}]
_SAMPLED = [op for op in OPS.values() if op.samples and not any(":string" in s.operands for s in op.samples)]
_ARITHMETIC = ("add", "add", "sub", "mul", "mul", "div", "maximum", "minimum", "pow", "mod", "floor_div")
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_CASTS = (f32, f32, f32, i64, i64, i32, boolean, boolean, f64, u8, i8)
_ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh")


# -- one node -----------------------------------------------------------------------------------------------------


def sampled(g: Growth) -> str:
    """An op with the operands and attributes of one of its samples. All ops take turns, graph after graph."""
    op = _SAMPLED[g.turn % len(_SAMPLED)]
    g.turn += 1
    sample = g.choose(op.samples)
    operands = []
    for data in draw(sample.operands, g.rng, op.domain):
        if data is None:
            operands.append(None)
        elif data.size and g.chance(0.6):
            operands.append(g.operand(from_numpy(data.dtype), data.shape, (float(data.min()), float(data.max()))))
        else:
            operands.append(g.leaf(data))
    return g.add(op.name, *operands, **sample.attributes)


def any_dtype(g: Growth) -> DType:
    """The dtype of some value there is."""
    return g.graph.type(g.choose(g.pool)).dtype if g.pool else i64


def unary(g: Growth) -> str:
    op = g.choose(_UNARY)
    kinds = g.choose(op.samples)
    dtype = i64 if ":i64" in kinds.operands else f32
    name = g.add(op.name, g.fit(g.pick(dtype), op.domain), **kinds.attributes)
    return g.decompose(name) if g.chance(0.25) else name


def broadcastable(g: Growth, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts with another: equal, fewer dims, ones, or with more dims in front."""
    kept = list(shape)
    if g.chance(0.5):
        kept = [1 if g.chance(0.4) else d for d in kept]
        kept = kept[int(g.rng.integers(len(kept) + 1)) :]
    if g.chance(0.06) and len(kept) < 4:
        kept = [int(g.rng.integers(1, 4)), *kept]
    return tuple(kept)


def binary(g: Growth) -> str:
    op = g.choose(_ARITHMETIC)
    dtype = f32 if g.chance(0.75) or op == "pow" else any_dtype(g)
    a = g.pick(dtype)
    bounds = (0.3, 3.0) if op in ("div", "mod", "floor_div") else (-2.0, 2.0)
    if op == "pow":
        a = g.fit(a, (0.1, 3.0))
    if dtype.kind != "f":
        bounds = (1, 7) if op in ("div", "mod", "floor_div") else (-5, 5)
    b = a if g.chance(0.05) else g.operand(dtype, broadcastable(g, g.dims(a)), bounds)
    if b == a:
        b = g.fit(a, bounds)
    return g.add(op, *((b, a) if op in ("add", "sub", "mul", "maximum") and g.chance(0.3) else (a, b)))


def scaled(g: Growth) -> str:
    """Arithmetic with a scalar, the identities among them."""
    op, value = g.choose(
        [("mul", 0.5), ("mul", 1.0), ("add", 0.0), ("add", 1.5), ("div", 2.0), ("sub", 1.0), ("pow", 2.0)]
    )
    x = g.pick()
    return g.add(op, g.fit(x, (0.1, 30.0)) if op == "pow" else x, g.scalar(value))


def compare(g: Growth) -> str:
    dtype = g.choose((f32, i64, boolean, any_dtype(g)))
    a = g.pick(dtype)
    return g.add(g.choose(_COMPARISONS), a, g.operand(dtype, broadcastable(g, g.dims(a))))


def logic(g: Growth) -> str:
    a = g.pick(boolean)
    if g.chance(0.3):
        return g.add("logical_not", a)
    other = g.operand(boolean, broadcastable(g, g.dims(a)))
    return g.add(g.choose(("logical_and", "logical_or", "logical_xor")), a, other)


def where(g: Growth) -> str:
    dtype = g.choose((f32, f32, f32, i64, boolean))
    condition = g.pick(boolean)
    a = g.operand(dtype, broadcastable(g, g.dims(condition)))
    b = g.operand(dtype, broadcastable(g, g.choose((g.dims(condition), g.dims(a)))))
    return g.add("where", condition, a, b)


def cast(g: Growth) -> str:
    return g.add("cast", g.pick(g.choose((f32, i64, i32, boolean, any_dtype(g)))), dtype=g.choose(_CASTS))


def reduce(g: Growth) -> str:
    x = g.pick(g.choose((f32, f32, f32, i64)), 1)
    op = g.choose(
        ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin", "cumsum")
    )
    rank, keepdims = len(g.dims(x)), g.chance(0.5)
    axis = int(g.rng.integers(rank))
    if op == "cumsum":
        return g.add(op, x, axis=axis)
    if op.startswith("arg"):
        return g.add(op, x, axis=axis, keepdims=keepdims)
    axes = tuple(a for a in range(rank) if a == axis or g.chance(0.3))
    return g.add(op, g.fit(x, (0.5, 1.5)) if op == "reduce_prod" else x, axes=axes, keepdims=keepdims)


# -- moving elements ----------------------------------------------------------------------------------------------


def regrouped(g: Growth, size: int) -> tuple[int, ...]:
    """Random dims of a product."""
    dims: list[int] = []
    while size > 1 and len(dims) < 4:
        divisors = [d for d in range(2, min(size, 70) + 1) if size % d == 0]
        factor = int(g.choose(divisors)) if divisors and len(dims) < 3 else size
        dims.append(factor)
        size //= factor
    dims += [size] if size != 1 or g.chance(0.3) else []
    if g.chance(0.2):
        dims.insert(int(g.rng.integers(len(dims) + 1)), 1)
    return tuple(int(d) for d in g.rng.permutation(dims))


def anything(g: Growth, rank: int = 0) -> str:
    return g.pick(g.choose((f32, f32, f32, i64, boolean, any_dtype(g))), rank)


def reshape(g: Growth) -> str:
    x = anything(g)
    return g.add("reshape", x, shape=regrouped(g, math.prod(g.dims(x))))


def permute(g: Growth) -> str:
    x = anything(g, 2)
    return g.add("permute", x, axes=tuple(int(a) for a in g.rng.permutation(len(g.dims(x)))))


def slice_(g: Growth) -> str:
    x = anything(g, 1)
    starts, stops, steps = [], [], []
    for dim in g.dims(x):
        low, high = sorted(int(v) for v in g.rng.integers(0, dim + 1, 2)) if g.chance(0.5) else (0, dim)
        step = int(g.choose((1, 1, 1, 2, 3, -1, -2)))
        if step < 0 and high > low:
            low, high = high - 1, low - 1
        elif step < 0:
            step = 1
        starts.append(low), stops.append(high), steps.append(step)
    return g.add("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def concat(g: Growth) -> str:
    x = anything(g, 1)
    dims = list(g.dims(x))
    axis = int(g.rng.integers(len(dims)))
    parts = [x]
    for _ in range(int(g.rng.integers(0, 3))):
        dims[axis] = g.choose((dims[axis], int(g.rng.integers(1, 6))))
        parts.append(x if g.chance(0.1) else g.operand(g.graph.type(x).dtype, tuple(dims)))
    if any(
        g.dims(part)[:axis] + g.dims(part)[axis + 1 :] != g.dims(x)[:axis] + g.dims(x)[axis + 1 :] for part in parts
    ):
        raise Refused
    return g.add("concat", *[parts[int(i)] for i in g.rng.permutation(len(parts))], axis=axis)


def split(g: Growth) -> list[str]:
    """Slices that together are a value."""
    x = anything(g, 1)
    dims = g.dims(x)
    axis = int(g.rng.integers(len(dims)))
    inner = sorted({int(v) for v in g.rng.integers(0, dims[axis] + 1, int(g.rng.integers(1, 3)))})
    edges = [0, *inner, dims[axis]]
    return [cut(g, x, axis, low, high) for low, high in itertools.pairwise(edges)]


def cut(g: Growth, x: str, axis: int, low: int, high: int) -> str:
    """x[low:high] on one axis."""
    starts, stops = [0] * len(g.dims(x)), list(g.dims(x))
    starts[axis], stops[axis] = low, high
    return g.add("slice", x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(starts))


def expand(g: Growth) -> str:
    x = anything(g)
    wanted = tuple(g.dim() if d == 1 else d for d in g.dims(x))
    return g.add("expand", x, shape=(*[g.dim()] * int(g.chance(0.4)), *wanted))


def pad(g: Growth) -> str:
    x = anything(g)
    low, high = (tuple(int(v) for v in g.rng.choice((0, 0, 1, 2), len(g.dims(x)))) for _ in range(2))
    value = {"f": g.choose((0.0, -1.5)), "i": 3, "u": 3, "b": True}[g.graph.type(x).dtype.kind]
    return g.add("pad", x, low=low, high=high, value=value)


def trilu(g: Growth) -> str:
    return g.add("trilu", anything(g, 2), k=int(g.rng.integers(-2, 3)), upper=g.chance(0.5))


def gather(g: Growth) -> str:
    x = anything(g, 1)
    axis = int(g.rng.integers(len(g.dims(x))))
    size = g.dims(x)[axis]
    if not size:
        raise Refused
    return g.add("gather", x, g.operand(g.choose((i64, i64, i32)), g.shape(0, 2), (-size, size - 1)), axis=axis)


def topk(g: Growth) -> str:
    x = g.pick(g.choose((f32, i64)), 1)
    axis = int(g.rng.integers(len(g.dims(x))))
    return g.add("topk", x, k=int(g.rng.integers(g.dims(x)[axis] + 1)), axis=axis, largest=g.chance(0.5))


def iota(g: Growth) -> str:
    dtype = g.choose((f32, i64))
    start, step = (int(v) for v in g.rng.integers(-2, 3, 2))
    return g.add("iota", length=g.dim(), start=start, step=step, dtype=dtype)


# -- rows ---------------------------------------------------------------------------------------------------------


def norm(g: Growth) -> str:
    x = g.pick(f32, 1)
    op, width = g.choose(("layer_norm", "rms_norm")), g.dims(x)[-1]
    weights = [g.weight(width) if g.chance(0.7) else None for _ in range(1 if op == "rms_norm" else 2)]
    name = g.add(op, x, *weights, eps=g.choose((1e-5, 1e-3)))
    return g.decompose(name) if g.chance(0.4) else name


def spelled_norm(g: Growth) -> str:
    """A layer or RMS norm as models write it."""
    x = g.pick(f32, 1)
    last = len(g.dims(x)) - 1
    centred = g.add("sub", x, g.add("reduce_mean", x, axes=(last,), keepdims=True)) if g.chance(0.6) else x
    square = g.add("mul", centred, centred) if g.chance(0.5) else g.add("pow", centred, g.scalar(2.0))
    variance = g.add("add", g.add("reduce_mean", square, axes=(last,), keepdims=True), g.scalar(1e-3))
    if g.chance(0.5):
        normal = g.add("mul", centred, g.add("rsqrt", variance))
    else:
        normal = g.add("div", centred, g.add("sqrt", variance))
    if g.chance(0.7):
        normal = g.add(
            "mul", *((normal, g.weight(g.dims(x)[-1])) if g.chance(0.5) else (g.weight(g.dims(x)[-1]), normal))
        )
    return g.add("add", normal, g.weight(g.dims(x)[-1])) if g.chance(0.6) else normal


def softmax(g: Growth) -> str:
    x = g.fit(g.pick(f32, 1), (-20.0, 20.0))
    axis = len(g.dims(x)) - 1 if g.chance(0.7) else int(g.rng.integers(len(g.dims(x))))
    if g.chance(0.5):
        return spelled_softmax(g, x, axis)
    name = g.add(g.choose(("softmax", "log_softmax")), x, axis=axis)
    return g.decompose(name) if g.chance(0.3) else name


def spelled_softmax(g: Growth, x: str, axis: int) -> str:
    shifted = g.add("sub", x, g.add("reduce_max", x, axes=(axis,), keepdims=True))
    power = g.add("exp", shifted)
    total = g.add("reduce_sum", power, axes=(axis,), keepdims=True)
    return g.add("div", power, total) if g.chance(0.7) else g.add("mul", power, g.add("reciprocal", total))


def activation(g: Growth, x: str) -> str:
    """An activation of a value, as one op or spelled."""
    op = g.choose(_ACTIVATIONS)
    name = g.add(op, x, **({"approximate": g.choose(("erf", "tanh"))} if op == "gelu" else {}))
    return g.decompose(name) if op in ("gelu", "silu") and g.chance(0.5) else name


def activated(g: Growth) -> str:
    return activation(g, g.pick())


def rounded(g: Growth, x: str) -> str:
    """Through codes and back, in steps that are one for all."""
    dtype, step = g.choose((u8, i8)), g.scalar(g.choose((0.02, 0.03125, 0.11)))
    steps = {"axis": 0, "block": 0}
    zero = g.scalar(g.choose((0, 3, 100)), dtype)
    codes = g.add("quantize", x, step, zero, **steps, dtype=dtype, precision=f32)
    return g.add("dequantize", codes, step, zero, **steps, dtype=f32)


def rounded_gate(g: Growth) -> str:
    """Element-wise nodes between codes, which join what broadcasts to them."""
    x = rounded(g, g.fit(g.pick(), (-6.0, 6.0)))
    for _ in range(g.choose((1, 1, 2))):
        gate = activation(g, x)
        x = g.add("mul", x, gate) if g.chance(0.4) else gate
        if g.chance(0.6):
            y = g.operand(f32, broadcastable(g, g.dims(x)))
            x = g.add(g.choose(("add", "mul", "sub")), x, rounded(g, y) if g.chance(0.6) else y)
        x = rounded(g, x) if g.chance(0.3) else x
    return rounded(g, x)


NODES: list[tuple[Pattern, float]] = [
    (sampled, 40), (unary, 9), (binary, 10), (scaled, 4), (compare, 3), (logic, 2), (where, 3), (cast, 3),
    (reduce, 7), (reshape, 5), (permute, 5), (slice_, 5), (concat, 5), (split, 3), (expand, 3), (pad, 3), (trilu, 1),
    (gather, 3), (topk, 1), (iota, 1), (norm, 4), (spelled_norm, 3), (softmax, 5), (activated, 3), (rounded_gate, 3),
]  # fmt: skip

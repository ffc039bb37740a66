"""What random graphs are made of: single nodes of every op, and the spellings that models have for larger things."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from ingot.dtype import boolean, f32, i32, i64
from ingot.ir import OPS
from ingot.ops.define import draw
from random_growth import Growth, Refused

Pattern = Callable[[Growth], object]

_UNARY = [op for op in OPS.values() if op.operand_names == ("x",) and op.name != "cast"]
_UNARY = [op for op in _UNARY if {s.operands for s in op.samples} >= {"x[2,5,7]", "x[67]"}]
_ARITHMETIC = ("add", "add", "sub", "mul", "mul", "div", "maximum", "minimum", "pow", "mod", "floor_div")
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh")


# -- one node -----------------------------------------------------------------------------------------------------


def sampled(g: Growth) -> str:
    """Any op with the operands and attributes of one of its samples."""
    op = g.choose(list(OPS.values()))
    sample = g.choose(op.samples)
    operands = []
    for data in draw(sample.operands, g.rng, op.domain):
        if data is None:
            operands.append(None)
        elif data.size and g.chance(0.6):
            dtype = next(d for d in (f32, i64, i32, boolean) if d.numpy == data.dtype)
            operands.append(g.operand(dtype, data.shape, (float(data.min()), float(data.max()))))
        else:
            operands.append(g.leaf(data))
    return g.add(op.name, *operands, **sample.attributes)


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
    dtype = f32 if g.chance(0.8) or op == "pow" else i64
    a = g.pick(dtype)
    bounds = (0.3, 3.0) if op in ("div", "mod", "floor_div") else (-2.0, 2.0)
    if op == "pow":
        a = g.fit(a, (0.1, 3.0))
    if dtype is i64:
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
    dtype = g.choose((f32, i64, boolean))
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
    return g.add("cast", g.pick(g.choose((f32, i64, i32, boolean))), dtype=g.choose((f32, f32, i64, i32, boolean)))


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
    return g.pick(g.choose((f32, f32, f32, i64, boolean)), rank)


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
    value = {"f": g.choose((0.0, -1.5)), "i": 3, "b": True}[g.graph.type(x).dtype.kind]
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


# -- products -----------------------------------------------------------------------------------------------------


def linear_weight(g: Growth, k: int, n: int) -> tuple[str, bool]:
    """A weight [k, n], or [n, k] to be transposed by the matmul; drawn so that results stay near 1."""
    bound = 2 / math.sqrt(max(k, 1))
    found = [w for w in g.known(f32, 2) if g.dims(w) in ((k, n), (n, k)) and g.exact[w].max(initial=0) <= 2]
    if found and g.chance(0.3):
        w = g.choose(found)
        return w, g.dims(w) != (k, n)
    if g.chance(0.4):
        return g.weight(k, n, bounds=(-bound, bound)), False
    w = g.weight(n, k, bounds=(-bound, bound))
    return (w, True) if g.chance(0.5) else (g.add("permute", w, axes=(1, 0)), False)


def product(g: Growth, x: str, n: int) -> str:
    """x @ w for x [..., k] and a weight of n columns."""
    w, transpose = linear_weight(g, g.dims(x)[-1], n)
    return g.add("matmul", x, w, transpose_b=transpose, scale=g.choose((1.0, 1.0, 1.0, 0.5)))


def biased(g: Growth, y: str) -> str:
    n = g.dims(y)[-1]
    b = g.weight(n) if g.chance(0.8) else g.operand(f32, g.choose(((n,), (1, n), (1,), ())))
    return g.add("add", *((y, b) if g.chance(0.7) else (b, y)))


def linear_input(g: Growth) -> str:
    """Rows for a product, at times wide enough for several blocks of k."""
    if g.chance(0.1):
        return g.operand(f32, (*g.choose(((1,), (3,), (2, 2), (6,))), g.choose((255, 256, 257, 300, 520))), (-1.0, 1.0))
    return g.fit(g.pick(f32, 2), (-8.0, 8.0))


def width(g: Growth) -> int:
    return int(g.choose((1, 2, 3, 4, 5, 7, 8, 8, 16, 31, 32, 33, 64, 65, 96, 100)))


def linear(g: Growth) -> str:
    """matmul, then some of bias, activation, residual, scale, and perhaps a second one."""
    x = linear_input(g)
    y = product(g, x, g.dims(x)[-1] if g.chance(0.2) and g.dims(x)[-1] < 100 else width(g))
    for _ in range(int(g.rng.integers(0, 5))):
        step = g.choose(("bias", "activation", "residual", "scale", "reshape", "other"))
        if step == "bias":
            y = biased(g, y)
        elif step == "activation":
            y = activation(g, y)
        elif step == "residual":
            same = [name for name in g.known(f32) if g.dims(name) == g.dims(y) and name != y]
            other = g.choose(same) if same and g.chance(0.7) else g.operand(f32, g.dims(y))
            y = g.add("add", *((y, other) if g.chance(0.5) else (other, y)))
        elif step == "scale":
            y = g.add(g.choose(("mul", "div")), y, g.scalar(g.choose((0.5, 2.0, 0.125))))
        elif step == "reshape":
            y = g.add("reshape", y, shape=(*g.dims(y)[:-2], math.prod(g.dims(y)[-2:]), 1)) if g.chance(0.2) else y
        elif g.dims(y)[-1] <= 100:
            y = product(g, g.fit(y, (-8.0, 8.0)), width(g))
    return y


def flat_linear(g: Growth) -> str:
    """A layer on 2-D rows around a model in 3-D: reshape, product, bias, activation, reshape back."""
    shape = (int(g.choose((1, 2, 3))), g.dim(), int(g.choose((4, 8, 33))))
    x = g.operand(f32, shape)
    n = shape[2] if g.chance(0.4) else width(g)
    y = product(g, g.add("reshape", x, shape=(shape[0] * shape[1], shape[2])), n)
    y = biased(g, y) if g.chance(0.7) else y
    y = activation(g, y) if g.chance(0.5) else y
    y = g.add("reshape", y, shape=(*shape[:2], n))
    return g.add("add", x, y) if n == shape[2] else y


def parallel(g: Growth) -> str:
    """Several products of one input: the fused projection of attention, or a gated activation."""
    x = linear_input(g)
    gated = g.chance(0.5)
    n = width(g)
    parts = [product(g, x, n if gated else width(g)) for _ in range(2 if gated else 3)]
    if g.chance(0.6):
        parts = [biased(g, part) for part in parts]
    if gated:
        return g.add("mul", activation(g, parts[0]), parts[1])
    return parts[0]


def dynamic_matmul(g: Growth) -> str:
    """A product of two activations, with broadcast batches and transposes of every kind."""
    batch = g.choose(((), (), (2,), (2, 3), (1, 4)))
    m, n, k = (int(g.choose((1, 2, 3, 5, 8, 17, 33))) for _ in range(3))
    flip_a, flip_b = g.chance(0.3), g.chance(0.4)
    a = g.operand(f32, (*batch, *((k, m) if flip_a else (m, k))))
    b = g.operand(f32, (*broadcastable_batch(g, batch), *((n, k) if flip_b else (k, n))))
    y = g.add("matmul", a, b, transpose_a=flip_a, transpose_b=flip_b, scale=g.choose((1.0, 1.0, 0.25)))
    if g.chance(0.5):
        y = g.choose((biased, activation))(g, y)
    return g.add("add", y, g.operand(f32, g.dims(y))) if g.chance(0.3) else y


def broadcastable_batch(g: Growth, batch: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if g.chance(0.2) else d for d in batch)[int(g.chance(0.2)) :]


def embedding(g: Growth) -> str:
    """Rows of a table, which at times is also the last projection's weight."""
    rows, columns = int(g.choose((5, 11, 40))), int(g.choose((4, 8, 33)))
    table = g.weight(rows, columns)
    ids = g.operand(i64, g.choose(((3,), (2, 3), (1,), (2, 1))), (-rows, rows - 1))
    x = g.add("gather", table, ids, axis=0)
    return g.add("matmul", x, table, transpose_b=True) if g.chance(0.5) else x


# -- attention ----------------------------------------------------------------------------------------------------


def heads_of(g: Growth, batch: int, heads: int, rows: int, columns: int) -> str:
    """[batch, heads, rows, columns]: an input, any value made to fit, or rows of a projection seen as heads."""
    if g.chance(0.5):
        shape = (batch, heads, rows, columns)
        return g.fresh(f32, shape, kinds="i") if g.chance(0.6) else g.operand(f32, shape)
    x = g.operand(f32, (batch, rows, int(g.choose((4, 8, 33)))), (-1.5, 1.5))
    y = product(g, x, heads * columns)
    y = biased(g, y) if g.chance(0.5) else y
    y = g.fit(y, (-6.0, 6.0))
    return g.add("permute", g.add("reshape", y, shape=(batch, rows, heads, columns)), axes=(0, 2, 1, 3))


def attention(g: Growth) -> str:
    batch, kv_heads = int(g.choose((1, 1, 2))), int(g.choose((1, 2, 3)))
    heads = kv_heads * int(g.choose((1, 1, 2)))
    rows = int(g.choose((1, 2, 5, 8, 17)))
    keys = rows if g.chance(0.5) else int(g.choose((1, 3, 7, 33, 65)))
    if g.chance(0.05):
        batch, heads, kv_heads, rows, keys = 1, 1, 1, int(g.choose((1, 4))), int(g.choose((257, 1030, 1300)))
    size, v_size = (int(g.choose((1, 2, 4, 8, 16, 33) if keys < 1000 else (1, 4, 8))) for _ in range(2))
    q = heads_of(g, batch, heads, rows, size)
    k, v = (heads_of(g, batch, kv_heads, keys, n) for n in (size, v_size))
    if g.chance(0.3):
        q, k = (rotated(g, x) for x in (q, k))
    scale = g.choose((1.0, 0.5, 0.25, 1 / math.sqrt(size)))
    if g.chance(0.5):
        y = spelled_attention(g, q, k, v, scale)
    else:
        mask = None if g.chance(0.5) else attention_mask(g, (batch, heads, rows, keys))
        y = g.add(
            "attention", q, k, v, mask, scale=scale, causal=g.chance(0.4), causal_offset=int(g.choose((0, keys - rows)))
        )
        y = g.decompose(y) if g.chance(0.3) else y
    if g.chance(0.6):
        y = g.add("reshape", g.add("permute", y, axes=(0, 2, 1, 3)), shape=(batch, rows, heads * v_size))
        y = product(g, y, int(g.choose((8, 33)))) if g.chance(0.6) else y
    return y


def attention_mask(g: Growth, scores: tuple[int, ...]) -> str:
    shape = tuple(1 if g.chance(0.3) else d for d in scores)[int(g.choose((0, 0, 2))) :]
    return g.operand(g.choose((f32, boolean)), shape)


def spelled_attention(g: Growth, q: str, k: str, v: str, scale: float) -> str:
    """Attention as models write it: matmul, scale, mask, softmax, matmul."""
    (batch, heads, rows, _), (_, kv_heads, keys, _) = g.dims(q), g.dims(k)
    if kv_heads != heads:
        k, v = (repeated(g, x, heads) for x in (k, v))
    if g.chance(0.3):
        q = g.add("mul", q, g.scalar(scale))
        scale = 1.0
    if g.chance(0.5):
        scores = g.add("matmul", q, k, transpose_b=True)
    else:
        scores = g.add("matmul", q, g.add("permute", k, axes=(0, 1, 3, 2)))
    if scale != 1.0:
        op, value = g.choose((("mul", scale), ("div", 1 / scale)))
        scores = g.add(op, scores, g.scalar(value))
    scores = masked(g, scores, (batch, heads, rows, keys))
    if g.chance(0.5):
        weights = g.add("softmax", scores, axis=3)
    else:
        hidden = g.add("sub", scores, g.add("reduce_max", scores, axes=(3,), keepdims=True), hidden=True)
        power = g.add("exp", hidden)
        weights = g.add("div", power, g.add("reduce_sum", power, axes=(3,), keepdims=True))
    return g.add("matmul", weights, v)


def repeated(g: Growth, x: str, heads: int) -> str:
    batch, kv_heads, rows, columns = g.dims(x)
    x = g.add("reshape", x, shape=(batch, kv_heads, 1, rows, columns))
    x = g.add("expand", x, shape=(batch, kv_heads, heads // kv_heads, rows, columns))
    return g.add("reshape", x, shape=(batch, heads, rows, columns))


def masked(g: Growth, scores: str, shape: tuple[int, ...]) -> str:
    """Scores under no mask, a causal one in several spellings, a random one, or an added one."""
    rows, keys = shape[2:]
    style = g.choose(("none", "causal", "causal sum", "causal iota", "where", "add"))
    low = g.choose((-math.inf, -1e9, float(np.finfo(np.float32).min)))
    hidden = np.triu(np.ones((rows, keys), bool), 1)
    match style:
        case "causal":
            flipped = g.chance(0.5)
            seen = g.leaf(hidden if flipped else ~hidden, "c")
            low_name = g.scalar(low)
            return g.add("where", seen, *((low_name, scores) if flipped else (scores, low_name)), hidden=True)
        case "causal sum":
            added = g.leaf(np.where(hidden, low, 0).astype(np.float32), "c", hidden=True)
            return g.add("add", scores, added, hidden=True)
        case "causal iota":
            row = g.add("reshape", g.add("iota", length=rows, start=0, step=1, dtype=i64), shape=(rows, 1))
            column = g.add("iota", length=keys, start=0, step=1, dtype=i64)
            return g.add("where", g.add("less_equal", column, row), scores, g.scalar(low), hidden=True)
        case "where":
            return g.add(
                "where",
                g.operand(boolean, tuple(1 if g.chance(0.3) else d for d in shape)),
                scores,
                g.scalar(low),
                hidden=True,
            )
        case "add":
            return g.add("add", scores, g.operand(f32, tuple(1 if g.chance(0.3) else d for d in shape)))
    return scores


def rotated(g: Growth, x: str) -> str:
    """Rotary positions, as one op or spelled."""
    shape = g.dims(x)
    if shape[-1] % 2:
        raise Refused
    angles = [g.fresh(f32, shape[-2:], (-1.0, 1.0)) for _ in range(2)]
    name = g.add("rotary", x, *angles)
    return g.decompose(name) if g.chance(0.5) else name


def rotary(g: Growth) -> str:
    return rotated(
        g, g.operand(f32, (int(g.choose((1, 2))), int(g.choose((1, 3))), g.dim(), int(g.choose((2, 8, 34)))))
    )


# -- images -------------------------------------------------------------------------------------------------------


def convolution(g: Growth) -> str:
    """conv, then some of batch norm, activation, residual and pooling."""
    groups = int(g.choose((1, 1, 1, 2, 3)))
    channels, out = (groups * int(g.rng.integers(1, 4)) for _ in range(2))
    out = out * 17 if g.chance(0.1) else out
    rank = int(g.choose((2, 2, 2, 2, 1)))
    image = tuple(int(v) for v in g.rng.integers(3, 12, rank))
    kernel = tuple(int(v) for v in g.rng.integers(1, 4, rank))
    x = g.operand(f32, (int(g.choose((1, 2))), channels, *image), (-1.0, 1.0))
    w = g.weight(out, channels // groups, *kernel)
    attributes = {
        "strides": tuple(int(v) for v in g.rng.integers(1, 3, rank)),
        "pads": tuple(int(v) for v in g.rng.integers(0, 3, 2 * rank)),
        "dilations": tuple(int(v) for v in g.rng.choice((1, 1, 2), rank)),
    }
    y = g.add("conv", x, w, g.weight(out) if g.chance(0.5) else None, groups=groups, **attributes)
    if g.chance(0.5):
        statistics = [g.weight(out) for _ in range(3)]
        y = g.add("batch_norm", y, *statistics, g.weight(out, bounds=(0.5, 2.0)), eps=1e-5)
        y = g.decompose(y) if g.chance(0.3) else y
    y = activation(g, y) if g.chance(0.6) else y
    y = g.add("add", y, g.operand(f32, g.dims(y))) if g.chance(0.3) else y
    return pooled(g, y) if g.chance(0.4) else y


def pooled(g: Growth, x: str) -> str:
    rank = len(g.dims(x)) - 2
    kernel = tuple(int(v) for v in g.rng.integers(1, 4, rank))
    attributes: dict[str, object] = {
        "kernel": kernel,
        "strides": tuple(int(v) for v in g.rng.integers(1, 3, rank)),
        "pads": tuple(int(g.rng.integers(0, k)) for k in (*kernel, *kernel)),
        "dilations": (1,) * rank,
    }
    op = g.choose(("max_pool", "avg_pool"))
    if op == "avg_pool":
        attributes["count_include_pad"] = g.chance(0.5)
    return g.add(op, x, **attributes)


PATTERNS: list[tuple[Pattern, float]] = [
    (sampled, 10), (unary, 9), (binary, 10), (scaled, 4), (compare, 3), (logic, 2), (where, 3), (cast, 3), (reduce, 7),
    (reshape, 5), (permute, 5), (slice_, 5), (concat, 5), (split, 3), (expand, 3), (pad, 3), (trilu, 1), (gather, 3),
    (topk, 1), (iota, 1), (norm, 4), (spelled_norm, 3), (softmax, 5), (activated, 3), (linear, 12), (flat_linear, 4),
    (parallel, 4), (dynamic_matmul, 5), (embedding, 3), (attention, 10), (rotary, 2), (convolution, 4),
]  # fmt: skip

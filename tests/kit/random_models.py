"""Larger things that models are made of, in the spellings that models have: layers, attention, convolutions."""

from __future__ import annotations

import math

import numpy as np

from ingot.ir.dtype import boolean, f32, i64
from random_growth import Growth, Refused
from random_patterns import Pattern, activation

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
            other = product(g, x, g.dims(y)[-1]) if g.dims(y)[:-1] == g.dims(x)[:-1] and g.chance(0.2) else other
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
    hidden = np.triu(np.ones((rows, keys), bool), int(g.choose((1, 1, 1, 0, 2, keys - rows + 1))))
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
            row = g.add(
                "reshape",
                g.add("iota", length=rows, start=int(g.choose((0, 0, keys - rows, 1))), step=1, dtype=i64),
                shape=(rows, 1),
            )
            column = g.add("iota", length=keys, start=0, step=1, dtype=i64)
            return g.add(
                "where",
                g.add(g.choose(("less_equal", "less_equal", "less")), column, row),
                scores,
                g.scalar(low),
                hidden=True,
            )
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


MODELS: list[tuple[Pattern, float]] = [
    (linear, 12), (flat_linear, 4), (parallel, 4), (dynamic_matmul, 5), (embedding, 3), (attention, 10), (rotary, 2),
    (convolution, 4),
]  # fmt: skip

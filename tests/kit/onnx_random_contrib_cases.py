"""Cases of the ops of com.microsoft that exporters of transformers and convolutional nets write, of random shapes and
options.
"""

import random
from collections.abc import Callable

import numpy as np

from onnx_models import Case, case

F = np.float32
MS = "com.microsoft"


def padding(chance: random.Random, batch: int, columns: int) -> np.ndarray:
    """How many keys each row keeps, or which."""
    lengths = np.array([chance.randint(1, columns) for _ in range(batch)], np.int32)
    return lengths if chance.random() < 0.3 else (np.arange(columns) < lengths[:, None]).astype(np.int32)


def heads_apart(chance: random.Random) -> Case:
    """Attention of a query, keys and values, with any of a bias, padding, a bias of scores and earlier keys."""
    batch, heads, width = chance.randint(1, 3), chance.choice((1, 2, 4)), chance.choice((8, 16))
    rows, columns, past = chance.randint(1, 6), chance.randint(1, 7), chance.choice((0, 0, 3))
    size, total = heads * width, columns + past
    operands = f"q[{batch},{rows},{size}] k[{batch},{columns},{size}] v[{batch},{columns},{size}]"
    operands += f" b[{3 * size}]" if chance.random() < 0.5 else " none"
    constants = {"m": padding(chance, batch, total)} if chance.random() < 0.4 else {}
    operands += " @m" if constants else " none"
    operands += f" a[{chance.choice((1, batch))},{heads},{rows},{total}]" if chance.random() < 0.4 else " none"
    operands += "".join(f" {x}[{batch},{heads},{past},{width}]" for x in "cd") if past else ""
    attributes = {"scale": chance.choice((0.3, 0.05))} if chance.random() < 0.4 else {}
    return case("MultiHeadAttention", operands, 3 if past else 1, domain=MS, num_heads=heads, **attributes, **constants)


def heads_together(chance: random.Random) -> Case:
    """Attention whose query, keys and values one matrix makes, of codes or not."""
    batch, heads, width, rows = chance.randint(1, 3), chance.choice((1, 2, 4)), 8, chance.randint(1, 6)
    size, inner, past = heads * width, chance.choice((6, 16)), chance.choice((0, 3))
    constants = {"m": padding(chance, batch, rows + past)} if chance.random() < 0.5 else {}
    mask, cache = "@m" if constants else "none", f" p[2,{batch},{heads},{past},{width}]" if past else ""
    attributes = {"num_heads": heads, "unidirectional": int(not constants and chance.random() < 0.5)}
    outputs = 2 if past else 1
    if chance.random() < 0.5:
        operands = f"x[{batch},{rows},{inner}] w[{inner},{3 * size}] b[{3 * size}] {mask}{cache}"
        return case("Attention", operands, outputs, domain=MS, **attributes, **constants)
    constants |= {"s": np.array(0.02, F), "t": np.array(0.01, F), "z": np.array(chance.randint(0, 255), np.uint8)}
    constants |= {"y": np.array(chance.randint(-99, 99), np.int8)}
    operands = (
        f"x:u8<200[{batch},{rows},{inner}] w:i8>-99<99[{inner},{3 * size}] b[{3 * size}] @s @t {mask} @z @y{cache}"
    )
    return case("QAttention", operands, outputs, domain=MS, **attributes, **constants)


def rotation(chance: random.Random) -> Case:
    """Rotary embedding from one position or one for each row, of heads apart or together."""
    batch, heads, rows, width = chance.randint(1, 3), chance.choice((1, 2, 3)), chance.randint(1, 5), 16
    part, attributes = width, {"interleaved": chance.randint(0, 1)}
    if chance.random() < 0.5:
        shape = f"{batch},{heads},{rows},{width}"
    else:
        shape = f"{batch},{rows},{heads * width}"
        if chance.random() < 0.5:
            part = chance.choice((4, 8))
            attributes |= {"rotary_embedding_dim": part, "num_heads": heads}
    positions = f"p:i64<9[{batch},{rows}]" if chance.random() < 0.5 else "p:i64<4[1]"
    caches = f"c[9,{part // 2}] d[9,{part // 2}]"
    return case("RotaryEmbedding", f"x[{shape}] {positions} {caches}", domain=MS, **attributes)


def norm(chance: random.Random) -> Case:
    """Norms of sums, and of embeddings."""
    batch, rows, width = chance.randint(1, 3), chance.randint(1, 5), chance.choice((1, 8, 24))
    sums, epsilon = f"[{batch},{rows},{width}]", chance.choice((1e-12, 1e-5, 0.1))
    op = chance.choice(
        ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization", "Embed")
    )
    if op == "Embed":
        segments = f"j:i32<2[{batch},{rows}]" if chance.random() < 0.5 else "none"
        table = f"s[2,{width}]" if segments != "none" else "none"
        operands = (
            f"i:i32<9[{batch},{rows}] {segments} w[9,{width}] p[{rows + 2},{width}] {table} g[{width}] b[{width}]"
        )
        return case("EmbedLayerNormalization", operands, 2, domain=MS, epsilon=epsilon)
    if op == "SimplifiedLayerNormalization":
        return case(op, f"x{sums} w[{width}]", epsilon=epsilon, axis=-1)
    operands = f"x{sums} s{sums} w[{width}]"
    if op == "SkipLayerNormalization":
        operands += f" b[{width}]" if chance.random() < 0.6 else " none"
    operands += f" c[{width}]" if chance.random() < 0.5 else ""
    return case(op, operands, domain=MS, epsilon=epsilon)


def quantized_embedding(chance: random.Random) -> Case:
    """The norm of embeddings whose tables are codes."""
    batch, rows, width = chance.randint(1, 3), chance.randint(1, 5), chance.choice((1, 8, 24))
    dtype, low, high = chance.choice((("u8", 0, 255), ("i8", -128, 127)))
    codes = f":{dtype}>{low}<{high}"
    is_parted, is_masked = chance.random() < 0.5, chance.random() < 0.5
    tables = [("w", f"[9,{width}]"), ("p", f"[{rows + 2},{width}]"), ("s", f"[2,{width}]"), ("g", f"[{width}]"),
              ("b", f"[{width}]")]  # fmt: skip
    kept = [is_parted or name != "s" for name, _ in tables]
    operands = [f"i:i32<9[{batch},{rows}]", f"j:i32<2[{batch},{rows}]" if is_parted else "none"]
    operands += [f"{name}{codes}{shape}" if keep else "none" for (name, shape), keep in zip(tables, kept, strict=True)]
    operands.append(f"m:i32<2[{batch},{rows}]" if is_masked else "none")
    names = [name if keep else "" for (name, _), keep in zip(tables, kept, strict=True)]
    operands += [f"@{name}_scale" if name else "none" for name in names]
    operands += [f"@{name}_zero" if name else "none" for name in names]
    zeros = np.uint8 if dtype == "u8" else np.int8
    constants = {f"{name}_scale": np.array(chance.uniform(0.005, 0.03), F) for name in names if name}
    constants |= {f"{name}_zero": np.array(chance.randint(low, high), zeros) for name in names if name}
    epsilon = chance.choice((1e-12, 1e-5, 0.1))
    return case("QEmbedLayerNormalization", " ".join(operands), 2, domain=MS, epsilon=epsilon, **constants)


def convolution(chance: random.Random) -> Case:
    """A convolution with a sum and an activation."""
    groups, kernel = chance.choice((1, 1, 2)), chance.choice((1, 3))
    channels, out, side = 2 * groups, 3 * groups, chance.randint(5, 8)
    attributes: dict = {"group": groups, "pads": [chance.randint(0, 1) for _ in range(4)], "kernel_shape": [kernel] * 2}
    attributes |= {"strides": [chance.choice((1, 2))] * 2, "dilations": [chance.choice((1, 2))] * 2}
    kind, numbers = chance.choice(
        (("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.1]), ("Clip", [-0.5, 0.5]))
    )
    attributes |= {"activation": kind} | ({"activation_params": numbers} if numbers else {})
    bias = f" b[{out}]" if chance.random() < 0.6 else ""
    return case(
        "FusedConv", f"x[2,{channels},{side},{side + 1}] w[{out},2,{kernel},{kernel}]{bias}", domain=MS, **attributes
    )


def product(chance: random.Random) -> Case:
    """A product of matrices turned and scaled."""
    batch, transposed = chance.choice(("", "2,", "2,3,")), [chance.randint(0, 1) for _ in range(2)]
    m, k, n = (chance.randint(1, 6) for _ in range(3))
    left, right = (f"{k},{m}" if transposed[0] else f"{m},{k}"), (f"{n},{k}" if transposed[1] else f"{k},{n}")
    alpha = chance.choice((1.0, 0.125, -0.7))
    operands = f"a[{batch}{left}] b[{batch}{right}]"
    return case("FusedMatMul", operands, domain=MS, transA=transposed[0], transB=transposed[1], alpha=alpha)


def gelu(chance: random.Random) -> Case:
    """The forms of GELU."""
    shape = [chance.randint(1, 4) for _ in range(chance.randint(1, 3))] + [chance.choice((1, 7, 32))]
    op = chance.choice(("Gelu", "QuickGelu", "FastGelu", "BiasGelu"))
    operands = f"x[{','.join(map(str, shape))}]"
    operands += f" b[{shape[-1]}]" if op == "BiasGelu" or (op == "FastGelu" and chance.random() < 0.5) else ""
    attributes = {"alpha": chance.choice((1.0, 1.702))} if op == "QuickGelu" else {}
    return case(op, operands, domain=MS, **attributes)


FAMILIES: tuple[Callable[[random.Random], Case], ...] = (
    *(heads_apart, heads_together, rotation, norm, quantized_embedding, convolution, product, gelu),
)

"""The nodes that random ONNX models are made of: every family of ops, and spellings of a few layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from random_growth import Refused
from random_onnx import I32, I64, REDUCE, B, F, Model, OnnxGrowth
from random_onnx_images import conv, ends, image_norm, pool, resize, transposed_conv
from random_onnx_layers import (
    any_conv,
    branch,
    contributed,
    converted,
    dynamic,
    integers,
    loop,
    quantized,
    quantized_gate,
    recurrent,
    scan,
    volume,
    wide,
)

Pattern = Callable[[OnnxGrowth], object]

_FLOAT = ("Ceil", "Cos", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Elu", "Celu")
_FLOAT += ("Relu", "Round", "Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Tanh", "Abs", "Neg", "Sign", "Mish")
_FLOAT += ("Asinh", "Atan", "Cosh", "Shrink", "Sinh")
_INTEGER = ("Abs", "Neg", "Sign", "Identity")
_ARITHMETIC = ("Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min", "Pow", "Mod")
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_FAR = (2**63 - 1, -(2**63) + 1, 2**31 - 1, -(2**31))

# -- one element after the other ------------------------------------------------------------------------------------


def unary(g: OnnxGrowth) -> str:
    if g.chance(0.2):
        return g.add(g.choose(_INTEGER), g.pick(I64, I32))
    if g.chance(0.1):
        return g.add(g.choose(("Acos", "Asin", "Atanh")), g.within(g.pick(F), -0.9, 0.9))
    if g.chance(0.2):
        op = g.choose(("Log", "Sqrt", "Reciprocal"))
        return g.add(op, g.within(g.pick(F), 0.125, 50.0))
    return g.add(g.choose(_FLOAT), g.within(g.pick(F), -8.0, 8.0))


def partner(g: OnnxGrowth, x: str, low: float = -2.0, high: float = 2.0) -> str:
    """An operand that broadcasts with another."""
    shapes = g.shapes(x)
    kept = [g.chance(0.65) for _ in range(g.rank(x))]
    drop = g.between(0, g.rank(x)) if g.chance(0.3) else 0
    wanted = [tuple(d if k else 1 for d, k in zip(shape, kept, strict=True))[drop:] for shape in shapes]
    if g.chance(0.1) and g.rank(x) < 4:
        front = g.choose((0, 1, 1, 2))
        wanted = [(front, *shape) for shape in wanted]
    return g.like(g.dtype(x), wanted, low, high)


def binary(g: OnnxGrowth) -> str:
    op = g.choose(_ARITHMETIC)
    x = g.pick(F, F, F, I64, I32) if op != "Pow" else g.within(g.pick(F), 0.25, 3.0)
    if op == "Mod" and g.dtype(x) == F:
        op = "Sub"
    bounds = (1, 5) if op in ("Div", "Mod") else (-2, 2)
    y = g.pick(g.dtype(x)) if g.chance(0.2) and op not in ("Div", "Mod", "Pow") else partner(g, x, *bounds)
    return g.add(op, *((y, x) if op in ("Add", "Mul", "Sub", "Max") and g.chance(0.4) else (x, y)))


def compare(g: OnnxGrowth) -> str:
    x = g.pick(F, I64, I32)
    return g.add(g.choose(_COMPARISONS), x, partner(g, x))


def logic(g: OnnxGrowth) -> str:
    x = g.pick(B)
    return g.add("Not", x) if g.chance(0.3) else g.add(g.choose(("And", "Or", "Xor")), x, partner(g, x))


def bits(g: OnnxGrowth) -> str:
    x = g.pick(I64, I32)
    if g.chance(0.2):
        return g.add("BitwiseNot", x)
    return g.add(g.choose(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), x, partner(g, x, -99, 99))


def where(g: OnnxGrowth) -> str:
    x = g.pick(F, I64, I32)
    y = partner(g, x)
    try:
        shapes = [np.broadcast_shapes(a, b) for a, b in zip(g.shapes(x), g.shapes(y), strict=True)]
    except ValueError as error:
        raise Refused(str(error)) from error
    kept = [g.chance(0.7) for _ in shapes[0]]
    masks = [tuple(d if k else 1 for d, k in zip(shape, kept, strict=True)) for shape in shapes]
    return g.add("Where", g.like(B, masks), *((x, y) if g.chance(0.5) else (y, x)))


def cast(g: OnnxGrowth) -> str:
    return g.add("Cast", g.pick(F, I64, I32, B), to=g.choose((1, 1, 6, 7, 9)))


def several(g: OnnxGrowth) -> str:
    x = g.pick(F)
    return g.add(g.choose(("Sum", "Mean", "Max", "Min")), x, *(partner(g, x) for _ in range(g.between(0, 2))))


def clip(g: OnnxGrowth) -> str:
    x = g.pick(F, I64)
    low, high = (g.like(g.dtype(x), [()] * g.bindings) for _ in range(2))
    return g.add("Clip", x, *g.choose(((low,), ("", high), (low, high))))


# -- reductions -----------------------------------------------------------------------------------------------------


def axes_of(g: OnnxGrowth, rank: int) -> list[int]:
    """Some axes, counted from either end."""
    found = [a - rank * int(g.chance(0.4)) for a in range(rank) if g.chance(0.5)]
    return [found[int(i)] for i in g.rng.permutation(len(found))]


def axis_of(g: OnnxGrowth, rank: int) -> int:
    return g.between(-rank, rank - 1)


def reduce(g: OnnxGrowth) -> str:
    op = g.choose(REDUCE)
    x = g.pick(F, F, I64, I32) if "Log" not in op and op != "ReduceL2" else g.pick(F)
    x = g.within(x, 0.125, 8.0) if op == "ReduceLogSum" else x
    x = g.within(x, -2, 2) if op == "ReduceProd" and g.dtype(x) != F else x  # those of many bits wrap in many ways
    if op == "ReduceMean" and g.dtype(x) != F and any(0 in shape for shape in g.shapes(x)):
        raise Refused("the mean of no integers")
    rank = g.rank(x)
    keepdims, noop = g.choose((None, 0, 1)), g.choose((None, None, 0, 1))
    if g.chance(0.2):
        return g.add(op, x, keepdims=keepdims, noop_with_empty_axes=noop) if op == "ReduceSum" else g.add(op, x)
    chosen = axes_of(g, rank) if rank else []
    return g.add(op, x, g.ints(chosen), keepdims=keepdims, noop_with_empty_axes=noop)


def position(g: OnnxGrowth) -> str:
    x = g.pick(F, I64, I32, low=1)
    last = g.choose((None, 0, 1)) if not g.symbols else None
    axis = axis_of(g, g.rank(x))
    if not all(shape[axis] for shape in g.shapes(x)):
        raise Refused("the place of nothing")
    attributes = {"axis": axis, "keepdims": g.choose((0, 1)), "select_last_index": last}
    return g.add(g.choose(("ArgMax", "ArgMin")), x, **attributes)


def cumsum(g: OnnxGrowth) -> str:
    x = g.pick(F, I64, I32, low=1)
    axis = g.constant(np.array(axis_of(g, g.rank(x))), hidden=True)
    return g.add("CumSum", x, axis, reverse=g.choose((0, 1, 1)), exclusive=g.choose((0, 0, 1)))


def topk(g: OnnxGrowth) -> list[str]:
    x = g.pick(F, I64, low=1)
    axis = axis_of(g, g.rank(x))
    smallest = min(shape[axis] for shape in g.shapes(x))
    attributes = {"axis": axis, "largest": g.choose((0, 1))}
    return g.add_all("TopK", 2, x, g.ints([g.between(0, smallest)]), **attributes)


# -- products -------------------------------------------------------------------------------------------------------


def product(g: OnnxGrowth, x: str) -> str:
    """x @ w for a weight."""
    columns = int(g.choose((0, 1, 1, 2, 3, 8, 16, 17, 33)))
    k = {shape[-1] for shape in g.shapes(x)}
    if len(k) > 1:
        return g.add("MatMul", x, g.like(F, [(shape[-1], columns) for shape in g.shapes(x)]))
    return g.add("MatMul", x, g.constant(g.draw(F, (k.pop(), columns), -1.0, 1.0)))


def linear(g: OnnxGrowth) -> str:
    """Products with weights, biases, activations, residuals."""
    x = g.within(g.pick(F, low=1), -8.0, 8.0)
    y = product(g, x)
    for _ in range(g.between(0, 3)):
        step = g.choose(("bias", "bias", "activation", "residual", "product", "scale"))
        if step == "bias":
            y = g.add("Add", *((y, b) if g.chance(0.7) else (b, y))) if (b := bias(g, y)) else y
        elif step == "activation":
            y = g.add(g.choose(("Relu", "Sigmoid", "Tanh", "HardSwish")), y)
        elif step == "residual":
            y = g.add("Add", y, g.like(F, g.shapes(y)))
        elif step == "product" and g.rank(y):
            y = product(g, g.within(y, -8.0, 8.0))
        elif step == "scale":
            y = g.add("Mul", y, g.constant(np.array(g.choose((0.5, 0.0, 2.0)), F), hidden=True))
    return y


def bias(g: OnnxGrowth, y: str) -> str:
    sizes = {shape[-1:] for shape in g.shapes(y)}
    return g.constant(g.draw(F, sizes.pop(), -2.0, 2.0)) if len(sizes) == 1 else ""


def flat_linear(g: OnnxGrowth) -> str:
    """Flatten, or a reshape, before a product."""
    x = g.within(g.pick(F, low=1), -8.0, 8.0)
    flat = g.add("Flatten", x, axis=axis_of(g, g.rank(x) + 1) if g.chance(0.4) else None)
    return product(g, flat)


def matmul(g: OnnxGrowth) -> str:
    """Two values of any ranks, batches broadcast."""
    a = g.within(g.pick(F, F, F, I64, I32, low=1), -8, 8)
    k = [shape[-1] for shape in g.shapes(a)]
    columns = int(g.choose((0, 1, 2, 5, 17)))
    if g.chance(0.15):
        return g.add("MatMul", a, g.like(g.dtype(a), [(size,) for size in k]))
    batch = [tuple(1 if g.chance(0.2) else d for d in shape[:-2]) for shape in g.shapes(a)]
    if len(set(batch)) > 1:
        batch = [shape[:-2] for shape in g.shapes(a)]
    batch = [shape[g.between(0, 1) if g.bindings == 1 else 0 :] for shape in batch]
    b = g.like(g.dtype(a), [(*shape, size, columns) for shape, size in zip(batch, k, strict=True)])
    return g.add("MatMul", a, b)


def gemm(g: OnnxGrowth) -> str:
    a = g.within(g.pick(F, low=2, high=2), -8.0, 8.0)
    flip_a, flip_b = g.choose((0, 1)), g.choose((0, 1))
    n = int(g.choose((0, 1, 2, 5, 17)))
    k = [shape[0] if flip_a else shape[1] for shape in g.shapes(a)]
    m = [shape[1] if flip_a else shape[0] for shape in g.shapes(a)]
    b = g.like(F, [(n, size) if flip_b else (size, n) for size in k])
    c = g.choose(([], [], [g.like(F, [(n,)] * g.bindings)], [g.like(F, [(rows, 1) for rows in m])]))
    c = c if g.chance(0.9) else [g.like(F, [()] * g.bindings)]
    return g.add(
        "Gemm", a, b, *c, transA=flip_a, transB=flip_b, alpha=g.choose((None, 0.5)), beta=g.choose((None, 2.0))
    )


def einsum(g: OnnxGrowth) -> str:
    x = g.within(g.pick(F, low=2, high=3), -4.0, 4.0)
    if g.rank(x) == 2:
        y = g.like(F, [(shape[1], 3) for shape in g.shapes(x)])
        equation = g.choose(("ij,jk->ik", "ij,jk->ki", "ij,jk->k", "ij,jk->j"))
    else:
        y = g.like(F, [(shape[0], 2, shape[2]) for shape in g.shapes(x)])
        equation = g.choose(("bqd,bkd->bqk", "bqd,bkd->qk", "bqd,bkd->kbq"))
    return g.add("Einsum", x, y, equation=equation)


# -- moving elements ------------------------------------------------------------------------------------------------


def anything(g: OnnxGrowth, low: int = 0, high: int = 5) -> str:
    return g.pick(F, F, F, I64, I32, B, low=low, high=high)


def reshape(g: OnnxGrowth) -> str:
    """To dims with at most one that is left open, or copied from the operand by 0."""
    x = anything(g)
    sizes = list(g.shape(x))
    style = g.choose(("flat", "merge", "ones", "zeros", "copy", "open"))
    target = {
        "flat": [-1],
        "merge": [-1, *sizes[2:]] if len(sizes) > 1 else [-1],
        "ones": [*([0] * len(sizes)), 1],
        "zeros": [0 if g.chance(0.5) else d for d in sizes],
        "copy": [0] * (len(sizes) - 1) + [-1] if sizes else [1],
        "open": [d if i != len(sizes) // 2 else -1 for i, d in enumerate(sizes)],
    }[style]
    return g.add("Reshape", x, g.ints(target), allowzero=g.choose((None, None, None, 1)) if -1 not in target else None)


def reshape_like(g: OnnxGrowth) -> str:
    """To dims that are computed from Shape, as exporters spell it."""
    x = anything(g, 1, 4)
    shape = g.add("Shape", x)
    taken = []
    for axis in range(g.rank(x)):
        i = g.add("Gather", shape, g.constant(np.array(axis), hidden=True), axis=0)
        taken.append(g.add("Unsqueeze", i, g.ints([0])))
    if len(taken) > 1 and g.chance(0.7):
        i = g.between(0, len(taken) - 2)
        taken[i : i + 2] = [g.add("Mul", taken[i], taken[i + 1])]
    elif g.chance(0.5):
        taken.insert(g.between(0, len(taken)), g.ints([1]))
    return g.add("Reshape", x, g.add("Concat", *taken, axis=0), allowzero=1)


def transpose(g: OnnxGrowth) -> str:
    x = anything(g)
    order = [int(a) for a in g.rng.permutation(g.rank(x))]
    return g.add("Transpose", x, perm=order if order and g.chance(0.8) else None)


def squeeze(g: OnnxGrowth) -> str:
    x = anything(g, 1)
    ones = [a for a in range(g.rank(x)) if all(shape[a] == 1 for shape in g.shapes(x))]
    chosen = [a - g.rank(x) * g.between(0, 1) for a in ones if g.chance(0.8)]
    return g.add("Squeeze", x, g.ints(chosen)) if chosen else g.add("Squeeze", x)


def unsqueeze(g: OnnxGrowth) -> str:
    x = anything(g, 0, 3)
    count = g.between(1, 2)
    rank = g.rank(x) + count
    chosen = [int(a) - rank * g.between(0, 1) for a in g.rng.permutation(rank)[:count]]
    return g.add("Unsqueeze", x, g.ints(chosen))


def concat(g: OnnxGrowth) -> str:
    x = anything(g, 1)
    axis = axis_of(g, g.rank(x))
    parts = [x]
    for _ in range(g.between(0, 2)):
        size = int(g.choose((0, 1, 1, 2, 3)))
        same = g.chance(0.4)
        wanted = [
            tuple(s if same or i != axis % len(shape) else size for i, s in enumerate(shape)) for shape in g.shapes(x)
        ]
        parts.append(x if g.chance(0.15) else g.like(g.dtype(x), wanted))
    return g.add("Concat", *[parts[int(i)] for i in g.rng.permutation(len(parts))], axis=axis)


def split(g: OnnxGrowth) -> list[str]:
    x = anything(g, 1)
    axis = axis_of(g, g.rank(x))
    dims = {shape[axis] for shape in g.shapes(x)}
    parts = g.between(1, 3)
    if len(dims) > 1 or g.chance(0.4):
        return g.add_all("Split", parts, x, axis=axis, num_outputs=parts)
    cuts = sorted(g.between(0, max(dims)) for _ in range(parts - 1))
    sizes = np.diff([0, *cuts, max(dims)])
    return g.add_all("Split", parts, x, g.ints(sizes.tolist()), axis=axis)


def slice_(g: OnnxGrowth) -> str:
    """Any bounds on some axes, steps of either sign, often past the ends."""
    x = anything(g, 1)
    axes = axes_of(g, g.rank(x)) or [axis_of(g, g.rank(x))]
    starts, stops, steps = [], [], []
    for axis in axes:
        size = g.shape(x)[axis]
        step = int(g.choose((1, 1, 1, 2, 3, -1, -1, -2, -7)))
        low, high = (g.choose(_FAR) if g.chance(0.15) else g.between(-size - 2, size + 2) for _ in range(2))
        if g.chance(0.3):
            low, high = (0, _FAR[0]) if step > 0 else (-1, _FAR[1])
        high = _FAR[1] if step < 0 and high in _FAR else high  # ONNX Runtime takes the largest number for the far end
        starts.append(low), stops.append(high), steps.append(step)
    dtype = I64 if g.chance(0.8) or any(abs(v) >= 2**31 for v in (*starts, *stops)) else I32
    operands = [starts, stops, axes, steps] if g.chance(0.8) or any(s != 1 for s in steps) else [starts, stops, axes]
    return g.add("Slice", x, *(g.ints(values, dtype) for values in operands))


def slice_to_dim(g: OnnxGrowth) -> str:
    """Up to, or from, a size that another value has at run time."""
    x, other = anything(g, 1), anything(g, 1)
    axis, of = axis_of(g, g.rank(x)), g.between(0, g.rank(other) - 1)
    bound = g.add("Shape", other, start=of, end=of + 1)
    if g.chance(0.4):
        bound = g.add(g.choose(("Sub", "Add", "Div", "Mul")), bound, g.ints([g.between(1, 3)]))
    zero, far = g.ints([g.choose((0, 0, 1))]), g.ints([_FAR[0]])
    return g.add("Slice", x, *g.choose(((zero, bound), (bound, far))), g.ints([axis]))


def expand(g: OnnxGrowth) -> str:
    x = anything(g, 0, 4)
    if g.chance(0.3):
        return g.add("Expand", x, g.add("Shape", g.pick(F, I64, high=4)))
    sizes = [g.between(0, 4) if d == 1 and g.chance(0.6) else 1 if g.chance(0.5) else d for d in g.shape(x)]
    return g.add("Expand", x, g.ints([*[g.between(0, 3) for _ in range(g.between(0, 1))], *sizes]))


def tile(g: OnnxGrowth) -> str:
    x = anything(g, 1, 4)
    return g.add("Tile", x, g.ints([int(g.choose((0, 1, 1, 1, 2, 3))) for _ in range(g.rank(x))]))


def pad(g: OnnxGrowth) -> str:
    x = g.pick(F, F, I64, low=1, high=4)
    amounts = [int(g.choose((0, 0, 1, 2, -1))) for _ in range(2 * g.rank(x))]
    if any(min(d + min(a, 0) + min(b, 0) for d in dims) < 0 for dims, a, b in ends(g, x, amounts)):
        raise Refused("cuts more than there is")
    if g.chance(0.3) and min(min(shape) for shape in g.shapes(x)) > 2:
        return g.add("Pad", x, g.ints([max(a, 0) for a in amounts]), mode=g.choose(("edge", "reflect")))
    value = [g.constant(np.array(g.between(-2, 2), g.dtype(x)), hidden=g.chance(0.8))] if g.chance(0.5) else []
    return g.add("Pad", x, g.ints(amounts), *value)


def trilu(g: OnnxGrowth) -> str:
    x = g.pick(F, F, I64, B, low=2)
    k = [g.constant(np.array(g.between(-3, 3)), hidden=True)] if g.chance(0.6) else []
    return g.add("Trilu", x, *k, upper=g.choose((None, 0, 1)))


def gather(g: OnnxGrowth) -> str:
    x = anything(g, 1, 4)
    axis = axis_of(g, g.rank(x))
    size = min(shape[axis] for shape in g.shapes(x))
    dims = g.dims(0, 2) if size else (*g.dims(0, 1), 0)
    indices = g.leaf(g.choose((I64, I64, I32)), dims, *((-size, size - 1) if size else (0, 0)))
    return g.add("Gather", x, indices, axis=axis)


def gather_elements(g: OnnxGrowth) -> str:
    x = anything(g, 1, 4)
    axis = axis_of(g, g.rank(x)) % g.rank(x)
    size = min(shape[axis] for shape in g.shapes(x))
    rows = g.between(0, 3) if size else 0
    wanted = [(*shape[:axis], rows, *shape[axis + 1 :]) for shape in g.shapes(x)]
    low, high = (-size, size - 1) if size else (0, 0)
    return g.add("GatherElements", x, g.like(I64, wanted, low, high), axis=axis)


def scatter_elements(g: OnnxGrowth) -> str:
    x = g.pick(F, I64, low=1, high=4)
    axis = axis_of(g, g.rank(x)) % g.rank(x)
    size = min(shape[axis] for shape in g.shapes(x))
    reduction = g.choose((None, "add", "max", "min"))
    rows = (g.between(0, 3) if reduction else g.between(0, 1)) if size else 0
    wanted = [(*shape[:axis], rows, *shape[axis + 1 :]) for shape in g.shapes(x)]
    low, high = (-size, size - 1) if size else (0, 0)
    indices, updates = g.like(I64, wanted, low, high), g.like(g.dtype(x), wanted)
    return g.add("ScatterElements", x, indices, updates, axis=axis, reduction=reduction)


def scatter_nd(g: OnnxGrowth) -> str:
    x = g.pick(F, I64, low=1, high=4)
    depth = g.between(1, g.rank(x))
    sizes = [min(shape[i] for shape in g.shapes(x)) for i in range(depth)]
    reduction = g.choose((None, "add", "max", "min"))
    rows = (g.between(0, 3) if reduction else g.between(0, 1)) if min(sizes) else 0
    indices = g.leaf(I64, (rows, depth), 0, max(min(sizes) - 1, 0))
    updates = g.like(g.dtype(x), [(rows, *shape[depth:]) for shape in g.shapes(x)])
    return g.add("ScatterND", x, indices, updates, reduction=reduction)


def reverse_sequence(g: OnnxGrowth) -> str:
    x = g.pick(F, I64, low=2, high=4)
    batch = g.between(0, 1)
    steps = min(shape[1 - batch] for shape in g.shapes(x))
    lengths = g.like(I64, [(shape[batch],) for shape in g.shapes(x)], 1 if steps else 0, max(steps, 0))
    return g.add("ReverseSequence", x, lengths, batch_axis=batch, time_axis=1 - batch)


def gather_nd(g: OnnxGrowth) -> str:
    x = anything(g, 1, 4)
    depth = g.between(1, g.rank(x))
    sizes = [min(shape[i] for shape in g.shapes(x)) for i in range(depth)]
    rows = g.dims(0, 2) if min(sizes) else (0,)
    return g.add("GatherND", x, g.leaf(I64, (*rows, depth), 0, max(min(sizes) - 1, 0)))


def one_hot(g: OnnxGrowth) -> str:
    indices = g.leaf(I64, g.dims(0, 2), -3, 3)
    values = g.constant(g.draw(F, (2,), -2.0, 2.0), hidden=True)
    return g.add(
        "OneHot", indices, g.constant(np.array(g.choose((1, 3, 4))), hidden=True), values, axis=g.choose((None, 0))
    )


def made(g: OnnxGrowth) -> str:
    """ConstantOfShape or Range of sizes that are known, or those of a value."""
    x = anything(g, 1, 3)
    if g.chance(0.5):
        return g.add("ConstantOfShape", g.add("Shape", x))
    size = g.add("Gather", g.add("Shape", x), g.constant(np.array(0), hidden=True), axis=0)
    start, step = (g.constant(np.array(v), hidden=True) for v in (g.between(-1, 2), g.choose((1, 1, 2, -1))))
    return g.add("Range", start, size, step)


def eye_like(g: OnnxGrowth) -> str:
    return g.add("EyeLike", g.pick(F, I64, low=2, high=2), k=g.choose((None, -1, 0, 1, 5)))


def depth_to_space(g: OnnxGrowth) -> str:
    if g.chance(0.5):
        return g.add("DepthToSpace", g.leaf(F, (g.dim(), 4 * g.between(0, 2), g.dim(), g.dim())), blocksize=2)
    sides = [2 * g.between(0, 2) for _ in range(2)]
    return g.add("SpaceToDepth", g.leaf(F, (g.dim(), g.between(0, 3), *sides)), blocksize=2)


# -- layers ---------------------------------------------------------------------------------------------------------


def softmax(g: OnnxGrowth) -> str:
    x = g.within(g.pick(F, low=1), -20.0, 20.0)
    return g.add(g.choose(("Softmax", "LogSoftmax")), x, axis=axis_of(g, g.rank(x)))


def along_axis(g: OnnxGrowth) -> str:
    x = g.pick(F, low=1)
    axis = axis_of(g, g.rank(x))
    if g.chance(0.5):
        return g.add("Hardmax", x, axis=axis)
    return g.add("LpNormalization", x, axis=axis, p=g.choose((1, 2)))


def layer_norm(g: OnnxGrowth) -> str:
    x = g.pick(F, low=1)
    axis = axis_of(g, g.rank(x)) if g.chance(0.5) else -1
    wanted = [shape[axis:] for shape in g.shapes(x)]
    operands = [g.like(F, wanted) for _ in range(g.between(1, 2))]
    return g.add("LayerNormalization", x, *operands, axis=axis)


def spelled_norm(g: OnnxGrowth) -> str:
    x = g.pick(F, low=1)
    axes = g.ints([-1])
    centred = g.add("Sub", x, g.add("ReduceMean", x, axes)) if g.chance(0.6) else x
    square = g.add("Mul", centred, centred)
    small = g.constant(np.array(0.125, F), hidden=True)
    return g.add("Div", centred, g.add("Sqrt", g.add("Add", g.add("ReduceMean", square, axes), small)))


def spelled_softmax(g: OnnxGrowth) -> str:
    """Attention as it is spelled: scores, a scale, weights, values."""
    q = g.within(g.leaf(F, (g.dim(), g.between(0, 2), g.dim(), g.between(0, 4))), -4.0, 4.0)
    keys = g.dim()
    keys = tuple(g.symbols[keys]) if isinstance(keys, str) else (keys,) * g.bindings
    k = g.like(F, [(*s[:2], n, s[3]) for s, n in zip(g.shapes(q), keys, strict=True)])
    v = g.like(F, [(*s[:2], n, 3) for s, n in zip(g.shapes(q), keys, strict=True)])
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.add("Mul", scores, g.constant(np.array(0.5, F), hidden=True))
    return g.add("MatMul", g.add("Softmax", scores, axis=-1), v)


PATTERNS: list[tuple[Pattern, float]] = [
    (unary, 8), (binary, 12), (compare, 3), (logic, 2), (bits, 2), (where, 4), (cast, 4), (several, 2), (clip, 2),
    (reduce, 10), (position, 2), (cumsum, 4), (topk, 2), (linear, 10), (flat_linear, 4), (matmul, 6), (gemm, 4),
    (einsum, 2), (reshape, 5), (reshape_like, 4), (transpose, 4), (squeeze, 2), (unsqueeze, 3), (concat, 5),
    (split, 4), (slice_, 8), (slice_to_dim, 4), (expand, 4), (tile, 3), (pad, 4), (trilu, 2), (gather, 4),
    (gather_elements, 3), (gather_nd, 2), (scatter_elements, 3), (scatter_nd, 2), (reverse_sequence, 2), (one_hot, 2),
    (made, 3), (eye_like, 1), (depth_to_space, 2), (softmax, 4), (along_axis, 2), (layer_norm, 4), (spelled_norm, 3),
    (spelled_softmax, 3), (conv, 4), (transposed_conv, 2), (resize, 2), (pool, 3), (image_norm, 2),
    (recurrent, 4), (any_conv, 4), (volume, 2), (quantized, 4), (quantized_gate, 6), (dynamic, 1), (integers, 3),
    (converted, 4), (wide, 4), (branch, 3), (loop, 3), (scan, 3), (contributed, 4),
]  # fmt: skip


def random_onnx(seed: int) -> Model:
    """A valid model of 1 to 10 nodes or so, with what ONNX Runtime makes of it. Deterministic."""
    growth = OnnxGrowth(seed)
    patterns, weights = zip(*PATTERNS, strict=True)
    likely = np.array(weights) / sum(weights)
    wanted = growth.between(1, 8)
    for _ in range(4 * wanted):
        if len(growth.nodes) >= wanted:
            break
        try:
            patterns[int(growth.rng.choice(len(patterns), p=likely))](growth)
        except Refused:
            continue
    if not growth.nodes:
        growth.add("Identity", growth.pick(F))
    return growth.finished()

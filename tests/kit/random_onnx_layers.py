"""Layers, quantized numbers, narrow and wide dtypes, control flow and contributed ops, for random ONNX models."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from random_growth import Refused
from random_onnx import I32, I64, F, OnnxGrowth
from random_onnx_images import expect_windows, image

F16, F64, U8, I8, I16 = (np.dtype(t) for t in (np.float16, np.float64, np.uint8, np.int8, np.int16))
MICROSOFT = "com.microsoft"


def expect_elements(g: OnnxGrowth, *names: str) -> None:
    """Raises Refused for a value without elements at some binding."""
    if any(0 in shape for name in names for shape in g.shapes(name)):
        raise Refused("nothing to compute with")


def recurrent(g: OnnxGrowth) -> list[str]:
    """Any cell, directions, lengths, first states and activations."""
    op = g.choose(("LSTM", "GRU", "RNN"))
    x = g.within(g.leaf(F, (g.dim(), g.dim(), g.between(1, 5))), -2.0, 2.0)
    expect_elements(g, x)
    direction = g.choose(("forward", "reverse", "bidirectional"))
    ways, hidden, gates = (
        1 + (direction == "bidirectional"),
        int(g.choose((1, 2, 3, 8))),
        {"LSTM": 4, "GRU": 3}.get(op, 1),
    )
    w, r = (
        g.constant(g.draw(F, (ways, gates * hidden, width), -0.5, 0.5), hidden=True)
        for width in (g.shape(x)[2], hidden)
    )
    b = g.constant(g.draw(F, (ways, 2 * gates * hidden), -0.5, 0.5), hidden=True) if g.chance(0.7) else ""
    lengths = ""
    if g.chance(0.3):
        least = min(shape[0] for shape in g.shapes(x))
        lengths = g.like(I32, [(shape[1],) for shape in g.shapes(x)], least, least)
    states = [g.like(F, [(ways, shape[1], hidden) for shape in g.shapes(x)])] if g.chance(0.4) else []
    attributes: dict[str, object] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attributes["linear_before_reset"] = g.choose((0, 1))
    if op == "RNN" and g.chance(0.3):
        attributes["activations"] = ["Relu"] * ways
    operands = [x, w, r, b, lengths, *states]
    while not operands[-1]:
        operands.pop()
    return g.add_all(op, 3 if op == "LSTM" else 2, *operands, **attributes)


def any_conv(g: OnnxGrowth) -> str:
    """Over one, two or three dims, in groups, dilated."""
    spatial = g.between(1, 3)
    groups, per_group = int(g.choose((1, 1, 2, 3))), int(g.choose((1, 1, 2, 4)))
    x = g.leaf(
        F, (g.dim(), groups * per_group, *(g.dim() if g.chance(0.2) else g.between(1, 7) for _ in range(spatial)))
    )
    expect_elements(g, x)
    kernel, dilations = ([g.between(1, 3) for _ in range(spatial)] for _ in range(2))
    pads = [g.between(0, 2) for _ in range(2 * spatial)]
    expect_windows(g, x, [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)], pads)
    w = g.constant(g.draw(F, (groups * g.between(1, 3), per_group, *kernel), -1.0, 1.0))
    strides = [g.between(1, 3) for _ in range(spatial)]
    return g.add("Conv", x, w, group=groups, pads=pads, strides=strides, dilations=dilations)


def _qweight(g: OnnxGrowth, x: str, per_axis: float, there: float = 0.0) -> str:
    """There and back, per tensor or per axis; with a chance only there."""
    dtype = g.choose((U8, I8))
    axis = g.between(0, max(g.rank(x) - 1, 0))
    sizes = {shape[axis] for shape in g.shapes(x)} if g.rank(x) else set()
    shape = (sizes.pop(),) if len(sizes) == 1 and g.chance(per_axis) else ()
    scale = g.constant(np.asarray(2.0 ** g.rng.integers(-5, 0, shape), F), hidden=True)
    zero = g.constant(g.draw(dtype, shape, 0, 9), hidden=True)
    q = g.add("QuantizeLinear", x, scale, zero, axis=axis if shape else None)
    return q if g.chance(there) else g.add("DequantizeLinear", q, scale, zero, axis=axis if shape else None)


def quantized(g: OnnxGrowth) -> str:
    return _qweight(g, g.within(g.pick(F, low=1, high=4), -8.0, 8.0), per_axis=0.5, there=0.3)


def _gated(g: OnnxGrowth, x: str) -> str:
    """x times what it makes of itself, in steps or not: SiLU, GELU and the like."""
    half, one = (g.constant(np.array(number, F), hidden=True) for number in (0.5, 1.0))
    op = g.choose(("Sigmoid", "Sigmoid", "Tanh", "Erf", "Gelu"))
    if op == "Gelu":
        return g.add(op, x, domain=MICROSOFT)
    gate = g.add(op, g.add("Mul", x, g.constant(np.array(0.70710677, F), hidden=True)) if op == "Erf" else x)
    gate = gate if op == "Sigmoid" else g.add("Add", gate, one)
    gate = _qweight(g, gate, per_axis=0.1) if g.chance(0.4) else gate
    made = g.add("Mul", *((x, gate) if g.chance(0.5) else (gate, x)))
    return made if op == "Sigmoid" else g.add("Mul", made, half)


def quantized_gate(g: OnnxGrowth) -> str:
    """A group of element-wise nodes between codes, with what is broadcast to it, as quantizers write it."""
    x = _qweight(g, g.within(g.pick(F, high=4), -6.0, 6.0), per_axis=0.2)
    for _ in range(g.between(1, 3)):
        way = g.choose(("gate", "gate", "join", "join", "alone"))
        if way == "gate":
            x = _gated(g, x)
        elif way == "alone":
            x = g.add(g.choose(("Relu", "Tanh", "Neg", "HardSwish", "Abs")), x)
        else:
            first, flat = g.between(0, g.rank(x)), [g.chance(0.4) for _ in range(g.rank(x))]
            shapes = [tuple(1 if one else d for d, one in zip(s, flat, strict=True))[first:] for s in g.shapes(x)]
            y = g.like(F, shapes)
            y = _qweight(g, y, per_axis=0.2) if g.chance(0.7) else y
            x = g.add(g.choose(("Add", "Mul", "Sub", "Max")), *((x, y) if g.chance(0.5) else (y, x)))
        x = _qweight(g, x, per_axis=0.1) if g.chance(0.3) else x
    return _qweight(g, g.within(x, -8.0, 8.0), per_axis=0.2, there=0.4)


def dynamic(g: OnnxGrowth) -> list[str]:
    x = g.within(g.pick(F, high=3), -8.0, 8.0)
    expect_elements(g, x)
    if not all(array.any() for array in g.values[x]):
        raise Refused("zeros alone, of whose scale everybody thinks otherwise")
    return g.add_all("DynamicQuantizeLinear", 3, x)


def integers(g: OnnxGrowth) -> str:
    """Products and convolutions of bytes."""
    if g.chance(0.4):
        x, channels = g.leaf(U8, (g.dim(), 2, g.between(2, 6), g.between(2, 6)), 0, 9), 2
        expect_elements(g, x)
        w = g.constant(g.draw(U8, (3, channels, 2, 2), 0, 9))
        return g.add("ConvInteger", x, w, g.constant(np.array(g.between(0, 3), U8), hidden=True))
    a = g.leaf(g.choose((U8, I8)), (g.dim(), g.between(1, 5)), 0, 9)
    b = g.constant(g.draw(U8, (g.shape(a)[1], g.between(1, 5)), 0, 9))
    expect_elements(g, a)
    if g.dtype(a) == U8 and g.chance(0.5):
        scale, zero = g.constant(np.array(0.25, F), hidden=True), g.constant(np.array(3, U8), hidden=True)
        return g.add("QLinearMatMul", a, scale, zero, b, scale, zero, scale, zero)
    return g.add("MatMulInteger", a, b, *[g.constant(np.array(1, g.dtype(a)), hidden=True)] * g.between(0, 1))


def converted(g: OnnxGrowth) -> str:
    """Whole numbers from one dtype to another, and on."""
    x = g.within(g.pick(F, I64, I32, high=4), 0, 50)
    x = g.add("Floor", x) if g.dtype(x) == F else x
    for _ in range(g.between(1, 3)):
        x = g.add("Cast", x, to=helper.np_dtype_to_tensor_dtype(g.choose((F16, F64, U8, I8, I16, I32, I64, F))))
    return x


def wide(g: OnnxGrowth) -> str:
    """Arithmetic in another dtype than most."""
    dtype = g.choose((F64, F64, U8, I8, I16))
    shape = g.dims(0, 3)
    x = g.leaf(dtype, shape, 0, 5)
    y = g.like(dtype, g.shapes(x), 1, 5)
    y = g.add(
        g.choose(("Add", "Mul", "Max", "Min", "Sub") if dtype in (F64, I16) else ("Add", "Mul", "Max", "Min")), x, y
    )
    if dtype == F64 and g.chance(0.5):
        return g.add(g.choose(("Sqrt", "Exp", "Relu", "Floor", "Tanh", "Sigmoid")), g.within(y, 0.0, 8.0))
    return g.add("Transpose", y) if g.chance(0.5) else y


# -- subgraphs ------------------------------------------------------------------------------------------------------


def _out(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def _input(g: OnnxGrowth, name: str, like: str, rank: int) -> onnx.ValueInfoProto:
    number = helper.np_dtype_to_tensor_dtype(g.dtype(like))
    return helper.make_tensor_value_info(name, number, [None] * rank)


def branch(g: OnnxGrowth) -> str:
    """Both branches read values around them."""
    x = g.pick(F, I64, low=0)
    y = g.like(g.dtype(x), g.shapes(x))
    label = f"b{len(g.nodes)}"
    bodies = [
        helper.make_graph([helper.make_node(op, names, [f"{label}{op}"])], label, [], [_out(f"{label}{op}")])
        for op, names in ((g.choose(("Add", "Mul")), [x, y]), ("Sub", [y, x]))
    ]
    condition = g.fed(np.array(g.chance(0.5)))
    return g.add("If", condition, then_branch=bodies[0], else_branch=bodies[1])


def loop(g: OnnxGrowth) -> list[str]:
    """A few turns that carry a value, read another around them, and stack what they make."""
    x = g.within(g.pick(F, low=0, high=3), -2.0, 2.0)
    y, label = g.within(g.like(F, g.shapes(x)), -2.0, 2.0), f"l{len(g.nodes)}"
    inputs = [
        helper.make_tensor_value_info(f"{label}i", onnx.TensorProto.INT64, []),
        helper.make_tensor_value_info(f"{label}c", onnx.TensorProto.BOOL, []),
        _input(g, f"{label}v", x, g.rank(x)),
    ]
    nodes = [
        helper.make_node("Identity", [f"{label}c"], [f"{label}d"]),
        helper.make_node("Cast", [f"{label}i"], [f"{label}f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", [f"{label}v", y], [f"{label}w"]),
        helper.make_node("Mul", [f"{label}w", f"{label}f"], [f"{label}o"]),
    ]
    body = helper.make_graph(nodes, label, inputs, [_out(f"{label}{end}") for end in "dwo"])
    turns = np.array(g.between(1, 4))  # of none, nobody knows the shape of what is stacked
    count = g.fed(turns) if g.chance(0.5) else g.constant(turns, hidden=True)
    return g.add_all("Loop", 2, count, "", x, body=body)


def scan(g: OnnxGrowth) -> list[str]:
    """A sum along an axis, from either end."""
    x = g.within(g.pick(F, low=1, high=4), -2.0, 2.0)
    expect_elements(g, x)  # ONNX Runtime divides by their number
    axis, label = g.between(0, g.rank(x) - 1), f"s{len(g.nodes)}"
    state = g.like(F, [shape[:axis] + shape[axis + 1 :] for shape in g.shapes(x)])
    inputs = [_input(g, f"{label}{end}", x, g.rank(x) - 1) for end in "ve"]
    nodes = [
        helper.make_node("Add", [f"{label}v", f"{label}e"], [f"{label}w"]),
        helper.make_node("Abs", [f"{label}w"], [f"{label}o"]),
    ]
    body = helper.make_graph(nodes, label, inputs, [_out(f"{label}{end}") for end in "wo"])
    how = {"scan_input_axes": [axis], "scan_input_directions": [g.between(0, 1)], "scan_output_axes": [axis]}
    return g.add_all("Scan", 2, state, x, body=body, num_scan_inputs=1, **how)


# -- contributed ops ------------------------------------------------------------------------------------------------


def contributed(g: OnnxGrowth) -> str:
    x = g.within(g.pick(F, low=2, high=3), -4.0, 4.0)
    expect_elements(g, x)
    width = {shape[-1] for shape in g.shapes(x)}
    op = g.choose(("Gelu", "QuickGelu", "FastGelu", "BiasGelu", "SkipLayerNormalization", "FusedMatMul"))
    if op in ("Gelu", "QuickGelu", "FastGelu"):
        return g.add(op, x, domain=MICROSOFT)
    if len(width) > 1:
        raise Refused("a width that is not known")
    size = width.pop()
    vector = g.constant(g.draw(F, (size,), -1.0, 1.0), hidden=True)
    if op == "BiasGelu":
        return g.add(op, x, vector, domain=MICROSOFT)
    if op == "FusedMatMul":
        y = g.constant(g.draw(F, (g.between(1, 5), size), -1.0, 1.0))
        return g.add(op, x, y, domain=MICROSOFT, transB=1, alpha=float(g.choose((0.5, 1.0, -2.0))))
    if g.rank(x) != 3 or size == 1:
        raise Refused("rows of a batch")
    return g.add(op, x, g.like(F, g.shapes(x)), vector, domain=MICROSOFT)


def volume(g: OnnxGrowth) -> str:
    """Transposed, over one or three dims."""
    x, channels = image(g)
    expect_elements(g, x)
    spatial, groups = g.rank(x) - 2, int(g.choose((1, channels)))
    kernel = [g.between(1, 3) for _ in range(spatial)]
    w = g.constant(g.draw(F, (channels, g.between(1, 2), *kernel), -1.0, 1.0))
    dilations = [g.between(1, 2) for _ in kernel]
    return g.add("ConvTranspose", x, w, group=groups, dilations=dilations, strides=[g.between(1, 3) for _ in kernel])

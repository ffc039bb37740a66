"""Graphs whose products gain by rounding: rows, images, attention, recurrent layers."""

import numpy as np

from ingot.ir.dim import symbol
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def weight(graph: Graph, name: str, *shape: int) -> str:
    return graph.add_weight(name, random(*shape, seed=len(graph.values)) / np.float32(np.sqrt(np.prod(shape[1:]))))


def linear(width: int = 64) -> Graph:
    """Two layers with a residual between them, for any number of rows."""
    graph = Graph("linear")
    x = graph.add_input("x", TensorType(f32, (symbol("rows"), width)))
    up = graph.add("matmul", [x, weight(graph, "up", 96, width)], "h", transpose_b=True)
    h = graph.add("relu", [graph.add("add", [up.output, weight(graph, "bias", 96)]).output])
    down = graph.add("matmul", [h.output, weight(graph, "down", width, 96)], "d", transpose_b=True)
    graph.set_output("y", graph.add("add", [down.output, x]).output)
    return graph


def image() -> Graph:
    """A pointwise convolution between two of 3 x 3, the first of three channels."""
    graph = Graph("image")
    x = graph.add_input("x", TensorType(f32, (1, 3, 12, 12)))
    plain = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
    for name, (out, channels, size) in {"a": (32, 3, 3), "b": (48, 32, 1), "c": (16, 48, 3)}.items():
        pads = (size // 2,) * 4
        x = graph.add("conv", [x, weight(graph, name, out, channels, size, size)], pads=pads, **plain).output
        x = graph.add("relu", [x]).output
    graph.set_output("y", x)
    return graph


def stretch() -> Graph:
    """Down by a pool, up by a transposed convolution, side by side into one of 3 x 3, and a filter for each channel."""
    graph = Graph("stretch")
    x = graph.add_input("x", TensorType(f32, (2, 6, 12, 10)))
    plain = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}

    def conv(value: str, name: str, out: int, channels: int, **attributes: object) -> str:
        filter = weight(graph, name, out, channels, 3, 3)
        made = graph.add("conv", [value, filter], pads=(1, 1, 1, 1), **(plain | attributes)).output
        return graph.add("relu", [made]).output

    beside = conv(x, "a", 32, 6)
    halves = {"kernel": (2, 2), "strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1)}
    deep = conv(graph.add("max_pool", [beside], **halves).output, "b", 64, 32)
    wide = {"strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1, "output_padding": (0, 0)}
    up = graph.add(
        "conv_transpose", [deep, weight(graph, "up", 64, 32, 2, 2), weight(graph, "bias", 32)], **wide
    ).output
    both = conv(graph.add("concat", [beside, up], axis=1).output, "c", 48, 64)
    graph.set_output("y", conv(conv(both, "each", 48, 1, groups=48), "d", 6, 48))
    return graph


def picture() -> Graph:
    """Two convolutions of three channels, of which one has long windows, and their sum's pixels in a product."""
    graph, plain = Graph("picture"), {"dilations": (1, 1), "groups": 1}
    x = graph.add_input("x", TensorType(f32, (2, 3, 20, 17)))
    long, short = weight(graph, "long", 24, 3, 7, 7), weight(graph, "short", 24, 3, 2, 2)
    a = graph.add("conv", [x, long], pads=(3, 3, 3, 3), strides=(2, 2), **plain).output
    b = graph.add("conv", [x, short], pads=(0, 0, 0, 1), strides=(2, 2), **plain).output
    both, last = graph.add("add", [a, b]).output, weight(graph, "last", 16, 24, 1, 1)
    graph.set_output("y", graph.add("conv", [both, last], pads=(0,) * 4, strides=(1, 1), **plain).output)
    return graph


def encoder() -> Graph:
    """A block whose attention reads slices of one product: pre-norm, with a residual and a gelu."""
    graph = Graph("encoder")
    x = graph.add_input("x", TensorType(f32, (2, 21, 32)))

    def norm(value: str) -> str:
        return graph.add("layer_norm", [value, None, None], eps=1e-5).output

    def product(value: str, name: str, columns: int, width: int) -> str:
        product = graph.add("matmul", [value, weight(graph, name, columns, width)], transpose_b=True).output
        return graph.add("add", [product, weight(graph, f"{name}.bias", columns)]).output

    together, heads = product(norm(x), "qkv", 96, 32), []
    for i in range(3):
        stops = (2, 21, 32 * i + 32)
        part = graph.add("slice", [together], starts=(0, 0, 32 * i), stops=stops, steps=(1, 1, 1)).output
        split = graph.add("reshape", [part], shape=(2, 21, 4, 8)).output
        heads.append(graph.add("permute", [split], axes=(0, 2, 1, 3)).output)
    mixed = graph.add("permute", [graph.add("attention", heads, scale=0.35).output], axes=(0, 2, 1, 3)).output
    x = graph.add("add", [x, product(graph.add("reshape", [mixed], shape=(2, 21, 32)).output, "out", 32, 32)]).output
    up = graph.add("gelu", [product(norm(x), "up", 64, 32)], approximate="erf").output
    graph.set_output("y", graph.add("add", [x, product(up, "down", 32, 64)]).output)
    return graph


def recurrent(op: str, activations: tuple[str, ...], hidden: int, **options: object) -> Graph:
    """A layer of four steps and three sequences, one of which ends early, whose input is what its gates are given."""
    graph, gates, zeros = Graph(op), {"lstm": 4, "gru": 3, "rnn": 1}[op], (0.0,) * len(activations)
    x = graph.add_input("x", TensorType(f32, (4, 3, gates * hidden)))
    bias = [weight(graph, "bias", gates * hidden)] if op == "gru" else []
    states = [weight(graph, name, 3, hidden) for name in ("h", "c")[: 2 if op == "lstm" else 1]]
    lengths = graph.add_constant("lengths", np.array([4, 0, 3]))
    operands = [x, weight(graph, "r", gates * hidden, hidden), *bias, *states, *([None] if op == "lstm" else [])]
    made = graph.add(op, [*operands, lengths], alphas=zeros, betas=zeros, activations=activations, **options)
    last = graph.add("reshape", [made.outputs[1]], shape=(1, 3, hidden))
    graph.set_output("y", graph.add("concat", [made.outputs[0], last.output], axis=0).output)
    return graph


MODELS = {
    "lstm": (lambda: recurrent("lstm", ("sigmoid", "tanh", "tanh"), 70), (4, 3, 280)),
    "lstm, odd": (lambda: recurrent("lstm", ("sigmoid", "tanh", "tanh"), 33, reverse=True), (4, 3, 132)),
    "lstm, clipped": (lambda: recurrent("lstm", ("sigmoid", "tanh", "relu"), 34, clip=0.5), (4, 3, 136)),
    "gru": (lambda: recurrent("gru", ("sigmoid", "tanh"), 70), (4, 3, 210)),
    "gru, reset late": (lambda: recurrent("gru", ("sigmoid", "tanh"), 34, linear_before_reset=True), (4, 3, 102)),
    "rnn": (lambda: recurrent("rnn", ("tanh",), 70, reverse=True), (4, 3, 70)),
    "linear": (linear, (5, 64)),
    "linear, odd": (lambda: linear(33), (40, 33)),
    "image": (image, (1, 3, 12, 12)),
    "stretch": (stretch, (2, 6, 12, 10)),
    "picture": (picture, (2, 3, 20, 17)),
    "encoder": (encoder, (2, 21, 32)),
}

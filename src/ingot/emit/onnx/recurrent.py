"""ONNX rules of recurrent layers. The product of inputs and weights before a layer is part of ONNX's op."""

from __future__ import annotations

import numpy as np

from ingot.emit.onnx.builder import NUMBERS, Builder
from ingot.emit.onnx.registry import rule
from ingot.errors import UnsupportedError
from ingot.ir.dtype import DType, f64, i32, i64
from ingot.ir.graph import Node
from ingot.ops.define import product

_ACTIVATIONS = {
    "affine": "Affine", "elu": "Elu", "hard_sigmoid": "HardSigmoid", "leaky_relu": "LeakyRelu", "relu": "Relu",
    "scaled_tanh": "ScaledTanh", "sigmoid": "Sigmoid", "softplus": "Softplus", "softsign": "Softsign", "tanh": "Tanh",
    "thresholded_relu": "ThresholdedRelu",
}  # fmt: skip
# Activations with an alpha, and those with a beta, in ONNX's lists.
_ALPHA = ("affine", "elu", "hard_sigmoid", "leaky_relu", "scaled_tanh", "thresholded_relu")
_BETA = ("affine", "hard_sigmoid", "scaled_tanh")


@rule("lstm", "gru", "rnn")
def recurrent(builder: Builder, node: Node, gates: str, r: str, *rest: str | None) -> tuple[str, ...]:
    """ONNX multiplies the inputs itself; gates that are no such product are multiplied by the unit matrix."""
    if node.rounded:
        raise UnsupportedError("a hidden state that is rounded is not supported")
    name, first = node.op.name, np.array([0], np.int64)
    type, (rows, hidden) = builder.type(node, 0), builder.type(node, 1).dims
    bias, states, peepholes, lengths = _parts(name, rest)
    if type.shape[0] == 0:  # ONNX Runtime aborts the process
        return (
            builder.Expand(builder.number(0, type.dtype), builder.sizes([0, type.shape[1], hidden])),
            *map(builder.Identity, states),
        )
    x, weights, own = _product(builder, node) or (gates, _unit(builder, rows, type.dtype), None)
    if own or bias:
        nothing = np.zeros(rows, type.dtype.numpy)
        bias = builder.Concat(own or nothing, bias or nothing, axis=0)
    led = [each and builder.Unsqueeze(each, first) for each in (weights, r, bias)]
    counts = None if lengths is None else builder.Cast(lengths, to=NUMBERS[i32])
    begun = [builder.Unsqueeze(state, first) for state in states]
    results = builder.add_all(
        name.upper(),
        1 + len(states),
        *(x, *led, counts, *begun),
        *([builder.Unsqueeze(peepholes, first)] if peepholes else []),
        activations=[_ACTIVATIONS[each] for each in node.activations],
        activation_alpha=_listed(node.activations, node.alphas, _ALPHA),
        activation_beta=_listed(node.activations, node.betas, _BETA),
        clip=float(node.clip) if node.clip > 0 else None,
        direction="reverse" if node.reverse else "forward",
        hidden_size=hidden,
        **{key: node.attributes[key] for key in ("linear_before_reset", "input_forget") if key in node.attributes},
    )
    ended = [builder.Squeeze(state, first) for state in results[1:]]
    if lengths is not None:  # ONNX leaves the results of an empty sequence undefined
        empty = builder.Unsqueeze(builder.Equal(lengths, builder.number(0, i64)), np.array([1], np.int64))
        ended = [builder.Where(empty, *pair) for pair in zip(states, ended, strict=True)]
    return (builder.Squeeze(results[0], np.array([1], np.int64)), *ended)


def _unit(builder: Builder, rows: int, dtype: DType) -> str:
    return builder.EyeLike(builder.ConstantOfShape(np.array([rows, rows], np.int64)), dtype=NUMBERS[dtype])


def _product(builder: Builder, node: Node) -> tuple[str, str, str | None] | None:
    """Return inputs, weights and bias if gates are inputs times transposed weights plus a bias, with steps first."""
    graph, bias = builder.graph, None
    product = graph.producer(node.operands[0])
    is_transposed = product is not None and product.op.name == "permute" and product.axes == (1, 0, 2)
    if product is not None and is_transposed:
        product = graph.producer(product.operands[0])
    if product is not None and product.op.name == "add":
        vectors = [str(each) for each in product.operands if graph.type(str(each)).rank == 1]
        others = [each for each in product.operands if each not in vectors]
        if len(vectors) == 1 and graph.type(vectors[0]).shape == builder.type(node, 1).shape[:1]:
            bias, product = builder.values[vectors[0]], graph.producer(others[0])
    if (
        product is None
        or product.op.name != "matmul"
        or not product.transpose_b
        or product.transpose_a
        or product.scale != 1.0
    ):
        return None
    if builder.type(product, 0).rank != 3 or builder.type(product, 1).rank != 2:
        return None
    x, weights = (builder.values[str(each)] for each in product.operands)
    return builder.Transpose(x, perm=[1, 0, 2]) if is_transposed else x, weights, bias


def _parts(name: str, rest: tuple[str | None, ...]) -> tuple[str | None, list[str], str | None, str | None]:
    """Return bias, states, peepholes and lengths from the operands after the weights."""
    operands = [*rest, None, None]
    bias = operands.pop(0) if name == "gru" else None
    states = [str(operands.pop(0)) for _ in range(2 if name == "lstm" else 1)]
    peepholes = operands.pop(0) if name == "lstm" else None
    return bias, states, peepholes, operands[0]


def _listed(names: tuple[str, ...], numbers: tuple[float, ...], taking: tuple[str, ...]) -> list[float] | None:
    return [float(n) for name, n in zip(names, numbers, strict=True) if name in taking] or None


@rule("linear_attention")
def linear_attention(
    builder: Builder, node: Node, q: str, k: str, v: str, state: str, decay: str | None = None, beta: str | None = None
) -> tuple[str, ...]:
    """ONNX Runtime's op has packed heads, and logarithms of decays."""

    def packed(operand: int, x: str) -> str:
        batch, steps, *rest = builder.type(node, operand).shape
        return builder.Reshape(x, builder.sizes((batch, steps, product(rest))))

    if builder.type(node, 0).dtype is f64:
        raise UnsupportedError("linear attention of f64 is not supported, of f32 is")
    heads = builder.type(node, 0).shape[2]
    result, last = builder.add_all(
        "LinearAttention",
        2,
        *(packed(i, x) for i, x in enumerate((q, k, v))),
        state,
        None if decay is None else packed(4, builder.Log(decay)),
        beta,
        domain="com.microsoft",
        q_num_heads=heads,
        kv_num_heads=heads,
        scale=float(node.scale),
        update_rule=f"{'gated_' if decay else ''}delta" if beta else "gated" if decay else "linear",
    )
    return builder.Reshape(result, builder.sizes(builder.type(node, 2).shape)), last

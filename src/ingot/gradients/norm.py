"""Gradients of normalizations and of attention: statistics and weights are recomputed instead of stored."""

from __future__ import annotations

import math

import numpy as np

from ingot.gradients.registry import Backward, gradient
from ingot.gradients.shape import cut
from ingot.ir.graph import Node
from ingot.ops.attention import expand_gradients
from ingot.ops.norm import expand_centred


@gradient("softmax")
def softmax(g: Backward, node: Node, d: str) -> str:
    """Compute y * (d - sum(y * d))."""
    product = g.mul(d, node.output)
    return g.sub(product, g.mul(node.output, g.reduce_sum(product, axes=(node.axis,), keepdims=True)))


@gradient("log_softmax")
def log_softmax(g: Backward, node: Node, d: str) -> str:
    """Subtract from d the softmax times the sum of d."""
    return g.sub(d, g.mul(g.exp(node.output), g.reduce_sum(d, axes=(node.axis,), keepdims=True)))


@gradient("cross_entropy")
def cross_entropy(g: Backward, node: Node, d: str) -> tuple[str, None]:
    """Compute (softmax - label) * d with its own op, which stores no probabilities."""
    return g.cross_entropy_gradient(*node.operands, d, **node.attributes), None


def _weighted(g: Backward, node: Node, d: str) -> list[str | None] | None:
    """Return the gradients of a norm with a weight, computed by its own op; None without a weight."""
    weight = (*node.operands[1:], None)[0]
    if weight is None:
        return None
    names = [f"{operand}.gradient" for operand in (node.operands[0], weight)]
    names += [f"{node.output}.bias.gradient"] if node.op.name == "layer_norm" else []
    results = g.graph.add(f"{node.op.name}_gradient", [node.operands[0], weight, d], names, eps=node.eps).outputs
    return [None if o is None else each for o, each in zip(node.operands, results, strict=False)]


def _vectors(g: Backward, node: Node, d: str, normal: str) -> list[str | None]:
    """Return the gradients of weight and bias, if there are such operands."""
    operands = [*node.operands[1:], None, None][:2]
    found = zip(operands, (d if operands[0] is None else g.mul(d, normal), d), strict=True)
    return [None if operand is None else g.summed(each, operand) for operand, each in found][: len(node.operands) - 1]


def _scaled(g: Backward, node: Node, d: str) -> str:
    weight = node.operands[1] if len(node.operands) > 1 else None
    return d if weight is None else g.mul(d, weight)


@gradient("layer_norm")
def layer_norm(g: Backward, node: Node, d: str) -> list[str | None]:
    """The gradient of x: d times the weight, minus its mean and minus its component along the normalized x, divided by
    the deviation.
    """
    if (found := _weighted(g, node, d)) is not None:
        return found
    x = str(node.operands[0])
    last = (g.type(x).rank - 1,)
    centred, variance = expand_centred(g, x, last)
    factor = g.reciprocal(g.sqrt(g.add(variance, float(node.eps))))
    normal = g.mul(centred, factor)
    scaled = _scaled(g, node, d)
    mean = g.reduce_mean(scaled, axes=last, keepdims=True)
    share = g.mul(normal, g.reduce_mean(g.mul(scaled, normal), axes=last, keepdims=True))
    return [g.mul(g.sub(g.sub(scaled, mean), share), factor), *_vectors(g, node, d, normal)]


@gradient("rms_norm")
def rms_norm(g: Backward, node: Node, d: str) -> list[str | None]:
    """As for layer norm, without subtracting the mean."""
    if (found := _weighted(g, node, d)) is not None:
        return found
    x = str(node.operands[0])
    last = (g.type(x).rank - 1,)
    square = g.reduce_mean(g.mul(x, x), axes=last, keepdims=True)
    factor = g.reciprocal(g.sqrt(g.add(square, float(node.eps))))
    normal = g.mul(x, factor)
    scaled = _scaled(g, node, d)
    share = g.mul(normal, g.reduce_mean(g.mul(scaled, normal), axes=last, keepdims=True))
    return [g.mul(g.sub(scaled, share), factor), *_vectors(g, node, d, normal)]


@gradient("batch_norm_training")
def batch_norm_training(
    g: Backward, node: Node, d: str | None, of_mean: str | None, of_variance: str | None
) -> list[str]:
    """As for layer norm, per channel; the gradients of mean and variance are distributed to all elements."""
    x, scale, _ = map(str, node.operands)
    _, mean, variance = node.outputs
    dims = g.type(x).dims
    axes, each = (0, *range(2, len(dims))), (dims[1], *[1] * (len(dims) - 2))
    count = float(math.prod(dims[axis] for axis in axes))

    def channels(vector: str) -> str:
        return g.reshape(vector, shape=each)

    d = g.zeros(x) if d is None else d
    centred = g.sub(x, channels(mean))
    factor = g.reciprocal(g.sqrt(g.add(variance, float(node.eps))))
    normal = g.mul(centred, channels(factor))
    of_bias = g.reduce_sum(d, axes=axes, keepdims=False)
    of_scale = g.reduce_sum(g.mul(d, normal), axes=axes, keepdims=False)
    share = g.mul(normal, channels(g.div(of_scale, count)))
    of_x = g.mul(g.sub(g.sub(d, channels(g.div(of_bias, count))), share), channels(g.mul(scale, factor)))
    if of_mean is not None:
        of_x = g.add(of_x, channels(g.div(of_mean, count)))
    if of_variance is not None:
        of_x = g.add(of_x, g.mul(centred, channels(g.div(of_variance, count / 2))))
    return [of_x, of_scale, of_bias]


@gradient("rotary")
def rotary(g: Backward, node: Node, d: str) -> tuple[str, str, str]:
    """The gradient of x is the inverse rotation: the halves of the sines are swapped and negated."""
    x, cos, sin = map(str, node.operands)
    inverse_rotation = g.rotary(d, cos, g.neg(_swapped_halves(g, sin)))
    transposed = g.mul(d, _swapped_halves(g, x))
    sign = np.ones(g.type(x).dims[-1], g.type(x).dtype.numpy)
    sign[: len(sign) // 2] = -1
    of_sin = g.mul(transposed, g.array(f"{node.output}.sign", sign))
    return inverse_rotation, g.summed(g.mul(d, x), cos), g.summed(of_sin, sin)


def _swapped_halves(g: Backward, x: str) -> str:
    """Swap the halves of the last dim."""
    dims = g.type(x).dims
    half, zeros = dims[-1] // 2, (0,) * len(dims)
    low, high = (cut(g, x, (*zeros[:-1], begin), (*dims[:-1], half)) for begin in (0, half))
    return g.concat(high, low, axis=len(dims) - 1)


@gradient("attention")
def attention(g: Backward, node: Node, d: str) -> list[str | None]:
    """Attention weights are recomputed: by a fused op if there is no mask, and if rows that see nothing are zeros."""
    q, k, v, mask = (*map(str, node.operands[:3]), *node.operands[3:], None)[:4]
    if mask is None and _sees(g, node):
        settings = {name: getattr(node, name) for name in ("scale", "causal", "causal_offset")}
        names = [f"{name}.gradient" for name in (q, k, v)]
        results = g.graph.add("attention_gradient", [q, k, v, d], names, **settings).outputs
        return [*results, None][: len(node.operands)]
    of_q, of_k, of_v, scores = expand_gradients(g, q, k, v, d, mask, **node.attributes)
    return [of_q, of_k, of_v, _of_mask(g, mask, scores)][: len(node.operands)]


def _sees(g: Backward, node: Node) -> bool:
    """Return whether every row of attention without a mask sees a column, or is zeros."""
    sees = g.type(str(node.operands[1])).dims[2] > 0 and (not node.causal or node.causal_offset >= 0)
    return not node.zero_nan and (node.safe or sees)


def _of_mask(g: Backward, mask: str | None, scores: str) -> str | None:
    """Return the gradient of a float mask that is added to scores, else None."""
    return g.summed(scores, mask) if mask is not None and g.type(mask).dtype.kind == "f" else None


@gradient("attention_dropout")
def attention_dropout(g: Backward, node: Node, d: str) -> list[str | None]:
    """As for attention; the dropout mask is recomputed."""
    q, k, v, mask, step, part = (*map(str, node.operands[:3]), *node.operands[3:], None, None, None)[:6]
    settings = {name: getattr(node, name) for name in ("scale", "causal", "causal_offset")}
    drawing = {name: getattr(node, name) for name in ("rate", "seed", "stream")}
    if mask is None and step is not None and _sees(g, node):
        names = [f"{name}.gradient" for name in (q, k, v)]
        operands = [q, k, v, d, step, part]
        results = g.graph.add("attention_dropout_gradient", operands, names, **settings, **drawing).outputs
        return [*results, *[None] * 3][: len(node.operands)]

    def drops(x: str) -> str:
        return g.dropout(x, step, part, **drawing)

    settings |= {"safe": node.safe, "zero_nan": node.zero_nan}
    of_q, of_k, of_v, scores = expand_gradients(g, q, k, v, d, mask, drops, **settings)
    return [of_q, of_k, of_v, _of_mask(g, mask, scores), None, None][: len(node.operands)]

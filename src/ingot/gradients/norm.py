"""Gradients of normalisations and of attention: what they divide by is computed again, and not kept."""

from __future__ import annotations

from ingot.gradients.registry import Backward, gradient
from ingot.ir import Node
from ingot.ops.attention import expand_heads, expand_weights
from ingot.ops.norm import expand_centred


@gradient("softmax")
def softmax(g: Backward, node: Node, d: str) -> str:
    """y times what d is above its mean under y."""
    product = g.mul(d, node.output)
    return g.sub(product, g.mul(node.output, g.reduce_sum(product, axes=(node.axis,), keepdims=True)))


@gradient("log_softmax")
def log_softmax(g: Backward, node: Node, d: str) -> str:
    """d less the softmax times the sum of d."""
    return g.sub(d, g.mul(g.exp(node.output), g.reduce_sum(d, axes=(node.axis,), keepdims=True)))


def _vectors(g: Backward, node: Node, d: str, normal: str) -> list[str | None]:
    """The gradients of weight and bias, where there are such operands."""
    operands = [*node.operands[1:], None, None][:2]
    found = zip(operands, (d if operands[0] is None else g.mul(d, normal), d), strict=True)
    return [None if operand is None else g.summed(each, operand) for operand, each in found][: len(node.operands) - 1]


def _weighed(g: Backward, node: Node, d: str) -> str:
    weight = node.operands[1] if len(node.operands) > 1 else None
    return d if weight is None else g.mul(d, weight)


@gradient("layer_norm")
def layer_norm(g: Backward, node: Node, d: str) -> list[str | None]:
    """Of x: d times the weight, less its mean and less its share of the normalised x, over the deviation."""
    x = str(node.operands[0])
    last = (g.type(x).rank - 1,)
    centred, variance = expand_centred(g, x, last)
    factor = g.reciprocal(g.sqrt(g.add(variance, float(node.eps))))
    normal = g.mul(centred, factor)
    weighed = _weighed(g, node, d)
    mean = g.reduce_mean(weighed, axes=last, keepdims=True)
    share = g.mul(normal, g.reduce_mean(g.mul(weighed, normal), axes=last, keepdims=True))
    return [g.mul(g.sub(g.sub(weighed, mean), share), factor), *_vectors(g, node, d, normal)]


@gradient("rms_norm")
def rms_norm(g: Backward, node: Node, d: str) -> list[str | None]:
    """As that of layer norm, of an x whose mean is left in."""
    x = str(node.operands[0])
    last = (g.type(x).rank - 1,)
    square = g.reduce_mean(g.mul(x, x), axes=last, keepdims=True)
    factor = g.reciprocal(g.sqrt(g.add(square, float(node.eps))))
    normal = g.mul(x, factor)
    weighed = _weighed(g, node, d)
    share = g.mul(normal, g.reduce_mean(g.mul(weighed, normal), axes=last, keepdims=True))
    return [g.mul(g.sub(weighed, share), factor), *_vectors(g, node, d, normal)]


@gradient("attention")
def attention(g: Backward, node: Node, d: str) -> list[str | None]:
    """Of the scores as that of softmax, then of the products; heads of one group are added up. Weights are made again.

    A row that sees nothing has weights of 0, and so gradients of 0.
    """
    q, k, v, mask = (*node.operands, None)[:4]
    heads = g.type(str(q)).dims[1]
    wide_k, wide_v = expand_heads(g, k, heads), expand_heads(g, v, heads)
    weights = expand_weights(g, q, wide_k, mask, **node.attributes)
    read = g.mul(weights, g.matmul(d, wide_v, transpose_b=True))
    scores = g.sub(read, g.mul(weights, g.reduce_sum(read, axes=(3,), keepdims=True)))
    of_q = g.matmul(scores, wide_k, scale=node.scale)
    of_k = g.matmul(scores, q, transpose_a=True, scale=node.scale)
    of_v = g.matmul(weights, d, transpose_a=True)
    found: list[str | None] = [of_q, _grouped(g, of_k, str(k)), _grouped(g, of_v, str(v))]
    if len(node.operands) == 4:
        found.append(None if mask is None or g.type(mask).dtype.kind != "f" else g.summed(scores, mask))
    return found


def _grouped(g: Backward, d: str, value: str) -> str:
    """The sum over the query heads of each key and value head."""
    batch, kv_heads, length, width = g.type(value).dims
    heads = g.type(d).dims[1]
    if heads == kv_heads:
        return d
    d = g.reshape(d, shape=(batch, kv_heads, heads // kv_heads, length, width))
    return g.reduce_sum(d, axes=(2,), keepdims=False)

"""Batch norm folded into the convolution or linear layer before it, else into one multiply and one add."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.ir.graph import Graph, Node
from ingot.passes.dce import eliminate_dead
from ingot.passes.match import add_scalar, has_known_type, is_fixed


def fold_batch_norm(graph: Graph) -> bool:
    """Rewrite y = (x - mean) / sqrt(variance + eps) * scale + bias, with constant statistics, to x * factor + shift.

    Right after a conv or a matmul with a constant rank-2 weight and no other reader, the factor goes into the weight
    and the shift into the bias. Both are nodes over the parameters: folding evaluates small ones, and a large weight
    times its factor becomes a packed weight of the weight store.
    """
    if "batch_norm" not in graph.ops:
        return False
    changed = eliminate_dead(graph)  # they would read the result before
    for node in graph.nodes:
        if node.op.name != "batch_norm" or not has_known_type(graph, node.output):
            continue
        if all(is_fixed(graph, o) for o in node.operands[1:]):
            changed |= _fold(graph, node)
    return changed


@dataclass(frozen=True)
class _Affine:
    """factor and shift: vectors over the channels."""

    factor: str
    shift: str


def _fold(graph: Graph, node: Node) -> bool:
    x = node.operands[0]
    assert x is not None
    producer = graph.producer(x)
    result: str | None = None
    if producer is not None and graph.only_user(x) is node:
        if producer.op.name == "conv" and is_fixed(graph, producer.operands[1]):
            result = _into_conv(graph, node, producer)
        elif producer.op.name in ("matmul", "add") and graph.type(x).rank == 2:
            result = _into_linear(graph, node, producer)
    if result is None:
        affine = _affine(graph, node)
        shape = (-1,) + (1,) * (graph.type(x).rank - 2)
        factor, shift = (_shaped(graph, node, name, shape) for name in (affine.factor, affine.shift))
        scaled = graph.add("mul", [x, factor], f"{node.output}.scaled", before=node).output
        result = graph.add("add", [scaled, shift], f"{node.output}.shifted", before=node).output
    name = node.output
    graph.replace(node, result)
    graph.rename(result, name)
    return True


def _affine(graph: Graph, node: Node) -> _Affine:
    _, scale, bias, mean, variance = node.operands
    name = node.output
    eps = add_scalar(graph, node.eps, str(variance), f"{name}.eps")
    spread = graph.add("add", [variance, eps], f"{name}.spread", before=node).output
    deviation = graph.add("sqrt", [spread], f"{name}.deviation", before=node).output
    factor = graph.add("div", [scale, deviation], f"{name}.factor", before=node).output
    offset = graph.add("mul", [mean, factor], f"{name}.offset", before=node).output
    return _Affine(factor, graph.add("sub", [bias, offset], f"{name}.shift", before=node).output)


def _shaped(graph: Graph, node: Node, name: str, shape: tuple[int, ...]) -> str:
    """Reshape a vector; -1 means its length."""
    (length,) = graph.type(name).shape
    full = tuple(length if d == -1 else d for d in shape)
    if len(full) == 1:
        return name
    return graph.add("reshape", [name], f"{name}.shaped", before=node, shape=full).output


def _shifted(graph: Graph, node: Node, bias: str | None, affine: _Affine) -> str:
    """Return bias * factor + shift, or the shift if there is no bias."""
    if bias is None:
        return affine.shift
    scaled = graph.add("mul", [bias, affine.factor], f"{node.output}.bias", before=node).output
    return graph.add("add", [scaled, affine.shift], f"{node.output}.bias", before=node).output


def _into_conv(graph: Graph, node: Node, conv: Node) -> str:
    x, weight, *rest = conv.operands
    assert weight is not None
    affine = _affine(graph, node)
    shape = (-1,) + (1,) * (graph.type(weight).rank - 1)
    factor = _shaped(graph, node, affine.factor, shape)
    scaled = graph.add("mul", [weight, factor], f"{weight}.scaled", before=node).output
    bias = _shifted(graph, node, rest[0] if rest else None, affine)
    return graph.add("conv", [x, scaled, bias], f"{node.output}.conv", before=node, **conv.attributes).output


def _into_linear(graph: Graph, node: Node, producer: Node) -> str | None:
    """Fold into matmul(x, w) or add(matmul(x, w), bias) with a bias vector."""
    bias: str | None = None
    matmul: Node | None = producer
    if producer.op.name == "add":
        product, bias = producer.operands
        matmul = graph.producer(product)
        if bias is None or graph.type(bias).rank != 1 or not is_fixed(graph, bias):
            return None
        if product is None or graph.only_user(product) is None:
            return None
    if matmul is None or matmul.op.name != "matmul":
        return None
    x, weight = matmul.operands
    if weight is None or graph.type(weight).rank != 2 or not is_fixed(graph, weight):
        return None
    affine = _affine(graph, node)
    factor = _shaped(graph, node, affine.factor, (-1, 1) if matmul.transpose_b else (-1,))
    scaled = graph.add("mul", [weight, factor], f"{weight}.scaled", before=node).output
    added = graph.add("matmul", [x, scaled], f"{node.output}.product", before=node, **matmul.attributes).output
    return graph.add("add", [added, _shifted(graph, node, bias, affine)], node.output, before=node).output

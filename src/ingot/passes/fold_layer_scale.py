"""A layer's scale, as ConvNeXt and CaiT multiply the results of a branch by, folded into the linear layer before it."""

from __future__ import annotations

from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, Node
from ingot.passes.match import has_known_type, is_fixed

_CHANNELS_FIRST = (0, 3, 1, 2)


def fold_layer_scale(graph: Graph) -> bool:
    """Rewrite (x @ w + b) * s to x @ (w * s) + b * s, for a constant factor of each column and no other readers.

    w is an f32 weight that nothing else reads; the scaled one becomes a packed weight of the weight store. The sum with
    a residual may be between two permutes of images: add(permute(a), permute(b)) becomes permute(add(a, b)), so that
    it follows the product.
    """
    changed = False
    for node in graph.nodes:
        if node.op.name == "mul" and has_known_type(graph, node.output):
            changed |= _fold(graph, node)
        elif node.op.name == "add" and has_known_type(graph, node.output):
            changed |= _sink(graph, node)
    return changed


def _fold(graph: Graph, node: Node) -> bool:
    for x, scale in (node.operands, node.operands[::-1]):
        linear, bias = _linear(graph, x)
        shape = graph.type(node.output).shape
        if linear is None or not is_fixed(graph, scale) or graph.type(str(scale)).shape != shape[-1:]:
            continue
        x, weight = linear.operands
        column = str(scale)
        if linear.transpose_b:
            (length,) = graph.type(column).shape
            column = graph.add("reshape", [column], f"{scale}.shaped", before=node, shape=(length, 1)).output
        scaled = graph.add("mul", [weight, column], f"{weight}.scaled", before=node).output
        result = graph.add("matmul", [x, scaled], f"{node.output}.product", before=node, **linear.attributes).output
        if bias is not None:
            shift = graph.add("mul", [bias, scale], f"{bias}.scaled", before=node).output
            result = graph.add("add", [result, shift], f"{node.output}.shifted", before=node).output
        _put(graph, node, result)
        return True
    return False


def _linear(graph: Graph, name: str | None) -> tuple[Node | None, str | None]:
    """Return the product with a weight that computes a value for one reader, and its constant bias, if it has one."""
    node, bias = graph.producer(name), None
    if node is not None and graph.only_user(node.outputs[0]) is not None and node.op.name == "add":
        product, bias = node.operands
        node = graph.producer(product)
        if bias is None or graph.type(bias).rank != 1 or not is_fixed(graph, bias):
            return None, None
    if node is None or node.op.name != "matmul" or graph.only_user(node.output) is None:
        return None, None
    weight = str(node.operands[1])
    value = graph.values[weight]
    is_plain = value.kind == "weight" and graph.type(weight).rank == 2 and graph.type(weight).dtype is f32
    return (node, bias) if is_plain and graph.only_user(weight) is node else (None, None)


def _sink(graph: Graph, node: Node) -> bool:
    permutes = [graph.producer(operand) for operand in node.operands]
    if any(p is None or p.op.name != "permute" or p.axes != _CHANNELS_FIRST for p in permutes):
        return False
    images = [str(p.operands[0]) for p in permutes if p is not None]
    is_branch = any(graph.only_user(str(operand)) is node for operand in node.operands)
    if not is_branch or graph.type(images[0]) != graph.type(images[1]):
        return False
    total = graph.add("add", images, f"{node.output}.last", before=node).output
    first = graph.add("permute", [total], f"{node.output}.first", before=node, axes=_CHANNELS_FIRST).output
    _put(graph, node, first)
    return True


def _put(graph: Graph, node: Node, result: str) -> None:
    """Replace a node's value by another, which gets the node's name."""
    name = node.output
    graph.replace(node, result)
    graph.rename(result, name)

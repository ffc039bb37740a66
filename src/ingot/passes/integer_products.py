"""Rewrite products of dequantized operands to products of integers, and move data movements before dequantize.

A quantized model has a float op between dequantize and quantize. Sums of products of integers are exact; the scale of
the sums is the product of both operands' scales.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.ir.dtype import f32, i32
from ingot.ir.graph import Graph, Node, TensorType
from ingot.ops.integer import BYTES
from ingot.passes.fold import known
from ingot.passes.match import has_known_type, is_fixed, same_type, substitute

_MOVES = frozenset(("expand", "permute", "reshape", "slice"))
_HOMOGENEOUS = frozenset(("leaky_relu", "relu"))  # f(a x) = a f(x) for a > 0
_PRODUCTS = ("conv_integer", "matmul_integer")
_WHOLE = 2.0**24  # below it, floats represent all integers
_CLOSE = 1e-6  # relative, of scales that are equal apart from the rounding of their product


def multiply_integers(graph: Graph) -> bool:
    """Rewrite matmul(dequantize(a), dequantize(b)) to dequantize(matmul_integer(a, b)), and convolutions alike."""
    if graph.ops.isdisjoint(("dequantize", *_PRODUCTS)):
        return False
    changed = False
    for node in graph.nodes:
        if node.op.name in ("matmul", "conv") and has_known_type(graph, node.output):
            changed |= _multiply(graph, node)
        elif node.op.name == "add":
            changed |= _absorb_bias(graph, node)
        elif node.op.name == "mul":
            changed |= _absorb_scale(graph, node)
    return changed


def _decoded(graph: Graph, name: str | None) -> Node | None:
    """Return the dequantize of bytes to f32 that computes a value, if it has no blocks."""
    node = graph.producer(name)
    if node is None or node.op.name != "dequantize" or node.dtype is not f32 or node.block:
        return None
    integers, scale = graph.type(str(node.operands[0])), graph.type(str(node.operands[1]))
    return node if integers.dtype in BYTES and scale.dtype is f32 else None


def _is_single(graph: Graph, name: str | None) -> bool:
    """Return whether a scale or zero point applies to all elements; a missing one does."""
    return name is None or graph.type(name).shape in ((), (1,))


def _scale_and_zero_point(node: Node) -> tuple[str, str | None]:
    """Return the scale and the zero point of a quantize or dequantize."""
    scale, zero = (*node.operands[1:], None)[:2]
    return str(scale), zero


def _multiply(graph: Graph, node: Node) -> bool:
    left, right = _decoded(graph, node.operands[0]), _decoded(graph, node.operands[1])
    if left is None or right is None or is_fixed(graph, left.operands[0]):
        return False
    is_conv = node.op.name == "conv"
    weight = graph.type(str(right.operands[0]))
    columns = 0 if is_conv else weight.rank - (2 if node.transpose_b else 1)
    (scale, zero), (weight_scale, weight_zero) = _scale_and_zero_point(left), _scale_and_zero_point(right)
    is_each = (
        is_conv and left.axis == 1 and weight.shape[:2] == (node.groups, 1)
    )  # the scale of a channel is the scale of its filter
    if not (is_each or _is_single(graph, scale)) or not _is_single(graph, zero) or (not is_conv and node.transpose_a):
        return False
    if not _is_single(graph, weight_scale) and (right.axis != columns or (not is_conv and weight.rank != 2)):
        return False
    is_single = _is_single(graph, scale) and _is_single(graph, weight_scale)
    axis = 1 if is_conv else graph.type(node.output).rank - 1
    number = 1.0 if is_conv else node.scale
    total = _scale_product(graph, node, scale, weight_scale, number)
    operands = [left.operands[0], right.operands[0], None, zero, weight_zero]
    names = ("strides", "pads", "dilations", "groups") if is_conv else ("transpose_b",)
    attributes = {name: node.attributes[name] for name in names}
    sums = graph.add(f"{node.op.name}_integer", operands, f"{node.output}.sums", before=node, **attributes).output
    scaled = graph.add(
        "dequantize",
        [sums, total],
        f"{node.output}.scaled",
        before=node,
        axis=0 if is_single else axis,
        block=0,
        dtype=f32,
    ).output
    if is_conv and len(node.operands) > 2 and node.operands[2] is not None:
        shape = (graph.type(str(node.operands[2])).shape[0], *[1] * (graph.type(node.output).rank - 2))
        bias = graph.add("reshape", [node.operands[2]], f"{node.output}.bias", before=node, shape=shape).output
        scaled = graph.add("add", [scaled, bias], f"{node.output}.biased", before=node).output
    _put(graph, node, scaled)
    return True


def _put(graph: Graph, node: Node, result: str) -> None:
    """Replace a node's value by another, which gets the node's name."""
    name = node.output
    graph.replace(node, result)
    graph.rename(result, name)


def _scale_product(graph: Graph, node: Node, scale: str, weight_scale: str, number: float) -> str:
    """Return the scale of sums: one, or one per column; a constant if the factors are known."""
    hint = f"{node.output}.scale"
    shapes = [() if _is_single(graph, name) else graph.type(name).shape for name in (scale, weight_scale)]
    x, weight = graph.data(scale), graph.data(weight_scale)
    if x is not None and weight is not None:
        product = (x if shapes[0] else x.reshape(())) * (weight if shapes[1] else weight.reshape(()))
        return graph.add_constant(graph.fresh(hint), np.asarray(product * np.float32(number), np.float32))
    factors = []
    for name, dims in zip((scale, weight_scale), shapes, strict=True):
        is_so = graph.type(name).shape == dims
        factors.append(name if is_so else graph.add("reshape", [name], hint, before=node, shape=dims).output)
    product = graph.add("mul", factors, hint, before=node).output
    if number != 1.0:
        factor = graph.add_constant(graph.fresh(hint), np.array(number, np.float32))
        product = graph.add("mul", [product, factor], hint, before=node).output
    return product


def _absorb_scale(graph: Graph, node: Node) -> bool:
    """Rewrite f32(sums) * scale to dequantize(sums, scale), for one scale or one per column."""
    for floats, scale in (node.operands, node.operands[::-1]):
        cast = graph.producer(floats)
        sums = None if cast is None or cast.op.name != "cast" else graph.producer(cast.operands[0])
        if (
            sums is None
            or sums.op.name not in _PRODUCTS
            or not same_type(graph.type(str(floats)), graph.type(node.output))
        ):
            continue
        axis = graph.type(sums.output).rank - 1 if sums.op.name == "matmul_integer" else 0
        shape, columns = graph.type(str(scale)).shape, graph.type(sums.output).shape[axis : axis + 1]
        is_single = shape in ((), (1,))
        if graph.type(node.output).dtype is f32 and (is_single or (axis and shape == columns)):
            operands = [sums.output, scale]
            attributes = {"axis": 0 if is_single else axis, "block": 0, "dtype": f32}
            return substitute(graph, node, "dequantize", operands, attributes) is not None
    return False


def _absorb_bias(graph: Graph, node: Node) -> bool:
    """Rewrite dequantize(sums) + dequantize(bias) of the same scale to dequantize(sums + bias), which is exact."""
    for scaled_name, bias_name in (node.operands, node.operands[::-1]):
        scaled, bias = graph.producer(scaled_name), graph.producer(bias_name)
        while bias is not None and bias.op.name == "reshape":
            bias = graph.producer(bias.operands[0])
        product = graph.producer(scaled.operands[0]) if scaled is not None and scaled.op.name == "dequantize" else None
        if scaled is None or product is None or product.op.name not in _PRODUCTS or len(product.operands) < 2:
            continue
        if (*product.operands[2:3], None)[0] is not None:
            continue
        if bias is None and (integers := _bias_quant(graph, node, str(bias_name), scaled, product)) is not None:
            name = graph.add_constant(graph.fresh(f"{node.output}.bias.quantized"), integers)
            graph.set_operands(product, [*product.operands[:2], name, *product.operands[3:]])
            _put(graph, node, scaled.output)
            return True
        if bias is None or bias.op.name != "dequantize":
            continue
        only = graph.only_user(scaled.output) is node and graph.only_user(product.output) is scaled
        if only and _fits_bias(graph, node, str(bias_name), scaled, bias, product):
            graph.set_operands(product, [*product.operands[:2], bias.operands[0], *product.operands[3:]])
            _put(graph, node, scaled.output)
            return True
    return False


def _bias_quant(graph: Graph, node: Node, added: str, scaled: Node, product: Node) -> np.ndarray | None:
    """Return a known bias per column as integer multiples of the sums' scale; None if it is not."""
    bias, scale, sums = graph.data(added), graph.data(_scale_and_zero_point(scaled)[0]), graph.type(product.output)
    axis = 1 if product.op.name == "conv_integer" else sums.rank - 1
    if bias is None or scale is None or bias.dtype != np.float32 or not _is_each_column(graph, added, sums, axis):
        return None
    if graph.only_user(scaled.output) is not node or graph.only_user(product.output) is not scaled:
        return None
    bias, scale = bias.ravel().astype(np.float64), scale.ravel().astype(np.float64)
    with np.errstate(all="ignore"):
        integers = np.rint(bias / scale)
        fits = np.isclose(integers * scale, bias, rtol=_CLOSE, atol=0) & (abs(integers) < _WHOLE)
    return integers.astype(np.int32) if fits.all() else None


def _is_each_column(graph: Graph, name: str, sums: TensorType, axis: int) -> bool:
    """Return whether a value has one element per index of an axis of sums, as it broadcasts over them."""
    each = (*sums.shape[axis : axis + 1], *[1] * (sums.rank - 1 - axis))
    return graph.type(name).shape in (each, (1, *each))


def _fits_bias(graph: Graph, node: Node, added: str, scaled: Node, bias: Node, product: Node) -> bool:
    """Return whether a dequantized bias has one element per column, and the sums' scale."""
    integers, zero = graph.type(str(bias.operands[0])), _scale_and_zero_point(bias)[1]
    sums = graph.type(product.output)
    axis = 1 if product.op.name == "conv_integer" else sums.rank - 1
    if integers.dtype is not i32 or integers.rank != 1 or integers.shape != sums.shape[axis : axis + 1] or bias.block:
        return False
    if not _is_each_column(graph, added, sums, axis) or not is_fixed(graph, bias.operands[0]):
        return False
    if not same_type(graph.type(node.output), graph.type(scaled.output)):
        return False
    steps, zeros = (
        (graph.data(_scale_and_zero_point(each)[0]) for each in (scaled, bias)),
        None if zero is None else graph.data(zero),
    )
    ours, theirs = steps
    if ours is None or theirs is None or (zero is not None and (zeros is None or bool(zeros.any()))):
        return False
    return bool(np.allclose(theirs.ravel(), ours.ravel(), rtol=_CLOSE, atol=0))


def move_integers(graph: Graph) -> bool:
    """Move data movements and maxima before dequantize, where they act on bytes; remove redundant requantization."""
    if "dequantize" not in graph.ops:
        return False
    changed = False
    for node in graph.nodes:
        if node.op.name in ("quantize", "dequantize"):
            changed |= _join_zero_points(graph, node)
        if node.op.name == "quantize":
            changed |= _stay(graph, node) or _saturate(graph, node) or _rescale(graph, node)
        elif node.op.name in _MOVES or node.op.name in ("max_pool", "concat"):
            changed |= _move(graph, node)
    return changed


def _join_zero_points(graph: Graph, node: Node) -> bool:
    """Replace equal zero points along an axis of activations by one."""
    zero = _scale_and_zero_point(node)[1]
    if node.block or zero is None or is_fixed(graph, node.operands[0]):
        return False
    zeros = graph.data(zero)
    if zeros is None or zeros.size < 2 or bool((zeros != zeros.flat[0]).any()):
        return False
    one = graph.add_constant(graph.fresh(f"{node.output}.zero"), zeros.reshape(-1)[0].reshape(()))
    graph.set_operands(node, [*node.operands[:2], one])
    return True


def _known_scales(graph: Graph, node: Node) -> tuple[np.ndarray, float] | None:
    """Return the known scales of a quantize to bytes, [] or one per index of its axis, and its only zero point."""
    scale, zero = _scale_and_zero_point(node)
    scales, zeros = graph.data(scale), np.zeros(1) if zero is None else graph.data(zero)
    is_plain = node.dtype in BYTES and node.precision is f32 and graph.type(str(node.operands[0])).dtype is f32
    if not is_plain or node.block or scales is None or scales.dtype != np.float32 or zeros is None or zeros.size != 1:
        return None
    return scales.reshape(() if scales.size == 1 else -1), float(zeros.item())


def _equal(graph: Graph, a: str | None, b: str | None) -> bool:
    """Return whether scales or zero points are known to be the same single number."""
    if a == b:
        return True
    arrays = [np.zeros(1) if name is None else graph.data(name) for name in (a, b)]
    numbers = [array.item() for array in arrays if array is not None and array.size == 1]
    return len(numbers) == 2 and numbers[0] == numbers[1]


def _has_same_scales(graph: Graph, a: Node, b: Node) -> bool:
    scales, zeros = zip(_scale_and_zero_point(a), _scale_and_zero_point(b), strict=True)
    singles = all(_is_single(graph, name) for name in (*scales, *zeros))
    return singles and _equal(graph, *scales) and _equal(graph, *zeros)


def _stay(graph: Graph, node: Node) -> bool:
    """Rewrite quantize(dequantize(x)) of the same scale to x."""
    source = _decoded(graph, node.operands[0])
    if source is None or node.precision is not f32 or not _has_same_scales(graph, source, node):
        return False
    scale = graph.data(_scale_and_zero_point(node)[0])
    integers = str(source.operands[0])
    if scale is None or not scale.item() > 0 or not same_type(graph.type(integers), graph.type(node.output)):
        return False
    graph.replace(node, integers)
    return True


def _bounds(node: Node | None) -> tuple[float, float] | None:
    """Return the bounds of a relu's or clip's results."""
    if node is None or node.op.name not in ("clip", "relu"):
        return None
    return (0.0, math.inf) if node.op.name == "relu" else (node.minimum, node.maximum)


def _saturate(graph: Graph, node: Node) -> bool:
    """Rewrite quantize(clip(x)) to quantize(x) if the bounds equal or exceed those of the integers."""
    above, steps = graph.producer(node.operands[0]), _known_scales(graph, node)
    bounds = _bounds(above)
    if above is None or bounds is None or steps is None or not (steps[0] > 0).all() or math.isnan(sum(bounds)):
        return False
    lowest, highest = (np.float32(limit - steps[1]) for limit in node.dtype.limits)
    low, high = (np.rint(np.float32(bound) / steps[0]) for bound in bounds)
    if (low > lowest).any() or (high < highest).any():
        return False
    graph.set_operands(node, [above.operands[0], *node.operands[1:]])
    return True


def _rescale(graph: Graph, node: Node) -> bool:
    """Rewrite quantize(dequantize(sums, a), b) to quantize(dequantize(sums, a / b), 1), as integer engines compute it.

    In between there may be an activation with f(x) / b = f(x / b), a clip, or a sum with another dequantize.
    """
    name, activation = str(node.operands[0]), None
    above = graph.producer(name)
    if above is not None and above.op.name in (*_HOMOGENEOUS, "clip") and graph.only_user(name) is node:
        activation, name = above, str(above.operands[0])
        above = graph.producer(name)
    if above is None or graph.only_user(name) is not (activation or node):
        return False
    scaled, steps = _scaled(graph, above), _known_scales(graph, node)
    if not any(_is_of_product(graph, each) for each, _ in scaled) or steps is None:
        return False
    out_scale = steps[0]
    if (out_scale == 1).all() or not (out_scale > 0).all():
        return False
    if out_scale.ndim and not _fit_columns(graph, node, activation, scaled):
        return False
    for each, index in scaled:
        array = known(graph, str(each.operands[index]))
        assert array is not None
        divisor = out_scale.reshape(array.shape) if out_scale.ndim else out_scale
        divided = graph.add_constant(graph.fresh(f"{node.output}.scale"), np.asarray(array / divisor, np.float32))
        graph.set_operands(each, [*each.operands[:index], divided, *each.operands[index + 1 :]])
    one = graph.add_constant(graph.fresh(f"{node.output}.one"), np.array(1, np.float32))
    graph.set_operands(node, [node.operands[0], one, *node.operands[2:]])
    if activation is not None and activation.op.name == "clip":
        bounds = {word: float(np.float32(activation.attributes[word]) / out_scale) for word in ("minimum", "maximum")}
        substitute(graph, activation, "clip", activation.operands, bounds)
    return True


def _fit_columns(graph: Graph, node: Node, activation: Node | None, scaled: list[tuple[Node, int]]) -> bool:
    """Return whether a quantize's scales per index of its axis can divide the operands that `_scaled` names.

    Each must have as many elements along that axis. With a clip it is impossible: its bounds are single numbers.
    """

    def fits(each: Node, index: int) -> bool:
        name = str(each.operands[index])
        if each.op.name == "dequantize":
            return each.axis == node.axis and not _is_single(graph, name)
        return _is_each_column(graph, name, graph.type(node.output), node.axis)

    return (activation is None or activation.op.name != "clip") and all(fits(each, index) for each, index in scaled)


def _scaled(graph: Graph, node: Node) -> list[tuple[Node, int]]:
    """Return the nodes and operand indices that must be divided to divide the result of `node`.

    For a dequantize: its known scale. For an add: those of both operands without another reader, or a known f32 bias.
    None for other nodes.
    """
    if node.op.name == "dequantize":
        is_plain = node.dtype is f32 and not node.block and graph.data(_scale_and_zero_point(node)[0]) is not None
        return [(node, 1)] if is_plain else []
    found: list[tuple[Node, int]] = []
    for index, operand in enumerate(node.operands if node.op.name == "add" else ()):
        producer, array = graph.producer(operand), known(graph, str(operand))
        if array is not None and array.dtype == np.float32:
            found.append((node, index))
        elif producer is None or graph.only_user(str(operand)) is not node or not (inner := _scaled(graph, producer)):
            return []
        else:
            found += inner
    return found


def _is_of_product(graph: Graph, decoded: Node) -> bool:
    """Return whether a node dequantizes the sums of a product, or these sums after a quantize."""
    source = graph.producer(decoded.operands[0]) if decoded.op.name == "dequantize" else None
    if source is not None and source.op.name == "quantize":
        above = graph.producer(source.operands[0])
        source = None if above is None or above.op.name != "dequantize" else graph.producer(above.operands[0])
    return source is not None and source.op.name in _PRODUCTS


def _move(graph: Graph, node: Node) -> bool:
    sources = [_decoded(graph, operand) for operand in node.operands]
    first = sources[0]
    if first is None or not has_known_type(graph, node.output) or is_fixed(graph, first.operands[0]):
        return False
    scale, zero = _scale_and_zero_point(first)
    if not _is_single(graph, scale) or not _is_single(graph, zero):
        return False
    if any(each is None or not _has_same_scales(graph, each, first) for each in sources):
        return False
    integers = [str(each.operands[0]) for each in sources if each is not None]
    if len({graph.type(each).dtype for each in integers}) > 1:
        return False
    if node.op.name == "max_pool":
        step = graph.data(scale)
        pads = zip(node.pads, (*node.kernel, *node.kernel), strict=True)
        sees_some = all(pad < size for pad, size in pads) and set(node.dilations) == {1}
        if step is None or not step.item() > 0 or not sees_some:  # over padding alone, bytes have no lowest number
            return False
    attributes: dict[str, Any] = node.attributes
    moved = graph.add(node.op.name, integers, f"{node.output}.quantized", before=node, **attributes).output
    steps = [scale] if zero is None else [scale, zero]
    decoded = graph.add(
        "dequantize", [moved, *steps], f"{node.output}.floats", before=node, axis=0, block=0, dtype=f32
    ).output
    _put(graph, node, decoded)
    return True

"""Sinking: move data movements below ops that do not depend on them, until they meet their inverse.

A reshape that merges rows moves below ops that act on each row alone. Models written with 2-D layers (GPT-2's Conv1D,
addmm) wrap each layer in such a pair; without it, bias, activation and residual follow the matmul directly. A permute
to channels-last images moves below element-wise ops. Models from TensorFlow wrap every convolution in such a pair, and
add its bias outside. Both move below an activation of a convolution's result, which the convolution then applies
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.ir.dtype import i32
from ingot.ir.graph import Graph, Node
from ingot.ops.define import product, replace_node
from ingot.passes.match import has_known_type, is_fixed

_OF_IMAGES = frozenset(("avg_pool", "batch_norm", "conv", "conv_transpose", "max_pool", "resample"))
_WITH_CHANNELS = _OF_IMAGES | {"pad"}
_OF_ROWS = ("matmul", "matmul_integer")
_MOVES = ("permute", "reshape")
_SCALED = ("dequantize", "quantize")
_STILL_IMAGES = frozenset(("concat", "expand", "pad", "reshape", "slice"))


def sink_reshapes(graph: Graph) -> bool:
    """Rewrite op(reshape(x)) to reshape(op(x)).

    For matmuls with a matrix, and for row-wise ops whose other operands are shared by all rows.
    """
    changed = False
    for node in graph.nodes:
        index = _reshaped_operand(graph, node)
        if index is None:
            continue
        reshape = graph.producer(node.operands[index])
        assert reshape is not None
        operands = list(node.operands)
        operands[index] = reshape.operands[0]
        attributes = dict(node.attributes)
        if node.op.name in _SCALED and node.axis:
            attributes["axis"] = graph.type(str(reshape.operands[0])).rank - 1
        hints = [f"{name}.rows" for name in node.outputs]
        moved = graph.add(node.op.name, operands, hints, before=node, **attributes)
        shape = graph.type(node.outputs[0]).shape
        below = graph.add("reshape", moved.outputs[:1], f"{node.outputs[0]}.merged", before=node, shape=shape)
        replace_node(graph, node, (below.output, *moved.outputs[1:]))
        changed = True
    return changed


def _reshaped_operand(graph: Graph, node: Node) -> int | None:
    """Return the index of the operand that is a merge of rows and may move below the node."""
    if (
        node.op.name in _OF_ROWS
        and not node.attributes.get("transpose_a")
        and graph.type(str(node.operands[1])).rank == 2
    ):
        return 0 if _merges_rows(graph, node.operands[0]) else None
    if node.op.name == "dynamic_quantize" or (node.op.name in _SCALED and _scales_rows(graph, node)):
        return 0 if _merges_rows(graph, node.operands[0]) else None
    if node.op.acts_on in ("element", "row"):
        for index, name in enumerate(node.operands):
            if not _merges_rows(graph, name):
                continue
            shapes = [() if o is None else graph.type(o).shape for o in node.operands]
            shared = ((), (1,), shapes.pop(index)[-1:])
            if all(shape in shared for shape in shapes):
                return index
    return None


def _scales_rows(graph: Graph, node: Node) -> bool:
    """Return whether a quantize, or a dequantize of sums, acts on each row alone; moved bytes are decoded later."""
    x, singles = graph.type(str(node.operands[0])), [graph.type(o).shape in ((), (1,)) for o in node.operands[1:] if o]
    is_alike = not node.block and (all(singles) or node.axis == x.rank - 1)
    return is_alike and (node.op.name == "quantize" or x.dtype is i32)


def _merges_rows(graph: Graph, name: str | None) -> bool:
    """Match a reshape [..., rows, columns] -> [all rows, columns]; without columns, the number of rows may change."""
    node = graph.producer(name)
    if node is None or node.op.name != "reshape":
        return False
    source, target = graph.type(str(node.operands[0])).shape, graph.type(node.output).shape
    known = None not in source and None not in target
    columns_kept = known and len(target) == 2 and len(source) > 2 and source[-1] == target[-1]
    return columns_kept and product(source[:-1]) == target[0]


def sink_permutes(graph: Graph) -> bool:
    """Rewrite op(permute(x)) to permute(op(x)) if the permute makes an image channels last.

    For element-wise ops with other operands permuted alike or constant, for concat, pad, slice, and for reductions of
    dims other than the channels: a norm over the channels needs them last. A permute to channels first moves above a
    pad instead, if a convolution reads the result.
    """
    if graph.ops.isdisjoint(_WITH_CHANNELS):
        return False
    images: set[str] = set()
    changed = False
    for node in graph.nodes:
        if node.op.name == "permute":
            changed |= _lift(graph, node, images)
            continue
        axes = _axes_below(graph, node, images) if images else None
        moved = None if axes is None else _below(graph, node, axes)
        if moved is not None:
            changed = True
            node = moved
        if _computes_image(graph, node, images):
            images.update(node.outputs)
    return changed


def _computes_image(graph: Graph, node: Node, images: set[str]) -> bool:
    """Return whether a node computes an image; fewer dims than a 2-D image mean a sequence."""
    if node.op.name in _OF_IMAGES:
        return True
    inherits = node.op.acts_on == "element" or (node.op.name in _STILL_IMAGES and graph.type(node.output).rank >= 4)
    return inherits and not images.isdisjoint(o for o in node.operands if o)


def _channels_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def _lift(graph: Graph, node: Node, images: set[str]) -> bool:
    """Rewrite permute(pad(x)) to pad(permute(x)) unless x is an image, whose channels are already first."""
    pad = graph.producer(node.operands[0])
    rank = len(node.axes)
    if pad is None or pad.op.name != "pad" or graph.only_user(pad.output) is None or pad.operands[0] in images:
        return False
    if rank < 3 or node.axes != (0, rank - 1, *range(1, rank - 1)):
        return False
    above = graph.add("permute", pad.operands[:1], f"{node.output}.first", before=node, axes=node.axes)
    amounts = {name: tuple(getattr(pad, name)[axis] for axis in node.axes) for name in ("low", "high")}
    _put(graph, node, graph.add("pad", [above.output], node.output, before=node, **pad.attributes | amounts).output)
    return True


def _put(graph: Graph, node: Node, result: str) -> None:
    """Replace a node's value by another, which gets the node's name."""
    name = node.output
    graph.replace(node, result)
    graph.rename(result, name)


def _axes_below(graph: Graph, node: Node, images: set[str]) -> tuple[int, ...] | None:
    """Return the permutation of the images that a node reads, if the node may read them unpermuted; else None."""
    reduces = _reduces(node)
    if not (node.op.acts_on == "element" or node.op.name in ("concat", "pad", "slice") or reduces):
        return None
    if len(node.outputs) != 1 or not has_known_type(graph, node.output):
        return None
    ranks = [graph.type(o).rank for o in node.operands if o is not None]
    axes = _channels_last(max(ranks, default=0))
    if len(axes) < 3 or (reduces and len(axes) - 1 in node.axes):
        return None
    permutes = [_permute_of(graph, o, axes, images) for o in node.operands]
    if not any(permutes):
        return None
    others = [o for o, permute in zip(node.operands, permutes, strict=True) if o is not None and permute is None]
    shared = node.op.acts_on == "element" and all(graph.type(o).rank == 0 or is_fixed(graph, o) for o in others)
    return axes if shared or not others else None


def _reduces(node: Node) -> bool:
    return node.op.name.startswith("reduce_") and "axes" in node.attributes


def _permute_of(graph: Graph, name: str | None, axes: tuple[int, ...], images: set[str]) -> Node | None:
    node = graph.producer(name)
    if node is None or node.op.name != "permute" or node.axes != axes or node.operands[0] not in images:
        return None
    return node


def _below(graph: Graph, node: Node, axes: tuple[int, ...]) -> Node:
    """Build the node over the permutes' operands; a permute after it restores the order of its result."""
    operands = [None if o is None else _unpermuted(graph, node, o, axes) for o in node.operands]
    attributes, order = _of_other_axes(graph, node, axes)
    moved = graph.add(node.op.name, operands, f"{node.output}.first", before=node, **attributes)
    result = moved.output
    if order != tuple(range(len(order))):
        result = graph.add("permute", [result], f"{node.output}.last", before=node, axes=order).output
    _put(graph, node, result)
    return moved


def _unpermuted(graph: Graph, node: Node, name: str, axes: tuple[int, ...]) -> str:
    """Return an operand without its permute; a constant operand is permuted back, without leading dims of 1."""
    shape = graph.type(name).shape
    producer = graph.producer(name)
    if producer is not None and producer.op.name == "permute" and producer.axes == axes:
        return str(producer.operands[0])
    if not shape:
        return name
    rank = len(axes)
    full = (*[1] * (rank - len(shape)), *shape)
    back = tuple(axes.index(i) for i in range(rank))
    wide = [i for i in range(rank) if full[i] != 1]
    target = tuple(full[i] for i in back)
    if sorted(wide, key=back.index) != wide:
        if full != shape:
            name = graph.add("reshape", [name], f"{node.output}.wide", before=node, shape=full).output
        return graph.add("permute", [name], f"{node.output}.fixed", before=node, axes=back).output
    while len(target) > 1 and target[0] == 1:
        target = target[1:]
    return graph.add("reshape", [name], f"{node.output}.fixed", before=node, shape=target).output


def _of_other_axes(graph: Graph, node: Node, axes: tuple[int, ...]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the node's attributes for the operands of a permute with these axes, and the permutation of its result."""
    attributes = dict(node.attributes)

    def moved(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[axes.index(i)] for i in range(len(axes)))

    match node.op.name:
        case "concat":
            attributes["axis"] = axes[node.axis]
        case "pad" | "slice":
            each = ("low", "high") if node.op.name == "pad" else ("starts", "stops", "steps")
            attributes |= {name: moved(getattr(node, name)) for name in each}
        case _ if _reduces(node):
            attributes["axes"] = tuple(sorted(axes[axis] for axis in node.axes))
            if not node.keepdims:
                remaining = [axis for i, axis in enumerate(axes) if i not in node.axes]
                return attributes, tuple(sorted(remaining).index(axis) for axis in remaining)
    return attributes, axes


def sink_moves(graph: Graph) -> bool:
    """Rewrite op(moves(conv(x))) to moves(op(conv(x))) for an element-wise op without other readers in between."""
    changed = False
    for node in graph.nodes:
        if node.op.acts_on != "element" or len(node.operands) != 1 or not has_known_type(graph, node.output):
            continue
        moves: list[Node] = []
        value = str(node.operands[0])
        while graph.only_user(value) and (maker := graph.producer(value)) is not None and maker.op.name in _MOVES:
            moves.append(maker)
            value = str(maker.operands[0])
        maker = graph.producer(value)
        if not moves or maker is None or maker.op.name != "conv" or graph.only_user(value) is None:
            continue
        result = graph.add(node.op.name, [value], f"{node.output}.first", before=node, **node.attributes).output
        for move in reversed(moves):
            result = graph.add(move.op.name, [result], f"{node.output}.moved", before=node, **move.attributes).output
        _put(graph, node, result)
        changed = True
    return changed

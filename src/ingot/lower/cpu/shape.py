"""Kernel rules of the shape ops: views where possible, strided copies otherwise."""

from __future__ import annotations

from ingot.errors import UnsizedError
from ingot.ir.graph import Node
from ingot.lower.cpu.kernel_rules import kernel_rule
from ingot.lower.lowering import Lowering
from ingot.lower.view import View, image_order, reshaped_order

VIEW = "view"  # no kernel: the result is the operand's memory


def assign_view(lowering: Lowering, node: Node, view: View | None) -> None:
    """Lower a node such as reshape: its result is `view`, or a copy if it already has memory, as in a concat.

    view: the operand in the shape of the result; None if strides cannot express it.
    """
    if view is None:
        _spread(lowering, node)
        return
    existing = lowering.lowered.views.get(node.output)
    if existing is None:
        lowering.alias(node.output, view)
    elif not _same_elements(view, existing):
        lowering.add_copy(view, existing)


def _spread(lowering: Lowering, node: Node) -> None:
    """Copy a node's operand into the result, viewed in the operand's shape.

    An image that is stretched or shuffled, with an extra axis in between, stays channels last.
    """
    source, shape = lowering.view(node.operands[0]), lowering.graph.type(node.output).dims
    out = lowering.result(node.output, strided=True, order=reshaped_order(source, shape))
    viewed = out.reshape(source.shape)
    if viewed is not None:
        lowering.add_copy(source, viewed)
    else:
        copy = lowering.copy(source).reshape(shape)
        if copy is None:
            raise UnsizedError(
                f"node {node.output!r}: run-time sizes are not divisible, got {list(source.shape)} as {list(shape)}"
            )
        lowering.add_copy(copy, out)


def _same_elements(a: View, b: View) -> bool:
    def key(view: View) -> tuple[object, ...]:
        strides = [s for dim, s in zip(view.shape, view.strides, strict=True) if dim != 1]
        return view.tensor, view.offset, view.shape, strides

    return key(a) == key(b)


@kernel_rule("reshape", VIEW)
def _reshape(lowering: Lowering, node: Node) -> None:
    assign_view(lowering, node, lowering.view(node.operands[0]).reshape(lowering.graph.type(node.output).dims))


@kernel_rule("permute", VIEW)
def _permute(lowering: Lowering, node: Node) -> None:
    assign_view(lowering, node, lowering.view(node.operands[0]).permute(node.axes))


@kernel_rule("slice", VIEW)
def _slice(lowering: Lowering, node: Node) -> None:
    assign_view(lowering, node, lowering.view(node.operands[0]).slice(node.starts, node.stops, node.steps))


@kernel_rule("expand", VIEW)
def _expand(lowering: Lowering, node: Node) -> None:
    assign_view(lowering, node, lowering.view(node.operands[0]).expand(lowering.graph.type(node.output).dims))


@kernel_rule("concat", "copy_b")
def _concat(lowering: Lowering, node: Node) -> None:
    operands = [lowering.view(operand) for operand in node.operands]
    whole = lowering.result(node.output, strided=True, order=image_order(operands, len(operands[0].shape)))
    start = 0
    for view in operands:
        starts, stops = [0] * len(whole.shape), list(whole.shape)
        starts[node.axis], stops[node.axis] = start, start + view.shape[node.axis]
        slot = whole.slice(starts, stops, [1] * len(starts))
        if not _same_elements(view, slot) and view.size:
            lowering.add_copy(view, slot)
        start += view.shape[node.axis]


@kernel_rule("pad", "copy_b")
def _pad(lowering: Lowering, node: Node) -> None:
    source = lowering.view(node.operands[0])
    whole = lowering.result(node.output, strided=True, order=image_order([source], len(source.shape)))
    starts = list(node.low)
    stops = [low + dim for low, dim in zip(starts, source.shape, strict=True)]
    fill = lowering.scalar(node.value, lowering.graph.type(node.output).dtype)
    # Each border is a slab within the sizes that earlier axes left, so no element is written twice.
    for axis in range(len(whole.shape)):
        for low, high in ((0, starts[axis]), (stops[axis], whole.shape[axis])):
            if low < high:
                begin = starts[:axis] + [low] + [0] * (len(starts) - axis - 1)
                end = [*stops[:axis], high, *whole.shape[axis + 1 :]]
                slab = whole.slice(begin, end, [1] * len(begin))
                lowering.add_copy(fill.expand(slab.shape), slab)
    if source.size:
        lowering.add_copy(source, whole.slice(starts, stops, [1] * len(starts)))

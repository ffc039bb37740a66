"""The table of CPU kernel rules, with shared conditions and steps. The first match wins, in order of declaration."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ingot.ir.dtype import DType
from ingot.ir.graph import Node, TensorType
from ingot.lower.formats import Format
from ingot.lower.lowering import Lowering
from ingot.lower.selection import Condition, KernelRule, Selection
from ingot.lower.stored import groups_of, is_stored_as
from ingot.lower.view import View

KERNEL_RULES: dict[str, list[KernelRule]] = {}

Lower = Callable[[Lowering, Node], None]


def accept(selection: Selection, node: Node) -> str:
    """Refuse nothing."""
    return ""


def kernel_rule(
    op: str,
    kernel: str,
    refuse: Condition | tuple[Condition, ...] = (),
    avoid: Condition = accept,
    by_size: bool = True,
    misplaced: Callable[[Lowering, Node], str] = accept,
) -> Callable[[Lower], Lower]:
    """Declare a kernel for an op; see `KernelRule`."""

    def declare(lower: Lower) -> Lower:
        KERNEL_RULES.setdefault(op, []).append(KernelRule(op, kernel, both(refuse), lower, avoid, by_size, misplaced))
        return lower

    return declare


def operand_type(selection: Selection, node: Node, index: int = 0) -> TensorType:
    """Return the type of a node's operand; for the last node of a group, of its root's operand."""
    group = selection.groups.get(node)
    return selection.graph.type(str((group.root if group else node).operands[index]))


@functools.cache  # so that rules share one condition object, evaluated once per node
def of(*dtypes: DType) -> Condition:
    """Refuse unless the operands' dtypes begin with these."""

    def refuse(selection: Selection, node: Node) -> str:
        for i, dtype in enumerate(dtypes):
            found = operand_type(selection, node, i).dtype
            if found is not dtype:
                return f"operand {i} is {found}, expected {dtype}"
        return ""

    return refuse


_OTHERWISE = "the weights are stored in another format"  # the kernel's name specifies the format


@functools.cache
def _computed(index: int) -> Condition:
    """Refuse an operand that no node computes.

    A decoded operand is computed by a decoder node, but most matrices of floats are not, so this check is cheap. It
    also refuses if the graph has no decoder.
    """

    def refuse(selection: Selection, node: Node) -> str:
        if not selection.decodes:
            return _OTHERWISE
        target = selection.groups[node].root if node in selection.groups else node
        return _OTHERWISE if selection.graph.producer(target.operands[index]) is None else ""

    return refuse


def stored(index: int, format: Format, *, transposed: bool = False) -> tuple[Condition, ...]:
    """Refuse unless an operand is stored in a format and decoded to f32 if the format is not f32.

    transposed: also refuse unless it is quantized in groups along the columns of a product, not along the summed dim.
    """
    condition = _stored(index, format, transposed)
    return (condition,) if format.decoder is None else (_computed(index), condition)


@functools.cache
def _stored(index: int, format: Format, transposed: bool) -> Condition:
    def refuse(selection: Selection, node: Node) -> str:
        target = selection.groups[node].root if node in selection.groups else node
        value = str(target.operands[index])
        if format.scales is not None:
            groups = groups_of(selection.weight_expr(value), format) if value in selection.static else None
            columns = 1 if target.op.name == "matmul" and not target.transpose_b else 0
            return "" if groups and groups.axis == columns ^ transposed else _OTHERWISE
        if format.type is not None:
            is_rows = target.op.name != "matmul" or target.transpose_b
            is_stored = value in selection.static and is_rows and is_stored_as(selection.weight_expr(value), format)
            return "" if is_stored else _OTHERWISE
        if format.decoder is None or (
            value in selection.state_invariant and is_stored_as(selection.weight_expr(value), format)
        ):
            return ""
        return _OTHERWISE

    return refuse


def both(*conditions: Condition | tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Refuse if any of the conditions refuses, with the first reason."""
    return tuple(part for each in conditions for part in (each if isinstance(each, tuple) else (each,)))


def last_axis(selection: Selection, node: Node) -> str:
    """Refuse an `axis` other than the last."""
    rank = operand_type(selection, node).rank
    return "" if node.axis == rank - 1 else f"axis is {node.axis}, expected {rank - 1}"


def overwritten(lowering: Lowering, node: Node, index: int) -> tuple[View, View]:
    """Return the view of operand `index` and the view of result `index` for a kernel that overwrites its operand.

    If the result cannot use the operand's memory, the operand is copied into the result first.
    """
    before, after = lowering.view(node.operands[index]), lowering.result(node.outputs[index])
    if lowering.replaces(after, before):
        return before, after
    lowering.add_copy(before, after)
    return after, after

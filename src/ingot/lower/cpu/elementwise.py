"""Kernel rules of element-wise ops and casts: one call over a collapsed loop nest with broadcast strides."""

from __future__ import annotations

from collections.abc import Sequence

import ingot.ops  # noqa: F401  fills OPS
from ingot.ir.dtype import DTYPES, DType
from ingot.ir.graph import OPS, Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.kernel_rules import kernel_rule, of, operand_type
from ingot.lower.elementwise import kernel_op, scalars
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.selection import Selection
from ingot.lower.step_builder import StepBuilder
from ingot.lower.view import View, broadcast_view, collapse, image_order, with_long_rows
from ingot.support.abi import Elementwise, constant, elementwise, kernels

SHORT = 5  # a row of fewer elements costs more to start than its elements cost at a stride


def vector_kernel(node: Node) -> Elementwise | None:
    """Return the f32 kernel of 16 elements at once, which is also an op of fused programs; None if there is none."""
    found = elementwise().get(f"{kernel_op(node)}_f32")
    return found if found is not None and found.is_vector else None


def elementwise_fields(operands: Sequence[View], out: View, least: int = 0) -> dict[str, Field]:
    """Return the fields of `elementwise_args`: operands are broadcast to the result's shape as in numpy.

    least: if a row has fewer elements, another dim becomes the innermost one.
    """
    order = out.order
    views = [broadcast_view(view, out.shape).permute(order) for view in operands]
    shape, strides = with_long_rows(*collapse([out.permute(order), *views]), least)
    fields: dict[str, Field] = {"out": pointer(out), "rank": len(shape), "shape": shape, "out_strides": strides[0]}
    for name, view, stride in zip("abc", views, strides[1:], strict=False):
        fields[name] = pointer(view)
        fields[f"{name}_strides"] = stride
    return fields


def add_copy(builder: StepBuilder, source: View, target: View) -> None:
    """Add a step that copies elements of any dtype."""
    _lower_move(builder, f"copy_b{source.dtype.itemsize}", source, target)


def add_cast(builder: StepBuilder, source: View, target: View) -> None:
    """Add a step that casts elements to another dtype."""
    direct = f"cast_{source.dtype}_{target.dtype}"
    if direct in kernels():
        _lower_move(builder, direct, source, target)
    else:
        _lower_move(builder, "convert", source, target, **cast_fields(source.dtype, target.dtype))


def cast_fields(source: DType, target: DType) -> dict[str, int]:
    """Return the fields of the cast from any dtype to any other."""
    return {"from": constant(f"INGOT_DTYPE_{source}"), "to": constant(f"INGOT_DTYPE_{target}")}


def _lower_move(builder: StepBuilder, kernel: str, source: View, target: View, **numbers: int) -> None:
    fields = elementwise_fields([source], target) | numbers
    builder.step(kernel, "elementwise_args", fields, [source], [target], work=source.size * NS.copied)


def _emit(lowering: Lowering, node: Node, kernel: str, nanoseconds: float, **scalars: float) -> None:
    """Add a step with broadcast operands; it may overwrite an operand with the result's shape and strides."""
    operands = [lowering.view(o) for o in node.operands]
    out = lowering.result(node.output, strided=True, order=image_order(operands, lowering.graph.type(node.output).rank))
    fields = elementwise_fields(operands, out, SHORT) | scalars
    inplace = tuple(
        i
        for i in node.op.inplace
        if operands[i].shape == out.shape and operands[i].strides == out.strides and operands[i].dtype is out.dtype
    )
    lowering.step(kernel, "elementwise_args", fields, operands, [out], work=out.size * nanoseconds, inplace=inplace)


def _declare(kernel: Elementwise) -> None:
    op = kernel.op if kernel.op in OPS else kernel.op.rpartition("_")[0]

    def refuse(selection: Selection, node: Node) -> str:
        if kernel_op(node) != kernel.op:
            return f"the node is {kernel_op(node)}, expected {kernel.op}"
        return of(DTYPES[kernel.dtype])(selection, node)

    @kernel_rule(op, kernel.kernel, refuse)
    def lower(lowering: Lowering, node: Node) -> None:
        alpha, beta = scalars(node)
        _emit(lowering, node, kernel.kernel, NS.costly if kernel.is_costly else NS.cheap, alpha=alpha, beta=beta)


for _kernel in elementwise().values():
    _declare(_kernel)


@kernel_rule("bitcast", "copy_b")
def _bitcast(lowering: Lowering, node: Node) -> None:
    _emit(lowering, node, f"copy_b{node.dtype.held.itemsize}", NS.cheap)


def _where(itemsize: int) -> None:
    def refuse(selection: Selection, node: Node) -> str:
        found = operand_type(selection, node, 1).dtype.held.itemsize
        return "" if found == itemsize else f"elements have {found} bytes, expected {itemsize}"

    @kernel_rule("where", f"where_b{itemsize}", refuse)
    def lower(lowering: Lowering, node: Node) -> None:
        _emit(lowering, node, f"where_b{itemsize}", NS.cheap)


for _itemsize in (1, 2, 4, 8):
    _where(_itemsize)


def _cast(source: DType, target: DType) -> None:
    kernel = f"cast_{source}_{target}"

    def refuse(selection: Selection, node: Node) -> str:
        if node.dtype is not target:
            return f"result is {node.dtype}, expected {target}"
        return of(source)(selection, node)

    @kernel_rule("cast", kernel, refuse)
    def lower(lowering: Lowering, node: Node) -> None:
        _emit(lowering, node, kernel, NS.cheap)


for _name in kernels():
    if _name.startswith("cast_"):
        _cast(*(DTYPES[_dtype] for _dtype in _name.split("_")[1:]))


@kernel_rule("cast", "convert")
def _cast_any(lowering: Lowering, node: Node) -> None:
    source, target = operand_type(lowering, node).dtype, node.dtype
    fields = cast_fields(source, target) | {"rounding": constant(f"INGOT_ROUND_{node.round_mode}")}
    fields["saturate"] = int(node.saturate and target.kind == "n")
    _emit(lowering, node, "convert", NS.costly, **fields)

"""Rows of the element-wise ops and casts: one call over a collapsed loop nest with broadcast strides."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.dtype import DType, bf16, boolean, f32, i32, i64
from ingot.ir import Node
from ingot.lower.build import Builder, broadcast_view, pointer
from ingot.lower.cpu.rows import of, operand_type, row
from ingot.lower.lowered import Field
from ingot.lower.view import View, collapse, image_order

# Estimated nanoseconds per element on one thread, for deciding how many parts a step is worth.
_CHEAP, _COSTLY = 0.12, 0.8
_COSTLY_OPS = frozenset(
    "exp expm1 log log1p sin cos tanh erf sigmoid silu gelu softplus elu pow mod div sqrt rsqrt".split()
)

# op -> its float attributes, in the order of alpha, beta
_UNARY_F32: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        "relu neg abs exp expm1 log log1p sqrt rsqrt reciprocal sin cos tanh erf sigmoid silu floor ceil"
        " round sign softplus hard_swish isnan isinf".split(),
        (),
    ),
    "leaky_relu": ("alpha",),
    "elu": ("alpha",),
    "hard_sigmoid": ("alpha", "beta"),
    "clip": ("minimum", "maximum"),
}
_ARITHMETIC = "add sub mul div floor_div mod maximum minimum".split()
_COMPARISONS = "equal not_equal less less_equal greater greater_equal".split()
_CASTS = [
    (f32, i64), (f32, i32), (f32, boolean), (i64, f32), (i64, i32), (i64, boolean),
    (i32, f32), (i32, i64), (boolean, f32), (boolean, i64), (boolean, i32),
    (f32, bf16), (bf16, f32),
]  # fmt: skip


def elementwise_fields(operands: Sequence[View], out: View) -> dict[str, Field]:
    """The fields of `elementwise_args`: operands as numpy broadcasts them to the result's shape."""
    order = out.order
    views = [broadcast_view(view, out.shape).permute(order) for view in operands]
    shape, strides = collapse([out.permute(order), *views])
    fields: dict[str, Field] = {"out": pointer(out), "rank": len(shape), "shape": shape, "out_strides": strides[0]}
    for name, view, stride in zip("abc", views, strides[1:], strict=False):
        fields[name] = pointer(view)
        fields[f"{name}_strides"] = stride
    return fields


def emit_copy(builder: Builder, source: View, target: View) -> None:
    """A step that copies elements of any dtype."""
    _emit_move(builder, f"copy_b{source.dtype.itemsize}", source, target)


def emit_cast(builder: Builder, source: View, target: View) -> None:
    """A step that copies elements into another dtype."""
    _emit_move(builder, f"cast_{source.dtype}_{target.dtype}", source, target)


def _emit_move(builder: Builder, kernel: str, source: View, target: View) -> None:
    fields = elementwise_fields([source], target)
    builder.step(kernel, "elementwise_args", fields, [source], [target], work=source.size / 4)


def emit_elementwise(builder: Builder, node: Node, kernel: str, scalars: Sequence[float] = ()) -> None:
    """A step whose operands broadcast; it may overwrite an operand of the result's shape and strides."""
    operands = [builder.view(o) for o in node.operands]
    out = builder.result(node.output, strided=True, order=image_order(operands, builder.graph.type(node.output).rank))
    fields = elementwise_fields(operands, out)
    fields |= dict(zip(("alpha", "beta"), map(float, scalars), strict=False))
    inplace = tuple(
        i
        for i in node.op.inplace
        if operands[i].shape == out.shape and operands[i].strides == out.strides and operands[i].dtype is out.dtype
    )
    work = out.size * (_COSTLY if node.op.name in _COSTLY_OPS else _CHEAP)
    builder.step(kernel, "elementwise_args", fields, operands, [out], work=work, inplace=inplace)


def _declare(op: str, kernel: str, *dtypes: DType, attributes: tuple[str, ...] = ()) -> None:
    @row(op, kernel, of(*dtypes))
    def emit(builder: Builder, node: Node) -> None:
        emit_elementwise(builder, node, kernel, [getattr(node, name) for name in attributes])


for _op, _attributes in _UNARY_F32.items():
    _declare(_op, f"{_op}_f32", f32, attributes=_attributes)
for _op in ("relu", "neg", "abs", "sign"):
    _declare(_op, f"{_op}_i64", i64)
_declare("logical_not", "logical_not_bool", boolean)
for _op in [*_ARITHMETIC, "pow"]:
    _declare(_op, f"{_op}_f32", f32)
for _op in _ARITHMETIC:
    _declare(_op, f"{_op}_i64", i64)
for _op in _COMPARISONS:
    _declare(_op, f"{_op}_f32", f32)
    _declare(_op, f"{_op}_i64", i64)
for _op in ("equal", "not_equal", "logical_and", "logical_or", "logical_xor"):
    _declare(_op, f"{_op}_bool", boolean)


def _gelu(approximate: str) -> None:
    def refuse(builder: Builder, node: Node) -> str:
        if node.approximate != approximate:
            return f"approximate is {node.approximate}, expected {approximate}"
        return of(f32)(builder, node)

    @row("gelu", f"gelu_{approximate}_f32", refuse)
    def emit(builder: Builder, node: Node) -> None:
        emit_elementwise(builder, node, f"gelu_{approximate}_f32")


_gelu("erf")
_gelu("tanh")


def _where(itemsize: int) -> None:
    def refuse(builder: Builder, node: Node) -> str:
        found = operand_type(builder, node, 1).dtype.itemsize
        return "" if found == itemsize else f"elements have {found} bytes, expected {itemsize}"

    @row("where", f"where_b{itemsize}", refuse)
    def emit(builder: Builder, node: Node) -> None:
        emit_elementwise(builder, node, f"where_b{itemsize}")


for _itemsize in (1, 4, 8):
    _where(_itemsize)


def _cast(source: DType, target: DType) -> None:
    kernel = f"cast_{source}_{target}"

    def refuse(builder: Builder, node: Node) -> str:
        if node.dtype is not target:
            return f"result is {node.dtype}, expected {target}"
        return of(source)(builder, node)

    @row("cast", kernel, refuse)
    def emit(builder: Builder, node: Node) -> None:
        emit_elementwise(builder, node, kernel)


for _source, _target in _CASTS:
    _cast(_source, _target)

"""Rows of products of integers of 8 bits, and of what makes such of floats."""

from __future__ import annotations

import math

import numpy as np

from ingot import abi
from ingot.dtype import DType, f32, i8, i32, u8
from ingot.ir import Node
from ingot.lower.cpu.conv import image_fields, image_result, image_strides, two
from ingot.lower.cpu.elementwise import SHORT, elementwise_fields
from ingot.lower.cpu.formats import WHOLE_I8, WHOLE_U8
from ingot.lower.cpu.rows import Condition, both, operand_type, row
from ingot.lower.epilogue import Group
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.recipe import Static
from ingot.lower.view import View, broadcast_view, channels_last, image_order
from ingot.ops.quantize import fixed_steps

# Nanoseconds on one thread: per multiply-add, per one of a depthwise convolution, per element that is rounded.
_MULTIPLY_ADD, _DEPTHWISE, _ROUNDED = 0.004, 0.03, 0.1
_FLIP = {i8: 128, u8: 0}  # what makes u8 of a factor
_ONES = (
    "batch", "height", "out_height", "groups", "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h",
    "dilation_w",
)  # fmt: skip
_TAPS = abi.constant("INGOT_INTEGER_TAPS")
_EXACT = 256  # products of two bytes whose sum a float holds


def _root(lowering: Lowering, node: Node) -> Node:
    return lowering.group(node).root


def _fixed_weight(lowering: Lowering, node: Node) -> str:
    root = _root(lowering, node)
    if any(operand is not None and operand not in lowering.static for operand in (root.operands[1], *_rest(root)[::2])):
        return "the right operand is not constant"
    return ""


def _rest(root: Node) -> tuple[str | None, ...]:
    """The operands behind the factors: bias, zero point of the left one, of the right one."""
    return (*root.operands[2:], None, None, None)[:3]


def _short(lowering: Lowering, node: Node) -> str:
    x, weight = operand_type(lowering, node), operand_type(lowering, node, 1)
    taps = math.prod(weight.dims[1:]) if _root(lowering, node).op.name == "conv_integer" else x.dims[-1]
    return "" if taps < _TAPS else f"sums of {taps} products, expected fewer than {_TAPS}"


def _matrix(lowering: Lowering, node: Node) -> str:
    return "" if operand_type(lowering, node, 1).rank == 2 else "the right operand is not a matrix"


def _flat(lowering: Lowering, node: Node) -> str:
    rank = operand_type(lowering, node).rank
    return "" if rank in (3, 4) else f"rank is {rank}, expected 3 or 4"


def _channelwise(lowering: Lowering, node: Node) -> str:
    out_channels, channels, *kernel = operand_type(lowering, node, 1).dims
    groups = _root(lowering, node).groups
    fits = channels == 1 and groups == out_channels and math.prod(kernel) <= _EXACT
    return "" if fits else f"{groups} groups of {channels} channels, expected each its own"


_FIXED = both(_fixed_weight, _short)


# -- what they share ------------------------------------------------------------------------------------------


def _finish_fields(lowering: Lowering, group: Group, reads: list[View]) -> dict[str, Field]:
    """The fields that say what becomes of sums."""
    fields: dict[str, Field] = {
        "activation": abi.constant(f"INGOT_ACT_{group.activation or 'none'}"),
        "act_alpha": group.act_alpha, "act_beta": group.act_beta, "out_scale": 1.0, "out_zero": 0.0,
    }  # fmt: skip
    if group.scale is None:
        return fields | {"result": abi.constant("INGOT_INTEGER_I32")}
    scale = lowering.contiguous(group.scale)
    reads.append(scale)
    fields |= {"scale": pointer(scale), "scale_step": int(scale.size > 1)}
    if group.bias is not None:
        shift = lowering.contiguous(group.bias)
        reads.append(shift)
        fields["shift"] = pointer(shift)
    if group.requantised is None:
        return fields | {"result": abi.constant("INGOT_INTEGER_F32")}
    steps = fixed_steps(lowering.graph, group.requantised)
    assert steps is not None
    name = str(group.requantised.dtype).upper()
    return fields | {
        "out_scale": steps[0], "out_zero": steps[1], "result": abi.constant(f"INGOT_INTEGER_{name}")
    }  # fmt: skip


def _add_pointers(lowering: Lowering, fields: dict[str, Field], reads: list[View], **values: str | View | None) -> None:
    """Fields for operands that lie row-major; none for those that are missing."""
    for name, value in values.items():
        if value is not None:
            view = lowering.contiguous(value)
            reads.append(view)
            fields[name] = pointer(view)


def _weight_zeros(lowering: Lowering, zeros: str | None, dtype: DType) -> str | None:
    """Zero points of a fixed weight as a kernel wants them: None where each is the middle of u8, or 0 of i8."""
    middle = 128 if dtype is u8 else 0
    if zeros is None:
        return lowering.constant(0, u8) if middle else None
    known = lowering.graph.data(zeros)
    return None if known is not None and bool(np.all(known == middle)) else zeros


# -- fixed matrices and filters -------------------------------------------------------------------------------


@row("matmul_integer", "integer_packed", both(_FIXED, _matrix))
def _matmul(lowering: Lowering, node: Node) -> None:
    """Rows are the pixels of one line."""
    group = lowering.group(node)
    root = group.root
    a, out = lowering.rows(root.operands[0]), lowering.result(group.output).rows()
    assert out is not None
    weight = lowering.static_value(str(root.operands[1]))
    (m, k), n = a.shape, out.shape[1]
    fields: dict[str, Field] = dict.fromkeys(_ONES, 1)
    fields |= {"width": m, "out_width": m, "channels": k, "out_channels": n, "pad_top": 0, "pad_left": 0}
    fields |= {"x_strides": (m * a.strides[0], m * a.strides[0], a.strides[0]), "out_strides": (0, 0, out.strides[0])}
    sums = weight.derive("cast", dtype=i32).derive("reduce_sum", axes=(1 if root.transpose_b else 0,), keepdims=False)
    _add_packed(lowering, group, a, out, weight, root.transpose_b, sums, fields, m * n * k)


def _add_packed(
    lowering: Lowering, group: Group, x: View, out: View, weight: Static, transposed: bool, column_sums: Static,
    fields: dict[str, Field], products: int,
) -> None:  # fmt: skip
    """A step with `integer_args`. weight: [k, n], [n, k] when transposed, one for each group."""
    dtype = weight.type.dtype
    bias, x_zero, weight_zero = _rest(group.root)
    format = WHOLE_U8 if dtype is u8 else WHOLE_I8
    panels = lowering.weight(weight, "panels", transposed, format)
    zeros = _weight_zeros(lowering, weight_zero, dtype)
    reads = [x, panels]
    fields |= {"x": pointer(x), "weight": pointer(panels), "out": pointer(out)} | _finish_fields(lowering, group, reads)
    _add_pointers(
        lowering, fields, reads, column_sums=lowering.weight(column_sums), bias=bias, x_zero=x_zero, weight_zero=zeros
    )
    if zeros is not None:
        fields["weight_zero_step"] = int(lowering.view(zeros).size > 1)
    fields |= {"x_flip": _FLIP[x.dtype], "weight_flip": format.flip}
    work = products * _MULTIPLY_ADD + out.size * _ROUNDED
    lowering.step("integer_packed", "integer_args", fields, reads, [out], work=work)


def _conv_fields(lowering: Lowering, group: Group, x: View) -> tuple[View, dict[str, Field]]:
    """The image that a convolution of another makes, and the fields that say how they lie."""
    root, out = group.root, image_result(lowering, group.output)
    kernel_h, kernel_w = two(lowering.graph.type(str(root.operands[1])).dims[2:], 1)
    fields = image_fields(x, out, root) | {"channels": x.shape[1], "out_channels": out.shape[1]}
    fields |= {"kernel_h": kernel_h, "kernel_w": kernel_w, "groups": root.groups}
    return out, fields | {"x_strides": image_strides(x), "out_strides": image_strides(out)}


def _filters(lowering: Lowering, conv: Node) -> Static:
    """The fixed filters [O, C / groups, kh, kw]."""
    weight = lowering.static_value(str(conv.operands[1]))
    out, channels, *kernel = weight.dims
    return weight if len(kernel) == 2 else weight.derive("reshape", shape=(out, channels, 1, *kernel))


@row("conv_integer", "integer_depthwise", both(_FIXED, _flat, _channelwise))
def _conv_channelwise(lowering: Lowering, node: Node) -> None:
    group = lowering.group(node)
    root = group.root
    x = lowering.image(root.operands[0])
    out, fields = _conv_fields(lowering, group, x)
    bias, x_zero, weight_zero = _rest(root)
    centred = _filters(lowering, root).derive("cast", dtype=f32)
    if weight_zero is not None:
        zeros = lowering.static_value(weight_zero).derive("cast", dtype=f32)
        count = zeros.type.size
        centred = centred.derive("sub", zeros.derive("reshape", shape=(count, 1, 1, 1)))
    sums = centred.derive("reduce_sum", axes=(1, 2, 3), keepdims=False).derive("cast", dtype=i32)
    weight = lowering.weight(centred.derive("permute", axes=(2, 3, 1, 0)))
    reads = [x, weight]
    fields |= {"x": pointer(x), "weight": pointer(weight), "out": pointer(out)} | _finish_fields(lowering, group, reads)
    _add_pointers(lowering, fields, reads, column_sums=lowering.weight(sums), bias=bias, x_zero=x_zero)
    fields |= {"x_flip": _FLIP[x.dtype], "weight_flip": 0}
    work = out.size * (math.prod(centred.dims[2:]) * _DEPTHWISE + _ROUNDED)
    lowering.step("integer_depthwise", "integer_args", fields, reads, [out], work=work)


@row("conv_integer", "integer_packed", both(_FIXED, _flat))
def _conv(lowering: Lowering, node: Node) -> None:
    group = lowering.group(node)
    x = lowering.image(group.root.operands[0])
    out, fields = _conv_fields(lowering, group, x)
    filters, groups = _filters(lowering, group.root), group.root.groups
    sums = filters.derive("cast", dtype=i32).derive("reduce_sum", axes=(1, 2, 3), keepdims=False)
    taps = math.prod(filters.dims[1:])
    rows = (filters.dims[0] // groups, taps)
    weight = filters.derive("permute", axes=(0, 2, 3, 1))
    weight = weight.derive("reshape", shape=rows if groups == 1 else (groups, *rows))
    _add_packed(lowering, group, x, out, weight, True, sums, fields, out.size * taps)


# -- computed matrices ----------------------------------------------------------------------------------------


def _one_zero(lowering: Lowering, node: Node) -> str:
    bias, _, zero = _rest(_root(lowering, node))
    if bias is not None or lowering.group(node).bias is not None:
        return "a bias beside a computed matrix"
    return "" if zero is None or lowering.graph.type(zero).size == 1 else "a zero point for each column"


@row("matmul_integer", "integer_matmul", both(_short, _one_zero))
def _matmul_computed(lowering: Lowering, node: Node) -> None:
    group = lowering.group(node)
    root = group.root
    a, b = lowering.adjacent(root.operands[0]), lowering.view(root.operands[1])
    if root.transpose_b:
        rank = len(b.shape)
        b = b.permute((*range(rank - 2), rank - 1, rank - 2))
    out = lowering.accepted_result(group.output, lambda view: view.has_adjacent_columns)
    batch = out.shape[:-2]
    (m, k), n = a.shape[-2:], b.shape[-1]
    a, b = broadcast_view(a, (*batch, m, k)), broadcast_view(b, (*batch, k, n))
    reads = [a, b]
    fields: dict[str, Field] = {"m": m, "n": n, "k": k, "a": pointer(a), "b": pointer(b), "c": pointer(out)}
    fields |= _finish_fields(lowering, group, reads) | {"batch_rank": len(batch), "batch_shape": batch}
    _, a_zero, b_zero = _rest(root)
    _add_pointers(lowering, fields, reads, a_zero=a_zero, b_zero=b_zero)
    for name, view in (("a", a), ("b", b), ("c", out)):
        fields[f"{name}_batch_strides"] = view.strides[:-2]
    fields |= {"a_stride": a.strides[-2], "b_k_stride": b.strides[-2], "b_n_stride": b.strides[-1]}
    fields |= {"c_stride": out.strides[-2], "a_flip": _FLIP[a.dtype], "b_flip": 128 - _FLIP[b.dtype]}
    work = out.size * (k * _MULTIPLY_ADD + _ROUNDED) + b.size * 0.5
    lowering.step("integer_matmul", "integer_matmul_args", fields, reads, [out], work=work)


# -- floats and integers --------------------------------------------------------------------------------------


def _spread(view: View, rank: int, axis: int) -> View:
    """Scales or zero points as they broadcast over a tensor."""
    dims = view.shape if view.size > 1 else ()
    spread = view.reshape((*dims, *[1] * (rank - axis - 1)) if dims else ())
    assert spread is not None
    return spread


def _wanted_order(lowering: Lowering, value: str) -> tuple[int, ...] | None:
    """Channels last, where a convolution of integers wants them so."""
    users = lowering.graph.users(value)
    is_image = any(user.op.name == "conv_integer" and user.operands[0] == value for user in users)
    return channels_last(lowering.graph.type(value).rank) if is_image else None


def _plain(dtype: DType, narrow: DType) -> Condition:
    def refuse(lowering: Lowering, node: Node) -> str:
        found = node.dtype if node.op.name == "quantize" else operand_type(lowering, node).dtype
        wide = operand_type(lowering, node).dtype if node.op.name == "quantize" else node.dtype
        if found is not narrow or wide is not dtype or operand_type(lowering, node, 1).dtype is not dtype:
            return f"{wide} and {found}, expected {dtype} and {narrow}"
        if node.op.name == "quantize" and node.precision is not dtype:
            return f"divides in {node.precision}, expected {dtype}"
        return f"blocks of {node.block}, expected one scale along other axes" if node.block else ""

    return refuse


def _between(op: str, narrow: DType) -> None:
    kernel = f"{op}_{narrow}"

    @row(op, kernel, _plain(f32, narrow))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.view(node.operands[0])
        rank = len(x.shape)
        beside = [_spread(lowering.contiguous(o), rank, node.axis) for o in node.operands[1:] if o is not None]
        order = image_order([x], rank) or _wanted_order(lowering, node.output)
        out = lowering.result(node.output, strided=True, order=order)
        fields = elementwise_fields([x, *beside], out, SHORT)
        reads = [x, *beside]
        lowering.step(kernel, "elementwise_args", fields, reads, [out], work=out.size * _ROUNDED)


for _narrow in (u8, i8):
    _between("quantize", _narrow)
for _narrow in (u8, i8, i32):
    _between("dequantize", _narrow)


def _of_f32(lowering: Lowering, node: Node) -> str:
    x = operand_type(lowering, node)
    return "" if x.dtype is f32 else f"{x.dtype}, expected {f32}"


@row("dynamic_quantize", "dynamic_quantize_f32", _of_f32)
def _dynamic_quantize(lowering: Lowering, node: Node) -> None:
    x = lowering.contiguous(node.operands[0])
    writes = [lowering.result(output) for output in node.outputs]
    fields: dict[str, Field] = {"x": pointer(x), "count": x.size}
    fields |= {name: pointer(view) for name, view in zip(("out", "scale", "zero"), writes, strict=True)}
    lowering.step(
        "dynamic_quantize_f32", "dynamic_quantize_args", fields, [x], writes, work=x.size * _ROUNDED * 2, turns=2
    )

"""Kernel rules of products of 8-bit integers, and of the conversions between floats and such integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ingot.ir.dtype import DType, f32, i8, i32, u8
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.elementwise import SHORT, elementwise_fields
from ingot.lower.cpu.formats import PLAIN_I8, PLAIN_U8
from ingot.lower.cpu.image import image_fields, image_result, image_strides, two
from ingot.lower.cpu.kernel_rules import Condition, both, kernel_rule, operand_type
from ingot.lower.epilogue import Group
from ingot.lower.formats import Format
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.selection import Selection
from ingot.lower.view import View, broadcast_view, channels_last, image_order
from ingot.lower.weight_expr import WeightExpr
from ingot.ops.quantize import fixed_steps
from ingot.support import abi

_FLIP = {i8: 128, u8: 0}  # XOR mask that converts a factor to u8
_ONES = (
    "batch", "height", "out_height", "groups", "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h",
    "dilation_w",
)  # fmt: skip
_MAX_PRODUCTS = abi.constant("INGOT_INTEGER_PRODUCTS")
_MAX_QUANTIZED_PRODUCTS = 1 << 16  # products of a byte and a signed byte that a 32-bit sum can hold
_FOUR = 4  # bytes that one dot product multiplies
_LANES = 16  # channels of a vector
_FEW_PLANES = 4  # up to this many channels, planes are rounded without a transposition


def _root(selection: Selection, node: Node) -> Node:
    return selection.group(node).root


def _fixed_weight(selection: Selection, node: Node) -> str:
    root = _root(selection, node)
    fixed = (root.operands[1], *_rest(root)[::2])
    if any(operand is not None and operand not in selection.static for operand in fixed):
        return "the right operand is not constant"
    return ""


def _rest(root: Node) -> tuple[str | None, ...]:
    """Return the operands after the factors: bias, zero point of the left factor, zero point of the right factor."""
    return (*root.operands[2:], None, None, None)[:3]


def _short(selection: Selection, node: Node) -> str:
    x, weight = operand_type(selection, node), operand_type(selection, node, 1)
    num_products = math.prod(weight.dims[1:]) if _root(selection, node).op.name == "conv_integer" else x.dims[-1]
    return (
        "" if num_products < _MAX_PRODUCTS else f"sums of {num_products} products, expected fewer than {_MAX_PRODUCTS}"
    )


def _matrix(selection: Selection, node: Node) -> str:
    return "" if operand_type(selection, node, 1).rank == 2 else "the right operand is not a matrix"


def _flat(selection: Selection, node: Node) -> str:
    rank = operand_type(selection, node).rank
    return "" if rank in (3, 4) else f"rank is {rank}, expected 3 or 4"


def _channelwise(selection: Selection, node: Node) -> str:
    out_channels, channels = operand_type(selection, node, 1).dims[:2]
    groups = _root(selection, node).groups
    fits = channels == 1 and groups == out_channels
    return "" if fits else f"{groups} groups of {channels} channels, expected one group per channel"


_FIXED = both(_fixed_weight, _short)


# -- what they share ------------------------------------------------------------------------------------------


def _epilogue_fields(lowering: Lowering, group: Group, reads: list[View]) -> dict[str, Field]:
    """Return the fields of the epilogue of integer sums."""
    fields: dict[str, Field] = {
        "activation": abi.constant(f"INGOT_ACT_{group.activation or 'none'}"),
        "act_alpha": group.act_alpha, "act_beta": group.act_beta, "out_scale": 1.0, "out_zero": 0.0,
    }  # fmt: skip
    if group.scale is None:
        return fields | {"result": abi.constant("INGOT_INTEGER_I32")}
    _add_pointers(lowering, fields, reads, scale=group.scale, shift=group.bias)
    fields["scale_step"] = int(lowering.view(group.scale).size > 1)
    if group.requantized is None:
        return fields | {"result": abi.constant("INGOT_INTEGER_F32")}
    steps = _scale_and_zero_point(lowering, group.requantized)
    return fields | {"out_scale": steps[0], "out_zero": steps[1], "result": _kind(group.requantized.dtype)}


def _scale_and_zero_point(lowering: Lowering, node: Node) -> tuple[float, float]:
    """Return the scale and zero point of a quantize or dequantize of a group."""
    steps = fixed_steps(lowering.graph, node)
    assert steps is not None
    return steps


def _kind(dtype: DType) -> int:
    """Return the INGOT_INTEGER_* constant for the dtype of results or residuals."""
    return abi.constant(f"INGOT_INTEGER_{str(dtype).upper()}")


def _dtype(lowering: Lowering, value: str | None) -> DType:
    """Return the dtype in the graph; the storage dtype on a device may differ."""
    return lowering.graph.type(str(value)).dtype


def _add_residual(
    lowering: Lowering, group: Group, fields: dict[str, Field], reads: list[View], out: View,
    layout_of: Callable[[str | None], tuple[View, tuple[int, ...]]],
) -> tuple[int, ...]:  # fmt: skip
    """Add the fields of the residual; return its index in `reads` if the result may overwrite its memory.

    layout_of: returns a value's view and its strides of image, row and column.
    """
    if group.residual is None:
        return ()
    fields["residual_first"] = int(group.residual_first)
    codes = group.residual_quant
    value = codes.operands[0] if codes else group.residual
    residual, strides = layout_of(value)
    fields |= {"residual": pointer(residual), "residual_strides": strides}
    fields["residual_type"] = _kind(_dtype(lowering, value))
    if codes is not None:
        fields["residual_scale"], fields["residual_zero"] = _scale_and_zero_point(lowering, codes)
    if group.middle is not None:
        quantized, decoded = group.middle
        zero, limits = _scale_and_zero_point(lowering, quantized)[1], quantized.dtype.limits
        fields |= {"middle_low": limits[0] - zero, "middle_high": limits[1] - zero}
        fields["middle_scale"] = _scale_and_zero_point(lowering, decoded)[0]
    reads.append(residual)
    # The kernel reads the residual of an element before it writes the element, so the result may overwrite the
    # residual.
    return (len(reads) - 1,) if residual.strides == out.strides and residual.dtype.bits == out.dtype.bits else ()


def _add_pointers(lowering: Lowering, fields: dict[str, Field], reads: list[View], **values: str | View | None) -> None:
    """Add pointer fields for row-major operands; absent operands get no field."""
    for name, value in values.items():
        if value is not None:
            view = lowering.contiguous(value)
            reads.append(view)
            fields[name] = pointer(view)


def _weight_zero_points(lowering: Lowering, zeros: str | None, dtype: DType) -> str | None:
    """Return the zero points of a constant weight as a kernel reads them: None if all are 128 for u8, or 0 for i8."""
    middle = 128 if dtype is u8 else 0
    if zeros is None:
        return lowering.constant(0, u8) if middle else None
    known = lowering.graph.data(zeros)
    return None if known is not None and bool(np.all(known == middle)) else zeros


# -- constant matrices and filters ----------------------------------------------------------------------------


@kernel_rule("matmul_integer", "integer_packed", both(_FIXED, _matrix))
def _matmul(lowering: Lowering, node: Node) -> None:
    """Lower a product of integers with a constant matrix; its rows are the pixels of one image row."""
    group = lowering.group(node)
    root = group.root
    a, out = lowering.rows(root.operands[0]), lowering.result(group.output).rows()
    assert out is not None
    weight = lowering.weight_expr(str(root.operands[1]))
    (m, k), n = a.shape, out.shape[1]
    fields: dict[str, Field] = dict.fromkeys(_ONES, 1)
    fields |= {"width": m, "out_width": m, "channels": k, "out_channels": n, "pad_top": 0, "pad_left": 0}
    fields |= {"x_strides": (m * a.strides[0], m * a.strides[0], a.strides[0]), "out_strides": (0, 0, out.strides[0])}
    sums = weight.derive("cast", dtype=i32).derive("reduce_sum", axes=(1 if root.transpose_b else 0,), keepdims=False)

    def layout_of(value: str | None) -> tuple[View, tuple[int, ...]]:
        rows = lowering.rows(value)
        return rows, (0, 0, rows.strides[0])

    format = _format(weight)
    panels = lowering.weight(weight, "panels", root.transpose_b, format)
    _lower(lowering, group, "integer_packed", (a, panels, out), sums, format.flip, fields, layout_of, m * n * k)


def _format(weight: WeightExpr) -> Format:
    return PLAIN_U8 if weight.type.dtype is u8 else PLAIN_I8


def _lower(
    lowering: Lowering, group: Group, kernel: str, views: tuple[View, View, View], column_sums: WeightExpr,
    flip: int, fields: dict[str, Field], layout_of: Callable[[str | None], tuple[View, tuple[int, ...]]], products: int,
) -> None:  # fmt: skip
    """Add a step with `integer_args`. views: x, the packed weight, and the result; flip: the field `weight_flip`."""
    x, weight, out = views
    bias, x_zero, weight_zero = _rest(group.root)
    zeros = _weight_zero_points(lowering, weight_zero, u8 if flip else i8)
    reads = [x, weight]
    fields |= {"x": pointer(x), "weight": pointer(weight), "out": pointer(out)} | _epilogue_fields(
        lowering, group, reads
    )
    sums = lowering.weight(column_sums)
    _add_pointers(lowering, fields, reads, column_sums=sums, bias=bias, x_zero=x_zero, weight_zero=zeros)
    if zeros is not None:
        fields["weight_zero_step"] = int(lowering.view(zeros).size > 1)
    fields |= {"x_flip": _FLIP[_dtype(lowering, group.root.operands[0])], "weight_flip": flip}
    inplace = _add_residual(lowering, group, fields, reads, out, layout_of)
    multiply_add = NS.multiply_add_integer_depthwise if kernel == "integer_depthwise" else NS.multiply_add_integer
    work = products * multiply_add + out.size * NS.rounded
    lowering.step(kernel, "integer_args", fields, reads, [out], work=work, inplace=inplace)


def _conv_fields(lowering: Lowering, group: Group, x: View) -> tuple[View, dict[str, Field]]:
    """Return the result image of a convolution, and the fields for the layout of both images."""
    root, out = group.root, image_result(lowering, group.output)
    kernel_h, kernel_w = two(lowering.graph.type(str(root.operands[1])).dims[2:], 1)
    fields = image_fields(x, out, root) | {"channels": x.shape[1], "out_channels": out.shape[1]}
    fields |= {"kernel_h": kernel_h, "kernel_w": kernel_w, "groups": root.groups}
    return out, fields | {"x_strides": image_strides(x), "out_strides": image_strides(out)}


def _image_layout(lowering: Lowering) -> Callable[[str | None], tuple[View, tuple[int, ...]]]:
    def layout_of(value: str | None) -> tuple[View, tuple[int, ...]]:
        image = lowering.image(value)
        return image, image_strides(image)

    return layout_of


def _as_image_filter(weight: WeightExpr) -> WeightExpr:
    """Return filters as [O, C / groups, kh, kw]; a filter of sequences gets kh = 1."""
    out, channels, *kernel = weight.dims
    return weight if len(kernel) == 2 else weight.derive("reshape", shape=(out, channels, 1, *kernel))


def _filter_panels(lowering: Lowering, filters: WeightExpr, groups: int) -> tuple[View, WeightExpr]:
    """Return the panels of byte filters [O, C / groups, kh, kw], and the sum of each filter."""
    sums = filters.derive("cast", dtype=i32).derive("reduce_sum", axes=(1, 2, 3), keepdims=False)
    out, channels, lines, columns = filters.dims
    format = _format(filters)
    weight = filters.derive("permute", axes=(0, 2, 3, 1)).derive("reshape", shape=(out, lines, columns * channels))
    weight = _grown(weight, 2, _FOUR, format.flip)
    rows = (out // groups, math.prod(weight.dims[1:]))
    weight = weight.derive("reshape", shape=rows if groups == 1 else (groups, *rows))
    return lowering.weight(weight, "panels", True, format), sums


@kernel_rule("conv_integer", "integer_depthwise", both(_FIXED, _flat, _channelwise))
def _conv_channelwise(lowering: Lowering, node: Node) -> None:
    group = lowering.group(node)
    x = lowering.image(group.root.operands[0])
    out, fields = _conv_fields(lowering, group, x)
    filters = _as_image_filter(lowering.weight_expr(str(group.root.operands[1])))
    sums = filters.derive("cast", dtype=i32).derive("reduce_sum", axes=(1, 2, 3), keepdims=False)
    flip = _format(filters).flip
    if flip:
        middle = lowering.weight_expr(lowering.constant(flip, i32))
        filters = filters.derive("cast", dtype=i32).derive("sub", middle).derive("cast", dtype=i8)
    filters = _grown(_grown(filters, 2, _FOUR), 0, _LANES)
    channels, _, lines, columns = filters.dims
    filters = filters.derive("reshape", shape=(channels, lines // _FOUR, _FOUR, columns))
    weight = lowering.weight(filters.derive("permute", axes=(1, 3, 0, 2)))
    products = out.size * lines * columns
    layout_of = _image_layout(lowering)
    _lower(lowering, group, "integer_depthwise", (x, weight, out), sums, flip, fields, layout_of, products)


@kernel_rule("conv_integer", "integer_packed", both(_FIXED, _flat))
def _conv(lowering: Lowering, node: Node) -> None:
    group = lowering.group(node)
    x = lowering.image(group.root.operands[0])
    out, fields = _conv_fields(lowering, group, x)
    filters = _as_image_filter(lowering.weight_expr(str(group.root.operands[1])))
    panels, sums = _filter_panels(lowering, filters, group.root.groups)
    products = out.size * math.prod(filters.dims[1:])
    flip, layout_of = _format(filters).flip, _image_layout(lowering)
    _lower(lowering, group, "integer_packed", (x, panels, out), sums, flip, fields, layout_of, products)


def _grown(value: WeightExpr, axis: int, unit: int, zero: int = 0) -> WeightExpr:
    """Pad a value with zeros at the end of an axis, up to a multiple of a unit."""
    high = tuple(-dim % unit if i == axis else 0 for i, dim in enumerate(value.dims))
    return value.derive("pad", low=(0,) * len(high), high=high, value=zero) if any(high) else value


# -- images of floats, quantized by their own range, with quantized filters ------------------------------------


def quantized_filter(selection: Selection, node: Node) -> str:
    """Refuse filters that are not int8 with a scale for each output channel."""
    if i8 not in selection.target.rounded:
        return "the target does not round images to int8"
    decoded = selection.weight_expr(str(_root(selection, node).operands[1]))
    types = tuple(operand.type.dtype for operand in decoded.inputs)
    if decoded.op != "dequantize" or types != (i8, f32):
        return "the filter is not quantized to int8"
    assert decoded.node is not None
    out, *window = decoded.dims
    if decoded.inputs[1].dims != (out,) or decoded.node.axis or decoded.node.block:
        return "the filter has no scale for each output channel"
    num_products = math.prod(window)
    if num_products < _MAX_QUANTIZED_PRODUCTS:
        return ""
    return f"sums of {num_products} products, expected fewer than {_MAX_QUANTIZED_PRODUCTS}"


def _rounded_image(lowering: Lowering, value: str | None) -> tuple[View, View, View]:
    """Quantize an image [N, C, H, W] to bytes, channels last, once; return it, its scales [N] and zero points [N]."""
    x = lowering.view(value).as_image()
    if x.has_adjacent_channels or x.shape[1] > _FEW_PLANES or x.strides[3] != 1:
        x = lowering.image(value)
    if x not in lowering.rounded_images:
        name = f"{lowering.lowered.tensors[x.tensor].name}.uint8"
        batch, channels, height, width = x.shape
        codes = lowering.temporary(name, u8, x.shape, channels_last(4))
        steps = lowering.temporary(f"{name}.steps", f32, (batch,))
        zeros = lowering.temporary(f"{name}.zeros", u8, (batch,))
        ranges = lowering.temporary(f"{name}.ranges", f32, (batch, height, 2))
        fields: dict[str, Field] = {
            "x": pointer(x), "out": pointer(codes), "ranges": pointer(ranges), "steps": pointer(steps),
            "zeros": pointer(zeros), "batch": batch, "channels": channels, "height": height, "width": width,
            "x_strides": (*image_strides(x), x.strides[1]),
        }  # fmt: skip
        writes = [codes, steps, zeros, ranges]
        lowering.step("round_image_u8", "round_image_args", fields, [x], writes, work=x.size * NS.rounded, iterations=2)
        lowering.rounded_images[x] = codes, steps, zeros
    return lowering.rounded_images[x]


def lower_quantized(lowering: Lowering, node: Node) -> None:
    """Lower a convolution of floats with a filter that `quantized_filter` accepts."""
    group = lowering.group(node)
    root = group.root
    x, steps, zeros = _rounded_image(lowering, root.operands[0])
    codes, scales = lowering.weight_expr(str(root.operands[1])).inputs
    out, fields = _conv_fields(lowering, group, x)
    filters = _as_image_filter(codes)
    panels, sums = _filter_panels(lowering, filters, root.groups)
    reads = [x, panels, steps, zeros]
    fields |= {"x": pointer(x), "weight": pointer(panels), "out": pointer(out), "x_zero": pointer(zeros)}
    fields |= {"steps": pointer(steps), "x_zero_step": 1, "scale_step": 1, "x_flip": 0, "weight_flip": 0}
    fields |= {"activation": abi.constant(f"INGOT_ACT_{group.activation or 'none'}"), "result": _kind(f32)}
    fields |= {"act_alpha": group.act_alpha, "act_beta": group.act_beta, "out_scale": 1.0, "out_zero": 0.0}
    bias = (*root.operands[2:], None)[0]
    views = {"scale": lowering.weight(scales), "column_sums": lowering.weight(sums), "shift": bias}
    _add_pointers(lowering, fields, reads, **views)
    inplace = _add_residual(lowering, group, fields, reads, out, _image_layout(lowering))
    work = out.size * (math.prod(filters.dims[1:]) * NS.multiply_add_integer + NS.rounded)
    lowering.step("integer_packed", "integer_args", fields, reads, [out], work=work, inplace=inplace)


# -- two activations ------------------------------------------------------------------------------------------


def _one_zero(selection: Selection, node: Node) -> str:
    bias, _, zero = _rest(_root(selection, node))
    if bias is not None or selection.group(node).bias is not None:
        return "a bias, with a right operand that is not constant"
    return "" if zero is None or selection.graph.type(zero).size == 1 else "a zero point for each column"


@kernel_rule("matmul_integer", "integer_matmul", both(_short, _one_zero))
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
    fields |= _epilogue_fields(lowering, group, reads) | {"batch_rank": len(batch), "batch_shape": batch}
    _, a_zero, b_zero = _rest(root)
    _add_pointers(lowering, fields, reads, a_zero=a_zero, b_zero=b_zero)
    for name, view in (("a", a), ("b", b), ("c", out)):
        fields[f"{name}_batch_strides"] = view.strides[:-2]
    fields |= {"a_stride": a.strides[-2], "b_k_stride": b.strides[-2], "b_n_stride": b.strides[-1]}
    flips = [_FLIP[_dtype(lowering, operand)] for operand in root.operands[:2]]
    fields |= {"c_stride": out.strides[-2], "a_flip": flips[0], "b_flip": 128 - flips[1]}
    work = out.size * (k * NS.multiply_add_integer + NS.rounded) + b.size * NS.packed_integer
    lowering.step("integer_matmul", "integer_matmul_args", fields, reads, [out], work=work)


# -- floats and integers --------------------------------------------------------------------------------------


def _spread(view: View, rank: int, axis: int) -> View:
    """Return scales or zero points in a shape that broadcasts over a tensor."""
    dims = view.shape if view.size > 1 else ()
    spread = view.reshape((*dims, *[1] * (rank - axis - 1)) if dims else ())
    assert spread is not None
    return spread


def _wanted_order(lowering: Lowering, value: str) -> tuple[int, ...] | None:
    """Return channels last if a convolution of integers reads the value; otherwise None."""
    users = lowering.graph.users(value)
    is_image = any(user.op.name == "conv_integer" and user.operands[0] == value for user in users)
    return channels_last(lowering.graph.type(value).rank) if is_image else None


def _plain(dtype: DType, narrow: DType) -> Condition:
    def refuse(selection: Selection, node: Node) -> str:
        found = node.dtype if node.op.name == "quantize" else operand_type(selection, node).dtype
        wide = operand_type(selection, node).dtype if node.op.name == "quantize" else node.dtype
        if found is not narrow or wide is not dtype or operand_type(selection, node, 1).dtype is not dtype:
            return f"{wide} and {found}, expected {dtype} and {narrow}"
        if node.op.name == "quantize" and node.precision is not dtype:
            return f"divides in {node.precision}, expected {dtype}"
        return f"blocks of {node.block}, expected one scale along other axes" if node.block else ""

    return refuse


def _between(op: str, narrow: DType) -> None:
    kernel = f"{op}_{narrow}"

    @kernel_rule(op, kernel, _plain(f32, narrow))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.view(node.operands[0])
        rank = len(x.shape)
        qparams = [_spread(lowering.contiguous(o), rank, node.axis) for o in node.operands[1:] if o is not None]
        order = image_order([x], rank) or _wanted_order(lowering, node.output)
        out = lowering.result(node.output, strided=True, order=order)
        fields = elementwise_fields([x, *qparams], out, SHORT)
        reads = [x, *qparams]
        lowering.step(kernel, "elementwise_args", fields, reads, [out], work=out.size * NS.rounded)


for _narrow in (u8, i8):
    _between("quantize", _narrow)
for _narrow in (u8, i8, i32):
    _between("dequantize", _narrow)


def _of_f32(selection: Selection, node: Node) -> str:
    x = operand_type(selection, node)
    return "" if x.dtype is f32 else f"{x.dtype}, expected {f32}"


@kernel_rule("dynamic_quantize", "dynamic_quantize_f32", _of_f32)
def _dynamic_quantize(lowering: Lowering, node: Node) -> None:
    x = lowering.contiguous(node.operands[0])
    writes = [lowering.result(output) for output in node.outputs]
    fields: dict[str, Field] = {"x": pointer(x), "count": math.prod(x.shape)}
    fields |= {name: pointer(view) for name, view in zip(("out", "scale", "zero"), writes, strict=True)}
    lowering.step(
        "dynamic_quantize_f32", "dynamic_quantize_args", fields, [x], writes, work=x.size * NS.rounded * 2, iterations=2
    )

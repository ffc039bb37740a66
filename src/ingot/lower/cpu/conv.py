"""Kernel rules of convolution and pooling: images are channels last, and products read them as rows of pixels.

A sequence is an image of one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ingot.ir.dtype import DType, bf16, f32, f64, i8, i64, u8
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.formats import F32, FORMATS, pack_fields
from ingot.lower.cpu.image import image_fields, image_result, image_strides, two
from ingot.lower.cpu.integer import lower_quantized, quantized_filter
from ingot.lower.cpu.kernel_rules import Condition, accept, both, kernel_rule, of, operand_type, stored
from ingot.lower.cpu.limits import (
    FEW_CHANNELS,
    GEMV_ROWS,
    MANY_ROWS,
    TRANSFORMED_LEAST,
    TRANSFORMED_MOST,
    set_limits,
)
from ingot.lower.cpu.linear import epilogue_fields, packed_step
from ingot.lower.cpu.norm import averages_images
from ingot.lower.formats import Dots, Format
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.selection import Selection
from ingot.lower.states import undecoded
from ingot.lower.stored import stored_arrays
from ingot.lower.view import View, channels_last
from ingot.lower.weight_expr import WeightExpr
from ingot.support import abi

_LAST = channels_last(4)
_FORMATS = tuple(format for format in reversed(FORMATS) if not format.is_quantized)  # of filters
_TILE_PIXELS, _TILE_RUNS = abi.constant("INGOT_TILE_PIXELS"), abi.constant("INGOT_TILE_RUNS")


def _root(selection: Selection, node: Node) -> Node:
    return selection.groups[node].root if node in selection.groups else node


def flat(selection: Selection, node: Node) -> str:
    """Refuse images of more than two dims."""
    rank = operand_type(selection, node).rank
    return "" if rank in (3, 4) else f"rank is {rank}, expected 3 or 4"


def _fixed_filter(selection: Selection, node: Node) -> str:
    return "" if _root(selection, node).operands[1] in selection.static else "the filter is not constant"


def _packable_filter(selection: Selection, node: Node) -> str:
    """Refuse a filter computed in the run if packing it first would not pay off."""
    root = _root(selection, node)
    if root.operands[1] in selection.static:
        return ""
    count = _pixel_count(selection, node)
    if root.groups != 1 or count < MANY_ROWS:
        return f"the filter is not constant, for {count} pixels in {root.groups} groups"
    return ""


def _pointwise(selection: Selection, node: Node) -> str:
    root = _root(selection, node)
    kernel = operand_type(selection, node, 1).dims[2:]
    if set(kernel) != {1} or root.groups != 1:
        return f"kernel is {list(kernel)} in {root.groups} groups, expected ones in 1"
    if set(root.strides) != {1} or any(root.pads):
        return f"strides are {list(root.strides)}, pads {list(root.pads)}, expected ones and zeros"
    return ""


def _depthwise(selection: Selection, node: Node) -> str:
    out_channels, channels = operand_type(selection, node, 1).dims[:2]
    groups = _root(selection, node).groups
    fits = channels == 1 and groups == out_channels > 1  # one channel alone fills no vector
    return "" if fits else f"{groups} groups of {channels} channels, expected several of 1"


def _few_channels(selection: Selection, node: Node) -> str:
    channels = operand_type(selection, node, 1).dims[1]
    return "" if channels <= FEW_CHANNELS else f"{channels} channels, expected at most {FEW_CHANNELS}"


def _three_by_three(selection: Selection, node: Node) -> str:
    root, kernel = _root(selection, node), operand_type(selection, node, 1).dims[2:]
    if kernel != (3, 3):
        return f"kernel is {list(kernel)}, expected [3, 3]"
    if {*root.strides, *root.dilations} != {1}:
        return f"strides are {list(root.strides)}, dilations {list(root.dilations)}, expected ones"
    return ""


def _halving_lines(selection: Selection, node: Node) -> str:
    root, kernel = _root(selection, node), operand_type(selection, node, 1).dims[2:]
    if two(kernel, 1) != (1, 3) or root.groups != 1:
        return f"kernel is {list(kernel)} in {root.groups} groups, expected [1, 3] in 1"
    if root.strides[-1] != 2 or root.dilations[-1] != 1:
        return f"strides are {list(root.strides)}, dilations {list(root.dilations)}, expected 2 and 1 along lines"
    return ""


def _few_products(selection: Selection, node: Node) -> str:
    out, channels = operand_type(selection, node, 1).dims[:2]
    out //= _root(selection, node).groups
    if min(out, channels) >= TRANSFORMED_LEAST:
        return ""
    return f"{channels} input and {out} output channels in a group, expected at least {TRANSFORMED_LEAST}"


def _badly_transformed(format: Format) -> Condition:
    """Avoid filters with few channels, or filters that are too large.

    Few channels cost more to transform than the transform saves. A transformed filter is 16 / 9 of the original, so a
    large one takes as long to read as the multiplications it saves, and more memory. The filter is constant, so the
    decision depends on no size of a run.
    """
    most = TRANSFORMED_MOST[format.dtype]

    def avoid(selection: Selection, node: Node) -> str:
        if few := _few_products(selection, node):
            return few
        out, channels = operand_type(selection, node, 1).dims[:2]
        return f"a filter of {out} x {channels}, expected at most {most} together" if out * channels > most else ""

    return avoid


def _no_planes(dots: Dots | None) -> Callable[[Lowering, Node], str]:
    """Avoid images that are not stored plane by plane."""

    def misplaced(lowering: Lowering, node: Node) -> str:
        x = lowering.lowered.views.get(str(_image(lowering, _root(lowering, node).operands[0], dots)))
        if x is not None and (x.has_adjacent_channels or x.strides[-1] != 1):
            return "channels are adjacent" if x.has_adjacent_channels else "columns are not adjacent"
        return ""

    return misplaced


def _pixel_count(selection: Selection, node: Node) -> int:
    batch, _, *spatial = selection.graph.type(node.output).dims
    return batch * math.prod(spatial)


def _few_pixels(selection: Selection, node: Node) -> str:
    count = _pixel_count(selection, node)
    return "" if count <= GEMV_ROWS else f"{count} pixels, expected at most {GEMV_ROWS}"


def _short_products(selection: Selection, node: Node) -> str:
    """Avoid products with few channels where windows are faster; both have the same bits."""
    channels = operand_type(selection, node, 1).dims[1]
    if channels > set_limits(selection.target).window_channels or _pixel_count(selection, node) <= GEMV_ROWS:
        return ""
    return f"{channels} channels: windows are faster on {selection.target.isa}"


_CONV = both(of(f32, f32), flat, _fixed_filter)


def _with_filter(format: Format) -> tuple[Condition, ...]:
    """Return the conditions for filters of a format; a run packs filters of f32 only."""
    found = _packable_filter if format is F32 else _fixed_filter
    return both(of(f32, f32), flat, found, stored(1, format))


def _rounded(dots: Dots) -> Condition:
    """Refuse images that were not rounded for dot products."""

    def refuse(selection: Selection, node: Node) -> str:
        if dots.rows not in selection.target.rounded:
            return f"the target has no dot products of {dots.rows}, or they are disabled"
        if undecoded(selection.graph, _root(selection, node).operands[0], dots.rows) is None:
            return f"the image is not rounded to {dots.rows}"
        return ""

    return refuse


def _pairs(selection: Selection, node: Node) -> str:
    """Refuse an odd number of channels, which cannot be read in pairs."""
    channels = operand_type(selection, node, 1).dims[1]
    return f"{channels} channels, expected an even number" if channels % 2 else ""


def _image(lowering: Lowering, value: str | None, dots: Dots | None) -> str | None:
    """Return the image that a convolution reads; for dot products, the low-precision value that it is cast from."""
    return undecoded(lowering.graph, value, dots.rows) if dots else value


kernel_rule("conv", "integer_packed", both(_CONV, quantized_filter))(lower_quantized)


def _product(
    kernel: str, format: Format, *conditions: Condition, dots: Dots | None = None, avoid: Condition = accept
) -> None:
    @kernel_rule("conv", kernel, both(_with_filter(format), _pointwise, *conditions), avoid)
    def lower(lowering: Lowering, node: Node) -> None:
        """Lower a convolution as a product of the filter with the pixels, which are rows of channels."""
        group = lowering.group(node)
        x = pixels(lowering, _image(lowering, group.root.operands[0], dots))
        weight = _packed_filter(lowering, group.root, _LAST, format)
        residual = None if group.residual is None else pixels(lowering, group.residual)
        order = channels_last(lowering.graph.type(group.output).rank)

        def rows(value: str) -> View | None:
            return _as_rows(lowering.accepted_result(value, lambda view: _as_rows(view) is not None, order))

        c = None if lowering.is_only_rounded(group) else rows(group.output)
        rounded = None if group.rounding is None else rows(group.rounding.output)
        packed_step(lowering, kernel, format, group, x, weight, _bias(group.root), residual, c, rounded)


for _format in _FORMATS:
    for _dots in _format.dots:
        _conditions = (_rounded(_dots), _pairs)
        _product(f"gemv_{_dots.family}_packed", _format, *_conditions, _few_pixels, dots=_dots)
        _product(f"gemm_{_dots.family}_packed", _format, *_conditions, dots=_dots)
    _product(f"gemv_{_format.products}_packed", _format, _few_pixels)
    _product(f"gemm_{_format.products}_packed", _format, avoid=_short_products if _format is F32 else accept)


def pixels(lowering: Lowering, value: str | None) -> View:
    """Return an image [N, C, H, W] as [N * H * W, C] with adjacent channels; copied if pixels are unevenly spaced."""
    image = lowering.image(value)
    rows = _as_rows(image) or _as_rows(lowering.copy(image, _LAST))
    assert rows is not None
    return rows


def _as_rows(view: View) -> View | None:
    """Return an image or a sequence as rows of channels; None if its pixels are not equally spaced."""
    return view.as_image().permute(_LAST).rows()


def _bias(conv: Node) -> str | None:
    return conv.operands[2] if len(conv.operands) > 2 else None


def _packed_filter(lowering: Lowering, conv: Node, order: tuple[int, ...], format: Format) -> View:
    """Pack the filter [O, C / groups, kh, kw] into panels, one product per group, with its dims in `order`."""
    if conv.operands[1] not in lowering.static:
        return _packed_by_step(lowering, str(conv.operands[1]), order)
    weight = _filter(lowering, conv, format)
    shape = weight.dims
    if order != (0, 1, 2, 3):
        weight = weight.derive("permute", axes=order)
    rows = (shape[0] // conv.groups, math.prod(shape[1:]))
    weight = weight.derive("reshape", shape=rows if conv.groups == 1 else (conv.groups, *rows))
    return lowering.weight(weight, "panels", True, format)


def _packed_by_step(lowering: Lowering, filter: str, order: tuple[int, ...]) -> View:
    """Add a step that packs a filter computed in the run; return its panels."""
    transposed = lowering.view(filter).as_image().permute(order)
    shape = (transposed.shape[0], math.prod(transposed.shape[1:]))
    rows = transposed.reshape(shape) or lowering.copy(transposed).reshape(shape)
    assert rows is not None
    panels = lowering.temporary(f"{filter}.panels", f32, (F32.panel_bytes(shape[1], shape[0]) // f32.itemsize,))
    fields: dict[str, Field] = {"src": pointer(rows), "dst": pointer(panels)}
    fields |= pack_fields(rows.shape, rows.strides, True)
    lowering.step(F32.pack, "pack_args", fields, [rows], [panels], work=panels.size * NS.packed)
    return panels


def _filter(lowering: Lowering, conv: Node, format: Format) -> WeightExpr:
    """Return the constant filter [O, C / groups, kh, kw] as it is stored in a format."""
    (weight,) = stored_arrays(lowering.weight_expr(str(conv.operands[1])), format)
    out, channels, *kernel = weight.dims
    return weight if len(kernel) == 2 else weight.derive("reshape", shape=(out, channels, 1, *kernel))


def _conv_depthwise(kernel: str, image: Callable[[Lowering, str | None], str | None], *conditions: Condition) -> None:
    @kernel_rule("conv", kernel, both(_CONV, _depthwise, *conditions))
    def lower(lowering: Lowering, node: Node) -> None:
        root = lowering.group(node).root
        weight = _filter(lowering, root, F32).derive("permute", axes=(2, 3, 1, 0))
        num_products = math.prod(weight.dims[:2])
        work = math.prod(lowering.graph.type(root.output).dims) * num_products * NS.multiply_add_depthwise
        x = lowering.image(image(lowering, root.operands[0]))
        _emit(lowering, node, kernel, x, lowering.weight(weight), work, _row_means(lowering, node))


def _row_means(lowering: Lowering, node: Node) -> View | None:
    """Return the view for the means of an image's rows, [batch, rows, channels], an extra output of the kernel.

    None unless a reader averages the image over rows and columns; that reader then reads only these means.
    """
    value = lowering.group(node).output
    type = lowering.graph.type(value)
    if type.rank != 4 or not any(averages_images(user) for user in lowering.graph.users(value)):
        return None
    batch, channels, rows, _ = type.dims
    lowering.row_means[value] = lowering.temporary(f"{value}.rows", f32, (batch, rows, channels))
    return lowering.row_means[value]


def _narrow_image(selection: Selection, value: str | None) -> str | None:
    return undecoded(selection.graph, value, bf16)


def _is_narrow(selection: Selection, node: Node) -> str:
    """Refuse images that were not rounded to bf16."""
    narrow = _narrow_image(selection, _root(selection, node).operands[0])
    return "" if narrow is not None else "the image is not rounded to bf16"


_conv_depthwise("conv2d_bf16_depthwise", _narrow_image, _is_narrow)
_conv_depthwise("conv2d_f32_depthwise", lambda lowering, value: value)


def _planes(kernel: str, format: Format, *conditions: Condition, dots: Dots | None = None) -> None:
    @kernel_rule("conv", kernel, both(_with_filter(format), _few_channels, *conditions), misplaced=_no_planes(dots))
    def lower(lowering: Lowering, node: Node) -> None:
        root = lowering.group(node).root
        x = lowering.view(_image(lowering, root.operands[0], dots)).as_image()
        _lower_product(lowering, node, kernel, x, _packed_filter(lowering, root, (0, 1, 2, 3), format))


def _not_in_pairs(selection: Selection, node: Node) -> str:
    """Refuse images for dot products of pairs: these are faster than fewer multiplications of floats."""
    if bf16 in selection.target.rounded and not _is_narrow(selection, node) and not _pairs(selection, node):
        return "the image is rounded to bf16, and the number of channels is even"
    return ""


def _in_tiles(selection: Selection, node: Node) -> str:
    """Refuse convolutions that cannot run by tiles of lines with split sums."""
    if not selection.target.split_sums:
        return "the target has no split sums"
    kernel_h, kernel_w = two(operand_type(selection, node, 1).dims[2:], 1)
    runs = kernel_h * (1 if _root(selection, node).dilations[-1] == 1 else kernel_w)
    width = selection.graph.type(node.output).dims[-1]
    if runs > _TILE_RUNS or width > _TILE_PIXELS:
        return f"{runs} runs of pixels and rows of {width}, expected at most {_TILE_RUNS} and {_TILE_PIXELS}"
    return ""


def _packed(kernel: str, format: Format, *conditions: Condition, dots: Dots | None = None) -> None:
    @kernel_rule("conv", kernel, both(_with_filter(format), *conditions))
    def lower(lowering: Lowering, node: Node) -> None:
        root = lowering.group(node).root
        x = lowering.image(_image(lowering, root.operands[0], dots))
        _lower_product(lowering, node, kernel, x, _packed_filter(lowering, root, _LAST, format))


def _winograd(kernel: str, format: Format, *conditions: Condition, dots: Dots | None = None) -> None:
    refuse, avoid = both(_with_filter(format), _three_by_three, *conditions), _badly_transformed(format)

    @kernel_rule("conv", kernel, refuse, avoid=avoid, by_size=False)
    def lower(lowering: Lowering, node: Node) -> None:
        root = lowering.group(node).root
        x = lowering.image(_image(lowering, root.operands[0], dots))
        channels = x.shape[1] // root.groups
        work = math.prod(lowering.graph.type(root.output).dims) * channels * 4 * _multiply_add(x) * NS.winograd_factor
        if root.operands[1] not in lowering.static:
            _emit(lowering, node, kernel, x, _transformed_by_step(lowering, str(root.operands[1])), work)
            return
        weight = _transformed(lowering, _filter(lowering, root, F32), root.groups)
        if format.decoder is not None:
            weight = weight.derive("cast", dtype=format.dtype)
        _emit(lowering, node, kernel, x, lowering.weight(weight, "panels", True, format), work)


_IN_LINES = both(_CONV, _halving_lines, _not_in_pairs, stored(1, F32))


@kernel_rule("conv", "conv2d_f32_lines", _IN_LINES, avoid=_few_products, by_size=False)
def _lines(lowering: Lowering, node: Node) -> None:
    root = lowering.group(node).root
    first, middle, last = (_at(_filter(lowering, root, F32), 3, i) for i in range(3))
    weight = first.derive("concat", middle, last, first.derive("add", last), axis=1)
    out, rows = weight.dims[:2]
    x = lowering.image(root.operands[0])
    work = math.prod(lowering.graph.type(root.output).dims) * x.shape[1] * (5 / 2) * NS.multiply_add * NS.window_factor
    panels = lowering.weight(weight.derive("reshape", shape=(out, rows)), "panels", True, F32)
    _emit(lowering, node, "conv2d_f32_lines", x, panels, work)


def _transformed(lowering: Lowering, weight: WeightExpr, groups: int) -> WeightExpr:
    """Return the filter [O, C, 3, 3] as 16 x groups matrices [O / groups, C] of Winograd's F(2 x 2, 3 x 3).

    Along an axis, the numbers a, b and c become a, (a + c + b) / 2, (a + c - b) / 2 and c, with additions in that
    order.
    """
    half = lowering.weight_expr(lowering.constant(0.5, f32))
    for axis in (2, 3):
        a, b, c = (_at(weight, axis, i) for i in range(3))
        outer = a.derive("add", c)
        inner = [outer.derive(op, b).derive("mul", half) for op in ("add", "sub")]
        weight = a.derive("concat", *inner, c, axis=axis)
    out, channels = weight.dims[:2]
    points = weight.derive("permute", axes=(2, 3, 0, 1))
    return points.derive("reshape", shape=(16 * groups, out // groups, channels))


def _transformed_by_step(lowering: Lowering, filter: str) -> View:
    """Add steps that transform and pack a filter computed in the run, with the same additions as `_transformed`."""
    weight = lowering.view(filter)
    out, channels = weight.shape[:2]
    points = lowering.temporary(f"{filter}.points", f32, (16 * F32.panel_bytes(channels, out) // f32.itemsize,))
    fields: dict[str, Field] = {"weight": pointer(weight), "out": pointer(points), "strides": weight.strides}
    fields |= {"out_channels": out, "channels": channels}
    work = points.size * NS.packed
    lowering.step("conv2d_filter_points_f32", "filter_points_args", fields, [weight], [points], work=work)
    return points


def _at(weight: WeightExpr, axis: int, index: int) -> WeightExpr:
    """Return one row or column of a filter; the rank is unchanged."""
    starts, stops = [0] * weight.type.rank, [*weight.dims]
    starts[axis], stops[axis] = index, index + 1
    return weight.derive("slice", starts=tuple(starts), stops=tuple(stops), steps=(1,) * weight.type.rank)


for _format in _FORMATS:
    for _dots in _format.dots:
        _name, _refuse = _dots.family, _rounded(_dots)
        _planes(f"conv2d_{_name}_planes", _format, _refuse, dots=_dots)
        _packed(f"conv2d_{_name}_tiles", _format, _refuse, _pairs, _in_tiles, dots=_dots)
        _winograd(f"conv2d_{_name}_winograd", _format, _refuse, _pairs, dots=_dots)
        _packed(f"conv2d_{_name}_packed", _format, _refuse, _pairs, dots=_dots)
_planes("conv2d_f32_planes", F32)
_winograd("conv2d_f32_winograd", F32)
_packed("conv2d_f32_packed", F32)


def _lower_product(lowering: Lowering, node: Node, kernel: str, x: View, weight: View) -> None:
    root = lowering.group(node).root
    k = math.prod(lowering.graph.type(str(root.operands[1])).dims[1:])
    work = math.prod(lowering.graph.type(root.output).dims) * k * _multiply_add(x) * NS.window_factor
    _emit(lowering, node, kernel, x, weight, work)


def _multiply_add(x: View) -> float:
    """Return the nanoseconds of a multiply-add on one thread."""
    return NS.multiply_add if x.dtype is f32 else NS.multiply_add_dots


def _emit(
    lowering: Lowering, node: Node, kernel: str, x: View, weight: View, work: float, means: View | None = None
) -> None:
    """Add a step with `conv_args`; the result is channels last. means: the view for the means of its rows."""
    group = lowering.group(node)
    root = group.root
    reads = [x, weight]
    fields: dict[str, Field] = {"x": pointer(x), "weight": pointer(weight), "groups": root.groups}
    fields |= epilogue_fields(lowering, group, _bias(root), reads) | {"split_sums": int(lowering.target.split_sums)}
    inplace: tuple[int, ...] = ()
    out = None if lowering.is_only_rounded(group) else image_result(lowering, group.output)
    rounded = None if group.rounding is None else image_result(lowering, group.rounding.output)
    writes = [view for view in (out, rounded) if view is not None]
    if group.residual is not None:
        residual = lowering.image(group.residual)
        # The kernel reads the residual of an element before it writes the element, so the result may overwrite the
        # residual.
        inplace = (len(reads),) if out is not None and residual.strides == out.strides else ()
        reads.append(residual)
        fields |= {"residual": pointer(residual), "residual_strides": image_strides(residual)}
    fields |= image_fields(x, writes[0], root) | {"channels": x.shape[1], "out_channels": writes[0].shape[1]}
    kernel_h, kernel_w = two(lowering.graph.type(str(root.operands[1])).dims[2:], 1)
    fields |= {"kernel_h": kernel_h, "kernel_w": kernel_w, "x_strides": (*image_strides(x), x.strides[1])}
    for name, view in (("out", out), ("rounded", rounded)):
        if view is not None:
            fields |= {name: pointer(view), f"{name}_strides": image_strides(view)}
    if means is not None:
        fields["means"] = pointer(means)
        writes.append(means)
    lowering.step(kernel, "conv_args", fields, reads, writes, work=work, inplace=inplace)


@kernel_rule("conv", "conv2d_f32", both(of(f32, f32), flat))
def _conv_nchw(lowering: Lowering, node: Node) -> None:
    """Lower a convolution whose filter is computed in the same run."""
    group = lowering.group(node)
    root = group.root
    x, weight = (lowering.contiguous(operand).as_image() for operand in root.operands[:2])
    reads = [x, weight]
    fields: dict[str, Field] = {"x": pointer(x), "weight": pointer(weight), "groups": root.groups}
    fields |= epilogue_fields(lowering, group, _bias(root), reads)
    if group.residual is not None:
        residual = lowering.contiguous(group.residual)
        reads.append(residual)
        fields["residual"] = pointer(residual)
    out = lowering.result(group.output).as_image()
    fields |= image_fields(x, out, root) | {"channels": x.shape[1], "out_channels": out.shape[1]}
    fields |= {"out": pointer(out), "kernel_h": weight.shape[2], "kernel_w": weight.shape[3]}
    work = out.size * math.prod(weight.shape[1:]) * NS.multiply_add * NS.planes_factor
    lowering.step("conv2d_f32", "conv_nchw_args", fields, reads, [out], work=work)


def _pool(op: str, dtype: DType) -> None:
    @kernel_rule(op, f"{op}_{dtype}", both(of(dtype), flat))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.image(node.operands[0])
        out = image_result(lowering, node.output)
        kernel_h, kernel_w = two(node.kernel, 1)
        fields = image_fields(x, out, node) | {"x": pointer(x), "out": pointer(out), "channels": x.shape[1]}
        fields |= {"kernel_h": kernel_h, "kernel_w": kernel_w}
        fields |= {"x_strides": image_strides(x), "out_strides": image_strides(out)}
        if op == "avg_pool":
            fields["count_include_pad"] = int(node.count_include_pad)
        work = out.size * math.prod(node.kernel) * NS.pooled
        lowering.step(f"{op}_{dtype}", "pool_args", fields, [x], [out], work=work)


for _dtype in (f32, f64):
    _pool("max_pool", _dtype)
    _pool("avg_pool", _dtype)
for _dtype in (bf16, i64, u8, i8):
    _pool("max_pool", _dtype)

"""Kernel rules of the gradients of filters and of max pooling."""

from __future__ import annotations

import math

from ingot.ir.dtype import f32
from ingot.ir.graph import Node
from ingot.lower.cpu.conv import flat, pixels
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.image import image_fields, image_result, image_strides, two
from ingot.lower.cpu.kernel_rules import Condition, accept, both, kernel_rule, of, operand_type
from ingot.lower.cpu.limits import TRANSFORMED_LEAST
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.selection import Selection


def _one_group(selection: Selection, node: Node) -> str:
    return "" if node.groups == 1 else f"{node.groups} groups, expected 1"


def _three_by_three(selection: Selection, node: Node) -> str:
    if node.kernel != (3, 3) or {*node.strides, *node.dilations} != {1}:
        windows = f"{list(node.kernel)}, strides {list(node.strides)}, dilations {list(node.dilations)}"
        return f"kernel is {windows}, expected [3, 3] and ones"
    return ""


def _little_saved(selection: Selection, node: Node) -> str:
    """Avoid few channels, which cost more to transform than it saves, and images that fill few of their tiles."""
    channels, (_, out, *out_dims) = operand_type(selection, node).dims[1], operand_type(selection, node, 1).dims
    if min(out, channels) < TRANSFORMED_LEAST:
        return f"{channels} input and {out} output channels, expected at least {TRANSFORMED_LEAST}"
    tiles, count = math.prod(-(-size // 2) for size in out_dims), math.prod(out_dims)
    return f"{count} pixels in {tiles} tiles of 4" if 5 * tiles > 2 * count else ""


def _filter_gradient(kernel: str, multiply_add: float, *conditions: Condition, avoid: Condition = accept) -> None:
    @kernel_rule("conv_filter_gradient", kernel, both(of(f32, f32), flat, _one_group, *conditions), avoid=avoid)
    def lower(lowering: Lowering, node: Node) -> None:
        x, d = lowering.image(node.operands[0]), pixels(lowering, node.operands[1])
        out, d_image = lowering.result(node.output), lowering.view(node.operands[1]).as_image()
        kernel_h, kernel_w = two(node.kernel, 1)
        fields = image_fields(x, d_image, node) | {"x": pointer(x), "d": pointer(d), "out": pointer(out)}
        fields |= {"channels": x.shape[1], "out_channels": d.shape[1], "kernel_h": kernel_h, "kernel_w": kernel_w}
        fields |= {"x_strides": image_strides(x), "d_stride": d.strides[0]}
        work = out.size * d.shape[0] * multiply_add
        lowering.step(kernel, "conv_filter_args", fields, [x, d], [out], work=work)


_filter_gradient(
    "conv2d_filter_gradient_f32_winograd", NS.multiply_add_filter / 2, _three_by_three, avoid=_little_saved
)
_filter_gradient("conv2d_filter_gradient_f32", NS.multiply_add_filter)


@kernel_rule("max_pool_gradient", "max_pool_gradient_f32", both(of(f32, f32), flat))
def _pool_gradient(lowering: Lowering, node: Node) -> None:
    x, d = (lowering.image(operand) for operand in node.operands)
    out = image_result(lowering, node.output)
    kernel_h, kernel_w = two(node.kernel, 1)
    fields: dict[str, Field] = image_fields(x, d, node) | {"channels": x.shape[1]}
    fields |= {"kernel_h": kernel_h, "kernel_w": kernel_w}
    for name, view in (("x", x), ("d", d), ("out", out)):
        fields |= {name: pointer(view), f"{name}_strides": image_strides(view)}
    work = d.size * math.prod(node.kernel) * NS.pooled_gradient
    lowering.step("max_pool_gradient_f32", "max_pool_gradient_args", fields, [x, d], [out], work=work)

"""Rules for ops of com.microsoft that equal ops of ai.onnx, under the same or another name, or with channels last."""

from __future__ import annotations

from ingot.ir.dtype import i32
from ingot.load.onnx.call import Call
from ingot.load.onnx.conv import conv_transpose, max_pool
from ingot.load.onnx.linear import multiply
from ingot.load.onnx.quantize import qlinear_conv
from ingot.load.onnx.registry import MICROSOFT, Rule, find_rule, onnx
from ingot.load.onnx.select import unique
from ingot.load.onnx.shapes import count

# Op of com.microsoft -> the equal op of ai.onnx, and its opset.
_SAME = {
    "ExpandDims": ("Unsqueeze", 13),
    "GatherND": ("GatherND", 12),
    "GridSample": ("GridSample", 16),
    "Pad": ("Pad", 13),
    "Range": ("Range", 11),
    "SampleOp": ("Identity", 14),
    "Trilu": ("Trilu", 14),
}


@onnx(*_SAME, domain=MICROSOFT)
def renamed(call: Call) -> str | tuple[str | None, ...] | None:
    """The step of Range defaults to 1; the pads of Pad may be a matrix with one row."""
    name, opset = _SAME[call.op]
    operands = list(call.operands)
    if call.op == "Range" and not call.has(2):
        operands = [call[0], call[1], call.build.scalar(1, call.type(0).dtype)]
    if call.op == "Pad" and call.type(1).rank == 2:
        operands[1] = call.reshape(call[1], (count(call.shape(1)),))
    rule = find_rule("", name, opset)
    assert rule is not None
    return rule(call.as_op(name, *operands, opset=opset))


@onnx("MatMulInteger16", domain=MICROSOFT)
def matmul_integer16(call: Call) -> str:
    return multiply(call, call.cast(call[0], i32), call.cast(call[1], i32))


@onnx("Unique", domain=MICROSOFT)
def unique_in_order(call: Call) -> tuple[str | None, ...]:
    """Return the values of a vector in the order of the operand, their index for each element, and their counts."""
    if call.type(0).rank != 1:
        raise call.malformed(f"operand {call.type(0)}, expected rank 1")
    values, _, inverse, counts = unique(call.replaced(call[0], sorted=0))
    return values, inverse, counts


@onnx("ConvTransposeWithDynamicPads", domain=MICROSOFT)
def conv_transpose_of_pads(call: Call) -> str:
    """Compute ConvTranspose with its pads as operand 2, which ONNX Runtime reads with auto_pad=VALID, too."""
    mode = call.attr_text("auto_pad", "NOTSET").replace("VALID", "NOTSET")
    return conv_transpose(call.replaced(call[0], call[1], call.get(3), pads=call.integers(2), auto_pad=mode))


@onnx("QLinearConv", domain=MICROSOFT)
def qlinear_conv_channels_last(call: Call) -> str:
    """Compute QLinearConv; with `channels_last`, images are [N, sizes..., C]."""
    return _channels_first(call, qlinear_conv) if call.attr_int("channels_last", 0) else qlinear_conv(call)


@onnx("NhwcMaxPool", domain=MICROSOFT)
def max_pool_channels_last(call: Call) -> str:
    return _channels_first(call, max_pool)


def _channels_first(call: Call, rule: Rule) -> str:
    """Apply a rule for images [N, C, sizes...] to the call's images [N, sizes..., C]."""
    rank = call.type(0).rank
    if rank < 3:
        raise call.malformed(f"an image {call.type(0)}, expected rank 3 or more")
    x = call.permute(call[0], (0, rank - 1, *range(1, rank - 1)))
    results = rule(call.replaced(x, *call.operands[1:]))
    result = results[0] if isinstance(results, tuple) else results
    assert result is not None
    return call.permute(result, (0, *range(2, rank), 1))

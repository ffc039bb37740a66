"""Rule for the causal convolution with a state of com.microsoft."""

from __future__ import annotations

from ingot.load.onnx.call import Call
from ingot.load.onnx.conv import accumulator
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import count


@onnx("CausalConvWithState", domain=MICROSOFT)
def causal_conv(call: Call) -> tuple[str | None, ...]:
    """Convolve each channel of x [B,C,L] with its own kernel over the past and x; return the last positions as the
    next past.

    channels_last: x is [B,L,...], and its last dims are the channels.
    """
    build, dtype, shape = call.build, call.type(0).dtype, call.shape(0)
    activation = call.word("activation", "none", ("none", "silu", "swish"))
    last, dilation = call.attr_int("channels_last", 0), call.attr_int("dilation", 1)
    call.expect_sizes(1)
    if call.attr_int("ndim", 1) != 1 or call.attr_int("state_window", 0):
        raise call.unsupported("a convolution of several dims, or a window of states")
    if call.type(1).rank != 3 or len(shape) < 3 or dilation < 1:
        raise call.malformed(f"operands {call.type(0)} and {call.type(1)}, dilation {dilation}")
    channels, _, kernel = call.type(1).dims
    past = (kernel - 1) * dilation

    def channels_first(x: str) -> str:
        dims = call.known_shape(build.type(x))
        return call.permute(call.reshape(x, (*dims[:2], count(dims[2:]))), (0, 2, 1)) if last else x

    def as_given(x: str) -> str:
        rows = call.known_shape(build.type(x))[2]
        return call.reshape(call.permute(x, (0, 2, 1)), (shape[0], rows, *shape[2:])) if last else x

    wide = accumulator(dtype)
    x = channels_first(call.cast(call[0], wide))
    batch, _, length = call.known_shape(build.type(x))
    if call.has(3):
        rows = channels_first(call.cast(call[3], wide))
    else:
        rows = build.expand(build.scalar(0, wide), shape=(batch, channels, past))
    rows = build.concat(rows, x, axis=2)
    bias = call.cast(call[2], wide) if call.has(2) else None
    result = build.conv(
        rows, call.cast(call[1], wide), bias, strides=(1,), pads=(0, 0), dilations=(dilation,), groups=channels
    )  # fmt: skip
    result = result if activation == "none" else build.silu(result)
    present = call.slice(rows, 2, length, length + past)
    return tuple(call.cast(as_given(each), dtype) for each in (result, present))

"""Rules for ops of com.microsoft that newer language models have in addition to attention: gates, norms of branches,
and hyper-connections.

Hyper-connections replace the residual stream of a model by several parallel ones ("branches"). A tensor of branches is
[..., C, H], or [..., C * H] with the attribute `num_branches`. As in ONNX Runtime, sums and norms are computed in f32
whatever the dtype of the operands.
"""

from __future__ import annotations

from ingot.ir.dim import floordiv
from ingot.ir.dtype import DType
from ingot.load.onnx.attention import default_scale
from ingot.load.onnx.call import Call
from ingot.load.onnx.conv import accumulator
from ingot.load.onnx.norm import normalize
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size, count

_SMALLEST_PRODUCT = 1e-6  # whose root opens or closes the gate of EngramGate


@onnx("GatedAdd", domain=MICROSOFT)
def gated_add(call: Call) -> str:
    return call.build.add(call[0], call.build.mul(call[1], call[2]))


@onnx("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(call: Call) -> str:
    """The scaled operand is rounded to its own dtype before the sigmoid, and so is the sigmoid."""
    build, dtype = call.build, call.type(0).dtype
    wide = accumulator(dtype)
    scale = call.cast(call.scalar(1), wide) if call.has(1) else build.scalar(call.attr_float("alpha", 1.0), wide)
    scaled = call.cast(build.mul(call.cast(call[0], wide), scale), dtype)
    return build.mul(scaled, build.sigmoid(scaled))


@onnx("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(call: Call) -> str:
    """Normalize each group of as many elements as `scale` has, and multiply by the activated gate."""
    build, dtype, shape = call.build, call.type(0).dtype, call.shape(0)
    wide, size = accumulator(dtype), count(call.shape(1))
    kind = call.word("activation", "silu", ("silu", "swish", "sigmoid"))
    groups = call.reshape(call.cast(call[0], wide), (*shape[:-1], _divided(call, shape[-1], size), size))
    eps = call.attr_float("epsilon", 1e-5)
    normed = call.reshape(normalize(call, "rms_norm", -1, eps, call.cast(call[1], wide), None, groups), shape)
    gate = call.cast(call[2], wide)
    return call.cast(build.mul(normed, build.sigmoid(gate) if kind == "sigmoid" else build.silu(gate)), dtype)


@onnx("BranchwiseRMSNorm", domain=MICROSOFT)
def branchwise_rms_norm(call: Call) -> str:
    """Normalize each branch; the scale has an element per element of all branches, or of one branch."""
    build, dtype = call.build, call.type(0).dtype
    x = _branches(call, 0, accumulator(dtype))
    width = call.known_shape(build.type(x))[-1]
    normed = normalize(call, "rms_norm", -1, call.attr_float("epsilon", 1e-5), None, None, x)
    if call.has(1):
        shape = (_divided(call, count(call.shape(1)), width), width)
        normed = build.mul(normed, call.reshape(call.cast(call[1], accumulator(dtype)), shape))
    return call.reshape(call.cast(normed, dtype), call.shape(0))


@onnx("HyperConnectionPreMix", domain=MICROSOFT)
def hyper_connection_pre_mix(call: Call) -> str:
    """Sum the branches, each multiplied by its gate."""
    build, dtype = call.build, call.type(0).dtype
    x = _branches(call, 0, accumulator(dtype))
    total = build.reduce_sum(build.mul(x, _mix(call, 1, x)), axes=(build.type(x).rank - 2,), keepdims=False)
    scale = call.attr_float("reduction_scale", 1.0)
    return call.cast(total if scale == 1.0 else build.mul(total, scale), dtype)


@onnx("HyperConnectionPostMix", domain=MICROSOFT)
def hyper_connection_post_mix(call: Call) -> str:
    """Mix the branches by a matrix, and add the output of a layer, multiplied by the gate of each branch."""
    build, dtype = call.build, call.type(0).dtype
    wide = accumulator(dtype)
    x = _branches(call, 0, wide)
    *lead, width = call.shape(1)
    injected = build.mul(call.reshape(call.cast(call[1], wide), (*lead, 1, width)), _mix(call, 2, x))
    mixed = build.matmul(call.cast(call[3], wide), x, transpose_a=True) if call.has(3) else x
    return call.reshape(call.cast(build.add(mixed, injected), dtype), call.shape(0))


def _branches(call: Call, index: int, dtype: DType) -> str:
    """Return an operand as [..., C, H], in a dtype."""
    branches, shape = call.attr_int("num_branches", 0), call.shape(index)
    x = call.cast(call[index], dtype)
    if branches:
        x = call.reshape(x, (*shape[:-1], branches, _divided(call, shape[-1], branches)))
    if call.build.type(x).rank < 2:
        raise call.malformed(f"branches {call.type(index)}, expected rank 2 or more")
    return x


def _mix(call: Call, index: int, x: str) -> str:
    """Return the gates of branches x [..., C, H]: one per branch, [..., C] or [..., C, 1], or one per element."""
    *lead, branches, _ = call.known_shape(call.build.type(x))
    mix = call.cast(call[index], call.build.type(x).dtype)
    shape = call.shape(index)
    if len(shape) != len(lead) + 1:
        return mix
    return call.reshape(mix, (*lead, branches, _divided(call, shape[-1], branches)))


def _divided(call: Call, size: Size, parts: Size) -> Size:
    if parts == 0 or (isinstance(size, int) and isinstance(parts, int) and size % parts):
        raise call.malformed(f"{parts} parts of {call.type(0)}")
    return floordiv(size, parts)


@onnx("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(call: Call) -> tuple[str | None, ...]:
    """Outputs: the decay of LinearAttention, and its rate of updates if `b` is given."""
    build, dtype = call.build, call.type(0).dtype
    wide = accumulator(dtype)
    softplus = build.softplus(build.add(call.cast(call[0], wide), call.cast(call[1], wide)))
    decay = call.cast(build.mul(softplus, call.cast(call[2], wide)), dtype)
    return (decay, build.sigmoid(call[3])) if len(call.outputs) > 1 else (decay,)


@onnx("EngramGate", domain=MICROSOFT)
def engram_gate(call: Call) -> tuple[str | None, ...]:
    """Multiply a value by a gate per hyper-connection, sigmoid(sign(p) * sqrt(|p|)), where p is the product of the key
    and the query after their norms; the second output is the norm of the first.
    """
    build, dtype, (batch, rows, _, width) = call.build, call.type(0).dtype, call.shape(0)
    wide, eps = accumulator(dtype), call.attr_float("epsilon", 1e-5)

    def normed(x: str, scale: int) -> str:
        return build.mul(normalize(call, "rms_norm", -1, eps, None, None, x), call.cast(call[scale], wide))

    product = build.mul(*(normed(call.cast(call[i], wide), i + 3) for i in (0, 1)))
    dot = build.mul(build.reduce_sum(product, axes=(3,), keepdims=True), default_scale(call, width))
    root = build.sqrt(build.maximum(build.abs(dot), _SMALLEST_PRODUCT))
    gate = build.sigmoid(build.mul(build.sign(dot), root))
    gated = build.mul(gate, call.reshape(call.cast(call[2], wide), (batch, rows, 1, width)))
    if len(call.outputs) == 1:
        return (call.cast(gated, dtype),)
    return call.cast(gated, dtype), call.cast(normed(gated, 5), dtype)

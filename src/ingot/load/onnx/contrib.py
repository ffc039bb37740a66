"""Rules for ops of com.microsoft in exported and optimized models; attention is in `attention.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ingot.ir.dtype import f32, i32, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.conv import convolve
from ingot.load.onnx.index import checked
from ingot.load.onnx.linear import gemm, multiply
from ingot.load.onnx.norm import normalize, statistics
from ingot.load.onnx.quantize import expect_scale
from ingot.load.onnx.registry import MICROSOFT, find_rule, onnx

_OPSET_OF_ACTIVATIONS = 22  # of ai.onnx; all activations have the semantics of this opset


@onnx("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(call: Call) -> str:
    """transBatchA and transBatchB: the first dim of an operand holds its rows, and the batch dims follow it."""
    flags = [call.attr_int(name, 0) and call.type(i).rank > 1 for i, name in enumerate(("transA", "transB"))]
    operands = [call[0], call[1]]
    for i, name in enumerate(("transBatchA", "transBatchB")):
        rank = call.type(i).rank
        if call.attr_int(name, 0) and rank > 2:
            operands[i] = call.permute(operands[i], (*range(1, rank - 1), 0, rank - 1))
    scale = call.attr_float("alpha", 1.0)
    return multiply(call, *operands, transpose_a=bool(flags[0]), transpose_b=bool(flags[1]), scale=scale)


@onnx("Gelu", "BiasGelu", domain=MICROSOFT)
def gelu(call: Call) -> str:
    return call.build.gelu(_biased(call), approximate="erf")


@onnx("FastGelu", domain=MICROSOFT)
def fast_gelu(call: Call) -> str:
    return call.build.gelu(_biased(call), approximate="tanh")


def _biased(call: Call) -> str:
    return call.build.add(call[0], call[1]) if call.has(1) else call[0]


@onnx("QuickGelu", domain=MICROSOFT)
def quick_gelu(call: Call) -> str:
    build, x = call.build, call[0]
    return build.mul(x, build.sigmoid(build.mul(x, call.attr_float("alpha", 1.702))))


@onnx("FusedConv", domain=MICROSOFT)
def fused_conv(call: Call) -> str:
    """Convolve, then add an operand of the result's shape, then apply an activation."""
    build, result = call.build, convolve(call, call[0], call[1], call.get(2))
    result = build.add(result, call[3]) if call.has(3) else result
    names = _ACTIVATIONS.get(call.attr_text("activation", ""), ("low", "high"))
    return _activated(call, result, dict(zip(names, call.attr_floats("activation_params", ()), strict=False)))


@onnx("FusedGemm", domain=MICROSOFT)
def fused_gemm(call: Call) -> str:
    names = [name for name in ("alpha", "beta", "gamma") if f"activation_{name}" in call.attributes]
    return _activated(call, gemm(call), {name: call.attr_float(f"activation_{name}") for name in names})


# The parameters of each activation, by their names in the op of ai.onnx.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("HardSwish", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "ScaledTanh": ("alpha", "beta"),
}


def _activated(call: Call, result: str, numbers: Mapping[str, float]) -> str:
    """Apply the activation of attribute `activation` to a result. Parameters that the activation does not have are
    ignored.
    """
    build, kind = call.build, call.attr_text("activation", "")
    if kind == "":
        return result
    if kind == "Clip" and len(numbers) == 2:
        low, high = numbers.values()
        return build.clip(result, minimum=low, maximum=high)
    names = _ACTIVATIONS.get(kind)
    if names is None or any(name not in numbers for name in names):
        raise call.unsupported(f"activation {kind!r} of {dict(numbers)}")
    if kind == "ScaledTanh":
        return build.mul(build.tanh(build.mul(result, numbers["beta"])), numbers["alpha"])
    rule = find_rule("", kind, _OPSET_OF_ACTIVATIONS)
    assert rule is not None
    activated = rule(
        call.as_op(kind, result, opset=_OPSET_OF_ACTIVATIONS, attributes={name: numbers[name] for name in names})
    )
    assert isinstance(activated, str)
    return activated


@onnx("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(call: Call) -> tuple[str | None, ...]:
    """Outputs: the norm, its mean and the reciprocal of its deviation, and the sum that was normalized."""
    return _normalized_sum(call, "layer_norm", call.get(3), call.get(4))


@onnx("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_norm(call: Call) -> tuple[str | None, ...]:
    return _normalized_sum(call, "rms_norm", None, call.get(3))


def _normalized_sum(call: Call, op: str, shift: str | None, bias: str | None) -> tuple[str | None, ...]:
    """See `skip_layer_norm`. shift: added to the norm; bias: added to the sum before the norm."""
    if call.type(0).rank < 1:
        raise call.malformed("a scalar operand")
    total, eps = call.build.add(call[0], call[1]), call.attr_float("epsilon", 1e-12)
    total = total if bias is None else call.build.add(total, bias)
    numbers = statistics(call, op, total, -1, eps, f32) if any(call.outputs[1:3]) else (None, None)
    return normalize(call, op, -1, eps, call[2], shift, total), *numbers, total


@onnx("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(call: Call) -> tuple[str | None, ...]:
    return _embedded(call, lambda index, x: x, call.get(8))


@onnx("QEmbedLayerNormalization", domain=MICROSOFT)
def quantized_embed_layer_norm(call: Call) -> tuple[str | None, ...]:
    """As EmbedLayerNormalization, on quantized values; operand i has its scale at i + 6 and its zero point at i +
    11.
    """

    def floats(index: int, quantized: str) -> str:
        expect_scale(call, index + 6)
        return call.build.dequantize(quantized, call[index + 6], call.get(index + 11), axis=0, block=0, dtype=f32)

    return _embedded(call, floats)


def _embedded(call: Call, floats: Callable[[int, str], str], positions: str | None = None) -> tuple[str | None, ...]:
    """Sum and normalize word, position and segment embeddings; the mask output counts the visible ids of a row.

    floats: converts elements of operand `index` to floats.
    """
    build, (batch, length) = call.build, call.shape(0)

    def rows(table: int, ids: str, what: str) -> str:
        if call.type(table).rank < 1:
            raise call.malformed(f"input {table} is {call.type(table)}, expected a table")
        return build.gather(call[table], checked(call, ids, call.shape(table)[0], what), axis=0)

    position_rows = call.slice(call[3], 0, 0, length) if positions is None else rows(3, positions, "position_ids")
    total = build.add(floats(2, rows(2, call[0], "input_ids")), floats(3, position_rows))
    if call.has(1):
        total = build.add(total, floats(4, rows(4, call[1], "segment_ids")))
    elif call.has(4):  # ONNX Runtime assigns all rows to segment 0
        total = build.add(total, floats(4, call.slice(call[4], 0, 0, 1)))
    weight, bias = floats(5, call[5]), floats(6, call[6])
    result = normalize(call, "layer_norm", -1, call.attr_float("epsilon", 1e-12), weight, bias, total)
    if call.has(7):
        visible = build.reduce_sum(call.cast(call[7], i64), axes=(1,), keepdims=False)
        return result, call.cast(visible, i32), total
    return result, build.expand(build.scalar(0, i32), shape=(batch,)), total

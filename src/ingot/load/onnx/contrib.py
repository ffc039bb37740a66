"""Rules for ops of com.microsoft in exported and optimized models; attention is in `attention.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ingot.ir.dtype import f32, i32, i64, u32, u64
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


@onnx("NGramRepeatBlock", domain=MICROSOFT)
def block_repeated_ngrams(call: Call) -> str:
    """Scores of the tokens that may follow; those that would repeat an n-gram become -inf."""
    build, size = call.build, call.attr_int("ngram_size")
    if size < 1 or call.type(0).rank != 2 or call.type(1).rank != 2:
        raise call.malformed(f"n-grams of {size} of {call.type(0)} and {call.type(1)}, expected two matrices")
    repeats = build.repeated_ngrams(call[0], size=size, vocab=call.shape(1)[1])
    return build.where(repeats, -math.inf, call[1])


@onnx("MurmurHash3", domain=MICROSOFT)
def murmur_hash(call: Call) -> str:
    """MurmurHash3_x86_32 of the bytes of each element; Appleby, 2011."""
    build, dtype = call.build, call.type(0).dtype
    if dtype.bits not in (32, 64):
        raise call.unsupported(f"hashes of {dtype}")

    def rotated(x: str, count: int) -> str:
        return build.bitwise_or(build.shift_left(x, count), build.shift_right(x, 32 - count))

    def folded(x: str, count: int) -> str:
        return build.bitwise_xor(x, build.shift_right(x, count))

    unsigned = {32: u32, 64: u64}[dtype.bits]
    bits = call[0] if dtype is unsigned else build.bitcast(call[0], dtype=unsigned)
    halves = [bits] if unsigned is u32 else [bits, build.shift_right(bits, 32)]
    hashed: str | np.ndarray = np.array(call.attr_int("seed", 0) % (1 << 32), np.uint32)
    for half in halves:
        word = build.mul(call.cast(half, u32), 0xCC9E2D51)
        hashed = build.bitwise_xor(build.mul(rotated(word, 15), 0x1B873593), hashed)
        hashed = build.add(build.mul(rotated(hashed, 13), 5), 0xE6546B64)
    hashed = build.mul(folded(build.bitwise_xor(hashed, dtype.bits // 8), 16), 0x85EBCA6B)
    hashed = folded(build.mul(folded(hashed, 13), 0xC2B2AE35), 16)
    return hashed if call.attr_int("positive", 1) else build.bitcast(hashed, dtype=i32)


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

"""The rule for mixtures of experts of com.microsoft."""

from __future__ import annotations

from ingot.ir.dtype import f32
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import count


@onnx("MoE", domain=MICROSOFT)
def mixture_of_experts(call: Call) -> str:
    """Sum the results of the `k` experts of each row, weighted by the softmax of the router's scores.

    Operands 2 and 3, 4 and 5: the weights [experts, out, in] and biases [experts, out] of the two layers of an expert.
    """
    build, dtype, shape = call.build, call.type(0).dtype, call.shape(0)
    slots = call.attr_int("k", 1)
    if call.attr_int("use_sparse_mixer", 0):
        raise call.unsupported("attribute 'use_sparse_mixer'")
    if call.has(6):  # nor does ONNX Runtime compute it on a CPU
        raise call.unsupported("a third layer of the experts")
    x = call.reshape(call.cast(call[0], f32), (count(shape[:-1]), 1, shape[-1]))
    scores = build.softmax(call.cast(call[1], f32), axis=1)
    weights, chosen = build.add_all("topk", scores, k=slots, axis=1, largest=True)
    if call.attr_int("normalize_routing_weights", 0):
        weights = build.div(weights, build.reduce_sum(weights, axes=(1,), keepdims=True))
    hidden = _activated(call, _layer(call, 2, x, chosen))
    results = _layer(call, 4, hidden, chosen)
    rows = call.known_shape(build.type(chosen))[0]
    total = build.reduce_sum(build.mul(results, call.reshape(weights, (rows, slots, 1))), axes=(1,), keepdims=False)
    return call.reshape(call.cast(total, dtype), shape)


def _layer(call: Call, index: int, x: str, chosen: str) -> str:
    """Multiply rows by the matrices of their experts, operand `index`, and add the biases of the next operand."""
    result = call.build.expert_matmul(x, chosen, call.cast(call[index], f32))
    if call.has(index + 1):
        result = call.build.add(result, call.build.gather(call.cast(call[index + 1], f32), chosen, axis=0))
    return result


def _activated(call: Call, x: str) -> str:
    """Apply the activation to the results of the first layer.

    swiglu: gate * sigmoid(alpha * gate) * (linear + beta), both within a limit; the even columns are gates.
    """
    build, kind = call.build, call.word("activation_type", "relu", ("relu", "gelu", "silu", "identity", "swiglu"))
    if kind == "identity":
        return x
    if kind != "swiglu":
        return build.gelu(x, approximate="tanh") if kind == "gelu" else getattr(build, kind)(x)
    if call.attr_int("swiglu_fusion", 0) != 1:
        raise call.unsupported("swiglu of columns that do not alternate")
    gate, linear = (call.slice(x, 2, start, call.known_shape(build.type(x))[2], 2) for start in (0, 1))
    if "swiglu_limit" in call.attributes:
        limit = call.attr_float("swiglu_limit")
        gate, linear = build.minimum(gate, limit), build.clip(linear, minimum=-limit, maximum=limit)
    opened = build.sigmoid(build.mul(gate, call.attr_float("activation_alpha", 1.0)))
    return build.mul(build.mul(gate, opened), build.add(linear, call.attr_float("activation_beta", 0.0)))

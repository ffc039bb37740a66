"""Normalisations and softmax."""

from __future__ import annotations

from ingot.dtype import boolean
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import count, normalize_axes
from ingot.ops.norm import expand_centred


@onnx("Softmax")
def softmax(call: Call) -> str:
    return call.build.softmax(call[0], axis=call.attr_axis("axis", -1, call.type(0).rank))


@onnx("LogSoftmax")
def log_softmax(call: Call) -> str:
    return call.build.log_softmax(call[0], axis=call.attr_axis("axis", -1, call.type(0).rank))


@onnx("LayerNormalization", since=17)
def layer_norm(call: Call) -> tuple[str | None, ...]:
    """Over the axes from `axis` on, seen as one."""
    axis = call.attr_axis("axis", -1, call.type(0).rank)
    result = normalize(call, "layer_norm", axis, call.attr_float("epsilon", 1e-5), call[1], call.get(2))
    if len(call.outputs) == 1:
        return (result,)
    build, axes = call.build, tuple(range(axis, call.type(0).rank))
    mean = build.reduce_mean(call[0], axes=axes, keepdims=True)
    _, variance = expand_centred(build, call[0], axes)
    return result, mean, build.rsqrt(build.add(variance, call.attr_float("epsilon", 1e-5)))


@onnx("RMSNormalization", since=23)
@onnx("SimplifiedLayerNormalization")
def rms_norm(call: Call) -> tuple[str | None, ...]:
    """SimplifiedLayerNormalization is ONNX Runtime's name for it, written into the default domain."""
    axis = call.attr_axis("axis", -1, call.type(0).rank)
    return (normalize(call, "rms_norm", axis, call.attr_float("epsilon", 1e-5), call[1], None),)


def normalize(call: Call, op: str, axis: int, eps: float, weight: str | None, bias: str | None, x: str = "") -> str:
    """layer_norm or rms_norm of x (operand 0) over the axes from `axis` on; weight and bias broadcast to them."""
    build, x = call.build, x or call[0]
    shape = call.known_shape(build.type(x))
    size = count(shape[axis:])
    flat = call.reshape(x, (*shape[:axis], size))
    fits = [v is None or count(call.known_shape(build.type(v))) == size for v in (weight, bias)]
    operands = [None if v is None else call.reshape(v, (size,)) for v in (weight, bias)] if all(fits) else [None, None]
    result = call.reshape(getattr(build, op)(flat, *operands[: 2 if op == "layer_norm" else 1], eps=eps), shape)
    if not all(fits):
        result = result if weight is None else build.mul(result, weight)
        result = result if bias is None else build.add(result, bias)
    return result


@onnx("BatchNormalization", since=9)
def batch_norm(call: Call) -> str:
    if call.attr_int("training_mode", 0):
        raise call.unsupported("training_mode=1")
    return call.build.batch_norm(call[0], call[1], call[2], call[3], call[4], eps=call.attr_float("epsilon", 1e-5))


@onnx("InstanceNormalization")
def instance_norm(call: Call) -> str:
    channels = call.shape(0)[1] if call.type(0).rank > 1 else None
    if not isinstance(channels, int):
        raise call.unsupported(f"a channel count that is not known at load, {call.type(0)}")
    eps = call.attr_float("epsilon", 1e-5)
    return call.build.group_norm(call[0], call[1], call[2], groups=max(channels, 1), eps=eps)


@onnx("MeanVarianceNormalization")
def mean_variance_norm(call: Call) -> str:
    """(x - mean) / (standard deviation + 1e-9). The body in ONNX subtracts squares, which cancel."""
    build, axes = call.build, normalize_axes(call.attr_ints("axes", (0, 2, 3)), call.type(0).rank)
    centred, variance = expand_centred(build, call[0], tuple(sorted(axes)))
    return build.div(centred, build.add(build.sqrt(variance), 1e-9))


@onnx("GroupNormalization", since=18)
def group_norm(call: Call) -> str:
    """Before opset 21 scale and bias are per group; they are repeated for each channel of it."""
    build, groups = call.build, call.attr_int("num_groups")
    channels = call.shape(0)[1] if call.type(0).rank > 1 else 0
    vectors = [call[1], call[2]]
    if call.opset < 21:
        if not isinstance(channels, int) or groups < 1 or channels % groups:
            raise call.malformed(f"num_groups is {groups}, expected a divisor of {channels}")
        columns = [build.expand(call.reshape(v, (groups, 1)), shape=(groups, channels // groups)) for v in vectors]
        vectors = [call.reshape(c, (channels,)) for c in columns]
    return build.group_norm(call[0], *vectors, groups=groups, eps=call.attr_float("epsilon", 1e-5))


@onnx("Dropout")
def dropout(call: Call) -> tuple[str | None, ...]:
    """Nothing is dropped outside of training; the mask is all true."""
    if call.has(2):
        training = call.known(2)
        if training is None or training.size != 1 or training.item():
            raise call.unsupported("training_mode")
    if len(call.outputs) == 1:
        return (call[0],)
    return call[0], call.build.expand(call.build.scalar(True, boolean), shape=call.shape(0))

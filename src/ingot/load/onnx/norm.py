"""Rules for normalizations and softmax."""

from __future__ import annotations

import math

from ingot.ir.dtype import DType, f32, f64, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.conv import MAX_WINDOW, accumulator, raised, rooted
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import count, normalize_axes
from ingot.ops.norm import expand_centred


@onnx("Softmax", since=13)
def softmax(call: Call) -> str:
    return call.build.softmax(call[0], axis=call.attr_axis("axis", -1, call.type(0).rank))


@onnx("LogSoftmax", since=13)
def log_softmax(call: Call) -> str:
    return call.build.log_softmax(call[0], axis=call.attr_axis("axis", -1, call.type(0).rank))


@onnx("LayerNormalization")
def layer_norm(call: Call) -> tuple[str | None, ...]:
    """Normalize over the axes from `axis` on, merged into one; the statistics outputs have dtype `stash_type`, whatever
    the dtype of x.

    ONNX Runtime's optimizer writes this op into files of any opset.
    """
    axis = call.attr_axis("axis", -1, call.type(0).rank)
    result = normalize(call, "layer_norm", axis, call.attr_float("epsilon", 1e-5), call[1], call.get(2))
    if len(call.outputs) == 1:
        return (result,)
    eps, stash = call.attr_float("epsilon", 1e-5), call.attr_dtype("stash_type", 1)
    return result, *statistics(call, "layer_norm", call[0], axis, eps, stash)


@onnx("RMSNormalization", since=23)
@onnx("SimplifiedLayerNormalization")
def rms_norm(call: Call) -> tuple[str | None, ...]:
    """SimplifiedLayerNormalization is ONNX Runtime's name in the default domain. If the operands differ in dtype, the
    result has the weight's.
    """
    axis, eps = call.attr_axis("axis", -1, call.type(0).rank), call.attr_float("epsilon", 1e-5)
    dtypes, x, weight = (call.type(0).dtype, call.type(1).dtype), call[0], call[1]
    if dtypes[0] is not dtypes[1]:
        wide = f64 if f64 in dtypes else f32
        x, weight = call.cast(x, wide), call.cast(weight, wide)
    result = call.cast(normalize(call, "rms_norm", axis, eps, weight, None, x), dtypes[1])
    if len(call.outputs) == 1:
        return (result,)
    return result, statistics(call, "rms_norm", call[0], axis, eps, f32)[1]


def statistics(call: Call, op: str, x: str, axis: int, eps: float, dtype: DType) -> tuple[str, str]:
    """Return the statistics of `normalize`: the mean, and the reciprocal of the deviation, in a dtype.

    They keep the reduced axes, from `axis` on, as 1. For rms_norm the mean is 0, and the deviation is the root mean
    square.
    """
    build, shape = call.build, call.known_shape(call.build.type(x))
    axes = tuple(range(len(shape)))[axis:]
    x = call.cast(x, accumulator(build.type(x).dtype))
    if op == "rms_norm":
        mean = build.expand(build.scalar(0.0, dtype), shape=(*shape[:axis], *(1,) * len(axes)))
        variance = build.reduce_mean(build.mul(x, x), axes=axes, keepdims=True)
    else:
        mean = build.reduce_mean(x, axes=axes, keepdims=True)
        _, variance = expand_centred(build, x, axes)
    return call.cast(mean, dtype), call.cast(build.rsqrt(build.add(variance, eps)), dtype)


def normalize(call: Call, op: str, axis: int, eps: float, weight: str | None, bias: str | None, x: str = "") -> str:
    """Add layer_norm or rms_norm of x (operand 0) over the axes from `axis` on; weight and bias broadcast to these
    axes.
    """
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
def batch_norm(call: Call) -> tuple[str | None, ...]:
    """x is [N, C, ...], or [N] with one channel."""
    eps, dtype = call.attr_float("epsilon", 1e-5), call.type(0).dtype
    if call.type(0).rank == 1:
        column = call.reshape(call[0], (*call.shape(0), 1))
        result, *updates = batch_norm(call.replaced(column, *call.operands[1:]))
        assert result is not None
        return call.reshape(result, call.shape(0)), *updates
    if not call.attr_int("training_mode", 0):
        operands = [call[i] for i in range(5)]
        if any(call.type(i).dtype is not dtype for i in range(1, 5)):
            wide = f64 if any(call.type(i).dtype is f64 for i in range(5)) else f32
            operands = [call.cast(x, wide) for x in operands]
        return (call.cast(call.build.batch_norm(*operands, eps=eps), dtype),)
    return _trained_batch_norm(call, eps)


def _trained_batch_norm(call: Call, eps: float) -> tuple[str | None, ...]:
    """Normalize by the mean and variance of the batch; the other outputs are the updated running mean and variance."""
    build, rank, dtype = call.build, call.type(0).rank, call.type(0).dtype
    if rank < 2:
        raise call.malformed(f"operand {call.type(0)}, expected rank 2 or more")
    wide, axes, row = accumulator(dtype), (0, *range(2, rank)), (-1, *[1] * (rank - 2))
    channels = call.shape(0)[1]
    x = call.cast(call[0], wide)
    mean = build.reduce_mean(x, axes=axes, keepdims=False)
    centred, variance = expand_centred(build, x, axes)
    scale, bias = (call.reshape(call.cast(call[i], wide), (channels, *row[1:])) for i in (1, 2))
    y = build.mul(build.div(centred, build.sqrt(build.add(variance, eps))), scale)
    momentum, updates = call.attr_float("momentum", 0.9), []
    for index, current in ((3, mean), (4, call.reshape(variance, (channels,)))):
        moved = build.mul(current, 1 - momentum)
        update = build.add(build.mul(call.cast(call[index], wide), momentum), moved)
        updates.append(call.cast(update, call.type(index).dtype))
    return call.cast(build.add(y, bias), dtype), *updates


@onnx("LpNormalization")
def lp_norm(call: Call) -> str:
    """Divide x by its p-norm along an axis; return zeros where the norm is 0."""
    build, dtype, p = call.build, call.type(0).dtype, call.attr_int("p", 2)
    if p not in (1, 2):
        raise call.malformed(f"attribute 'p' is {p}, expected 1 or 2")
    axis = call.attr_axis("axis", -1, call.type(0).rank)
    x = call.cast(call[0], accumulator(dtype))
    norm = rooted(call, build.reduce_sum(raised(call, x, p), axes=(axis,), keepdims=True), p)
    return call.cast(build.where(build.equal(norm, 0.0), norm, build.div(x, norm)), dtype)


@onnx("LRN")
def local_response_norm(call: Call) -> str:
    """Compute x / (bias + alpha * mean of squares over the `size` nearest channels) ^ beta; missing channels count as
    zeros.
    """
    build, dtype, shape = call.build, call.type(0).dtype, call.shape(0)
    size = call.attr_int("size")
    if len(shape) < 2 or not 1 <= size <= MAX_WINDOW:
        raise call.malformed(
            f"attribute 'size' is {size}, operand {call.type(0)}, expected 1 or more and rank 2 or more"
        )
    x = call.cast(call[0], accumulator(dtype))
    planes = call.reshape(build.mul(x, x), (shape[0], 1, shape[1], count(shape[2:])))
    window = {"kernel": (size, 1), "strides": (1, 1), "pads": ((size - 1) // 2, 0, size // 2, 0), "dilations": (1, 1)}
    mean = call.reshape(build.avg_pool(planes, **window, count_include_pad=True), shape)
    base = build.add(build.mul(mean, call.attr_float("alpha", 1e-4)), call.attr_float("bias", 1.0))
    return call.cast(build.div(x, build.pow(base, call.attr_float("beta", 0.75))), dtype)


@onnx("Hardmax", since=13)
def hardmax(call: Call) -> str:
    """Return 1 at the first largest element along an axis, 0 elsewhere."""
    build, shape = call.build, call.shape(0)
    axis = call.attr_axis("axis", -1, len(shape))
    if shape[axis] == 0:
        return call[0]
    positions = build.iota(length=shape[axis], start=0, step=1, dtype=i64)
    positions = call.reshape(positions, (shape[axis], *[1] * (len(shape) - 1 - axis)))
    x = call[0]
    if not isinstance(shape[axis], int):  # an axis that is empty at run time has no largest element
        high = tuple(int(i == axis) for i in range(len(shape)))
        x = build.pad(x, low=(0,) * len(shape), high=high, value=-math.inf)
    return call.cast(build.equal(build.argmax(x, axis=axis, keepdims=True), positions), call.type(0).dtype)


@onnx("InstanceNormalization")
def instance_norm(call: Call) -> str:
    channels = call.shape(0)[1] if call.type(0).rank > 1 else None
    call.expect_sizes(0, 1)
    if not isinstance(channels, int):
        raise call.unsupported(f"a channel count that is not known at load, {call.type(0)}")
    eps = call.attr_float("epsilon", 1e-5)
    return call.build.group_norm(call[0], call[1], call[2], groups=max(channels, 1), eps=eps)


@onnx("MeanVarianceNormalization", since=9)
def mean_variance_norm(call: Call) -> str:
    """Compute (x - mean) / (standard deviation + 1e-9). The ONNX body subtracts squares, which suffers from
    cancellation.
    """
    build, axes = call.build, normalize_axes(call.attr_ints("axes", (0, 2, 3)), call.type(0).rank)
    centred, variance = expand_centred(build, call[0], tuple(sorted(axes)))
    return build.div(centred, build.add(build.sqrt(variance), 1e-9))


@onnx("GroupNormalization", since=18)
def group_norm(call: Call) -> str:
    """Before opset 21, scale and bias are per group; they are repeated for each channel of a group."""
    build, groups = call.build, call.attr_int("num_groups")
    channels = call.shape(0)[1] if call.type(0).rank > 1 else 0
    vectors = [call[1], call[2]]
    if call.opset < 21:
        call.expect_sizes(0, 1)
        if not isinstance(channels, int) or groups < 1 or channels % groups:
            raise call.malformed(f"num_groups is {groups}, expected a divisor of {channels}")
        columns = [build.expand(call.reshape(v, (groups, 1)), shape=(groups, channels // groups)) for v in vectors]
        vectors = [call.reshape(c, (channels,)) for c in columns]
    return build.group_norm(call[0], *vectors, groups=groups, eps=call.attr_float("epsilon", 1e-5))

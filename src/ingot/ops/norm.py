"""Normalizations. Means of f32 are accumulated in float64 and rounded once, and so are differences from a mean."""

import math

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import f32
from ingot.ir.graph import TensorType
from ingot.ops.define import expect_kind, op, sample, unify


def _wide_mean(x):
    return np.sum(x, -1, np.float64, keepdims=True) / max(x.shape[-1], 1)


def _mean(x):
    return _wide_mean(x).astype(x.dtype)


def _expect_vectors(name: str, x: TensorType, axis: int, vectors: dict[str, TensorType | None]) -> None:
    """Check that each given vector is [dim of x at axis] in x's dtype."""
    expect_kind(name, x, "f")
    for operand, vector in vectors.items():
        if vector is None:
            continue
        if vector.rank != 1 or vector.dtype is not x.dtype:
            raise ShapeError(f"{name}: bad {operand}, got {vector}, expected {x.dtype}[{x.shape[axis]}]")
        unify("{}: {} {} and x {}", vector.shape[0], x.shape[axis], name, operand, vector, x)


def _infer_last(name: str):
    def infer(x, weight=None, bias=None, *, eps):
        if x.rank == 0:
            raise ShapeError(f"{name}: rank too low, got {x}, expected 1 or more")
        _expect_vectors(name, x, -1, {"weight": weight, "bias": bias})
        return x

    return infer


def _affine(y, weight, bias):
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _expand_affine(g, y, weight, bias):
    y = y if weight is None else g.mul(y, weight)
    return y if bias is None else g.add(y, bias)


def expand_centred(g, x, axes):
    """Return x minus its mean over the axes, and the variance, with the reduced dims as 1. A mean far from zero costs
    no digits.
    """
    for _ in range(2):  # the second mean is the rounding error of the first one
        x = g.sub(x, g.reduce_mean(x, axes=axes, keepdims=True))
    return x, g.reduce_mean(g.mul(x, x), axes=axes, keepdims=True)


def _expand_layer_norm(g, x, weight=None, bias=None, *, eps):
    centred, variance = expand_centred(g, x, (g.type(x).rank - 1,))
    return _expand_affine(g, g.div(centred, g.sqrt(g.add(variance, float(eps)))), weight, bias)


@op(
    infer=_infer_last("layer_norm"),
    inplace=(0,),
    acts_on="row",
    tolerance={f32: 5e-6},
    expand=_expand_layer_norm,
    samples=[
        sample("x[2,5,64] w[64] b[64]", eps=1e-5),
        sample("x[3,67] w[67]", eps=1e-5),
        sample("x[3,67] none b[67]", eps=1e-5),
        sample("x[33]", eps=1e-12),
        sample("x[2,1] w[1] b[1]", eps=1e-5),
        sample("x[0,8] w[8] b[8]", eps=1e-5),
        sample("x[2,2,1,3,17] w[17] b[17]", eps=1e-3),
    ],
)
def layer_norm(x, weight=None, bias=None, *, eps: float):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; the variance is the biased one.

    A mean far from zero does not reduce accuracy, and a constant row gives exactly the bias: kernels keep the mean as
    the sum of two floats. The remaining error is the rounding of x itself. Ba, Kiros and Hinton, "Layer Normalization",
    2016.
    """
    centred = (x - _wide_mean(x)).astype(x.dtype)
    return _affine(centred / np.sqrt(_mean(centred * centred) + x.dtype.type(eps)), weight, bias)


def _expand_rms_norm(g, x, weight=None, *, eps):
    square = g.reduce_mean(g.mul(x, x), axes=(g.type(x).rank - 1,), keepdims=True)
    return _expand_affine(g, g.div(x, g.sqrt(g.add(square, float(eps)))), weight, None)


@op(
    infer=_infer_last("rms_norm"),
    inplace=(0,),
    acts_on="row",
    expand=_expand_rms_norm,
    samples=[
        sample("x[2,5,64] w[64]", eps=1e-5),
        sample("x[3,67]", eps=1e-6),
        sample("x[1,1,7] w[7]", eps=0.0),
        sample("x[2,1] w[1]", eps=1e-5),
        sample("x[0,8] w[8]", eps=1e-5),
        sample("x[33] w[33]", eps=1e-5),
    ],
)
def rms_norm(x, weight=None, *, eps: float):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    return _affine(x / np.sqrt(_mean(x * x) + x.dtype.type(eps)), weight, None)


def _infer_norm_gradient(name: str, vectors: int):
    def infer(x, weight, d, *, eps):
        expect_kind(name, x, "f")
        if not x.rank or d != x:
            raise ShapeError(f"{name}: bad operands, got {x} and {d}, expected one type of rows")
        _expect_vectors(name, x, x.rank - 1, {"weight": weight})
        return (x, *[weight] * vectors)

    return infer


def _expand_norm_gradient(g, x, weight, d, eps, centred):
    last = (g.type(x).rank - 1,)
    if centred:
        x, square = expand_centred(g, x, last)
    else:
        square = g.reduce_mean(g.mul(x, x), axes=last, keepdims=True)
    factor = g.reciprocal(g.sqrt(g.add(square, float(eps))))
    normal, weighed = g.mul(x, factor), g.mul(d, weight)
    rest = g.sub(weighed, g.reduce_mean(weighed, axes=last, keepdims=True)) if centred else weighed
    share = g.mul(normal, g.reduce_mean(g.mul(weighed, normal), axes=last, keepdims=True))
    of_x = g.mul(g.sub(rest, share), factor)
    rows = tuple(range(last[0]))
    vectors = [g.mul(d, normal), d] if centred else [g.mul(d, normal)]
    return (of_x, *(g.reduce_sum(each, axes=rows, keepdims=False) for each in vectors))


def _norm_gradient(x, weight, d, eps, centred):
    x = x - _mean(x) if centred else x
    factor = 1 / np.sqrt(_mean(x * x) + x.dtype.type(eps))
    normal, weighed = x * factor, d * weight
    rest = weighed - _mean(weighed) if centred else weighed
    rows = tuple(range(x.ndim - 1))
    vectors = [d * normal, d] if centred else [d * normal]
    of_x = (rest - normal * _mean(weighed * normal)) * factor
    return (of_x, *(np.sum(each, rows, np.float64).astype(x.dtype) for each in vectors))


_NORM_GRADIENTS = [
    sample("x[2,5,64] w[64] d[2,5,64]", eps=1e-5),
    sample("x[3,67] w[67] d[3,67]", eps=1e-6),
    sample("x[600,19] w[19] d[600,19]", eps=1e-3),
    sample("x[2,1] w[1] d[2,1]", eps=1e-2),
    sample("x[33] w[33] d[33]", eps=1e-5),
    sample("x[0,8] w[8] d[0,8]", eps=1e-5),
]


@op(
    infer=_infer_norm_gradient("layer_norm_gradient", 2),
    outputs=3,
    tolerance={f32: 2e-5},
    expand=lambda g, x, weight, d, *, eps: _expand_norm_gradient(g, x, weight, d, eps, True),
    samples=_NORM_GRADIENTS,
)
def layer_norm_gradient(x, weight, d, *, eps: float):
    """The gradients of x, weight and bias of layer_norm from d, the gradient of its result."""
    return _norm_gradient(x, weight, d, eps, True)


@op(
    infer=_infer_norm_gradient("rms_norm_gradient", 1),
    outputs=2,
    tolerance={f32: 2e-5},
    expand=lambda g, x, weight, d, *, eps: _expand_norm_gradient(g, x, weight, d, eps, False),
    samples=_NORM_GRADIENTS,
)
def rms_norm_gradient(x, weight, d, *, eps: float):
    """The gradients of x and weight of rms_norm from d, the gradient of its result."""
    return _norm_gradient(x, weight, d, eps, False)


def _infer_axis(name: str):
    def infer(x, *, axis):
        expect_kind(name, x, "f")
        if not 0 <= axis < x.rank:
            raise ShapeError(f"{name}: axis out of range, got {axis} for {x}, expected 0..{x.rank - 1}")
        return x

    return infer


def _expand_shifted(g, x, axis):
    return g.sub(x, g.reduce_max(x, axes=(axis,), keepdims=True))


def _expand_softmax(g, x, *, axis):
    power = g.exp(_expand_shifted(g, x, axis))
    return g.div(power, g.reduce_sum(power, axes=(axis,), keepdims=True))


def _expand_log_softmax(g, x, *, axis):
    shifted = _expand_shifted(g, x, axis)
    return g.sub(shifted, g.log(g.reduce_sum(g.exp(shifted), axes=(axis,), keepdims=True)))


_AXIS = [
    sample("x[2,5,67]", axis=2),
    sample("x[2,5,7]", axis=1),
    sample("x[5,33]", axis=0),
    sample("x[3,1]", axis=1),
    sample("x[0,3]", axis=1),
    sample("x[3,0]", axis=1),
    sample("x[9]", axis=0),
    sample("x[2,2,1,3,5]", axis=3),
]


def _shifted(x, axis):
    return x - np.max(x, axis, keepdims=True, initial=-np.inf)


@op(
    computes=False,
    infer=_infer_axis("softmax"),
    inplace=(0,),
    domain=(-10.0, 10.0),
    samples=_AXIS,
    expand=_expand_softmax,
)
def softmax(x, *, axis: int):
    """exp(x - max) / sum(exp(x - max)) along an axis; a row of only -inf, or with inf or NaN, is NaN.

    For floats of 16 bits each step is rounded, as in ONNX's body of Softmax.
    """
    power = np.exp(_shifted(x, axis))
    return power / np.sum(power, axis, np.float64, keepdims=True).astype(x.dtype)


@op(infer=_infer_axis("log_softmax"), inplace=(0,), domain=(-10.0, 10.0), samples=_AXIS, expand=_expand_log_softmax)
def log_softmax(x, *, axis: int):
    """The logarithm of softmax along an axis."""
    shifted = _shifted(x, axis)
    return shifted - np.log(np.sum(np.exp(shifted), axis, np.float64, keepdims=True)).astype(x.dtype)


def _infer_batch_norm(x, scale, bias, mean, variance, *, eps, momentum):
    if x.rank < 2:
        raise ShapeError(f"batch_norm: rank too low, got {x}, expected 2 or more")
    _expect_vectors("batch_norm", x, 1, {"scale": scale, "bias": bias, "mean": mean, "variance": variance})
    if not 0 <= momentum <= 1:
        raise ShapeError(f"batch_norm: momentum out of range, got {momentum}, expected 0..1")
    return x


def _expand_channels(g, vector, rank):
    (channels,) = g.type(vector).shape
    return g.reshape(vector, shape=(channels, *[1] * (rank - 2)))


def _expand_batch_norm(g, x, scale, bias, mean, variance, *, eps, momentum):
    factor = g.div(scale, g.sqrt(g.add(variance, float(eps))))
    scale, bias, mean = (_expand_channels(g, v, g.type(x).rank) for v in (factor, bias, mean))
    return g.add(g.mul(g.sub(x, mean), scale), bias)


@op(
    infer=_infer_batch_norm,
    inplace=(0,),
    tolerance={f32: 5e-6},
    expand=_expand_batch_norm,
    samples=[
        sample("x[2,3,4,5] s[3] b[3] m[3] v>0.1[3]", eps=1e-5),
        sample("x[4,17] s[17] b[17] m[17] v>0.1[17]", eps=1e-3),
        sample("x[2,3,7] s[3] b[3] m[3] v>0.1[3]", eps=1e-5),
        sample("x[1,1,2,3,2] s[1] b[1] m[1] v>0.1[1]", eps=1e-5),
        sample("x[0,3,2] s[3] b[3] m[3] v>0.1[3]", eps=1e-5),
    ],
)
def batch_norm(x, scale, bias, mean, variance, *, eps: float, momentum: float = 0.0):
    """(x - mean) / sqrt(variance + eps) * scale + bias, each [C], for x [N, C, ...]: the inference form.

    momentum: the share by which a training step moves mean and variance towards those of its batch, which it normalizes
    by; with 0 the step leaves them unchanged, and normalizes by them. Ioffe and Szegedy, "Batch Normalization", 2015.
    """
    factor = scale / np.sqrt(variance + x.dtype.type(eps))
    scale, bias, mean = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (factor, bias, mean))
    return (x - mean) * scale + bias


def _infer_batch_norm_training(x, scale, bias, *, eps):
    return _infer_batch_norm(x, scale, bias, scale, scale, eps=eps, momentum=0.0), scale, scale


def _expand_batch_norm_training(g, x, scale, bias, *, eps):
    rank = g.type(x).rank
    axes = (0, *range(2, rank))
    mean = g.reduce_mean(x, axes=axes, keepdims=False)
    centred = g.sub(x, _expand_channels(g, mean, rank))
    variance = g.reduce_mean(g.mul(centred, centred), axes=axes, keepdims=False)
    factor = _expand_channels(g, g.div(scale, g.sqrt(g.add(variance, float(eps)))), rank)
    return g.add(g.mul(centred, factor), _expand_channels(g, bias, rank)), mean, variance


@op(
    infer=_infer_batch_norm_training,
    outputs=3,
    tolerance={f32: 5e-6},
    expand=_expand_batch_norm_training,
    samples=[
        sample("x[2,3,4,5] s[3] b[3]", eps=1e-5),
        sample("x[40,17] s[17] b[17]", eps=1e-3),
        sample("x[2,3,7] s[3] b[3]", eps=1e-5),
        sample("x[3,1,2,3,2] s[1] b[1]", eps=1e-5),
    ],
)
def batch_norm_training(x, scale, bias, *, eps: float):
    """batch_norm with the mean and the biased variance of each channel of x, which are the other results."""
    shape, axes = (-1, *[1] * (x.ndim - 2)), (0, *range(2, x.ndim))
    mean = np.mean(x, axes, np.float64).astype(x.dtype)
    centred = x - mean.reshape(shape)
    variance = np.mean(centred * centred, axes, np.float64).astype(x.dtype)
    factor = scale / np.sqrt(variance + x.dtype.type(eps))
    return centred * factor.reshape(shape) + bias.reshape(shape), mean, variance


def _infer_group_norm(x, weight=None, bias=None, *, groups, eps):
    if x.rank < 2:
        raise ShapeError(f"group_norm: rank too low, got {x}, expected 2 or more")
    _expect_vectors("group_norm", x, 1, {"weight": weight, "bias": bias})
    channels = x.shape[1]
    if groups < 1 or (isinstance(channels, int) and channels % groups):
        raise ShapeError(f"group_norm: bad groups, got {groups}, expected a divisor of {channels}")
    return x


def _expand_group_norm(g, x, weight=None, bias=None, *, groups, eps):
    batch, channels, *rest = g.type(x).shape
    per_group = channels // groups
    for dim in rest:
        per_group = per_group * dim
    normal = g.layer_norm(g.reshape(x, shape=(batch, groups, per_group)), eps=eps)
    normal = g.reshape(normal, shape=(batch, channels, *rest))
    vectors = (v and _expand_channels(g, v, 2 + len(rest)) for v in (weight, bias))
    return _expand_affine(g, normal, *vectors)


@op(
    infer=_infer_group_norm,
    inplace=(0,),
    tolerance={f32: 5e-6},
    expand=_expand_group_norm,
    samples=[
        sample("x[2,6,4,5] w[6] b[6]", groups=3, eps=1e-5),
        sample("x[2,6,7]", groups=1, eps=1e-5),
        sample("x[2,6,3] w[6]", groups=6, eps=1e-5),
        sample("x[3,8] w[8] b[8]", groups=2, eps=1e-5),
        sample("x[0,4,2] w[4] b[4]", groups=2, eps=1e-5),
        sample("x[2,0,3] w[0] b[0]", groups=1, eps=1e-5),
    ],
)
def group_norm(x, weight=None, bias=None, *, groups: int, eps: float):
    """Layer norm of each of `groups` consecutive groups of channels of x [N, C, ...], then weight and bias, each
    [C].

    Wu and He, "Group Normalization", 2018.
    """
    grouped = layer_norm(x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups), eps=eps)
    column = (-1, *[1] * (x.ndim - 2))
    weight, bias = (None if v is None else v.reshape(column) for v in (weight, bias))
    return _affine(grouped.reshape(x.shape), weight, bias)

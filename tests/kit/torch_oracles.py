"""The same function in torch, for every op that has one; operands are tensors and attributes are keywords."""

import math

import numpy as np
import torch
import torch.nn.functional as F

import image_cases
import kv_cache_cases
import recurrent_cases
import sequence_state_cases
import special_oracles
from ingot.ir.dtype import boolean, f16, f32, f64, i64, u8, u64
from philox import philox


def spread(values, rank):
    """ONNX's flat padding (before..., after...) as torch's (last before, last after, ...)."""
    return [values[i] for axis in reversed(range(rank)) for i in (axis, rank + axis)]


def torch_attention(q, k, v, mask=None, *, scale, causal=False, causal_offset=0, safe=True, zero_nan=False):
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    keep = keep.tril(causal_offset) if causal else keep
    added = torch.zeros(keep.shape, dtype=q.dtype).masked_fill(~keep, -math.inf)
    if mask is not None:
        added = added + (mask if mask.dtype.is_floating_point else torch.zeros(1).masked_fill(~mask, -math.inf))
    if zero_nan or not safe:
        weights = (scale * q @ k.mT + added).softmax(-1)
        return (weights.nan_to_num(0) if zero_nan else weights) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale, enable_gqa=True)


def torch_rotary(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def torch_matmul(a, b, *, transpose_a=False, transpose_b=False, scale=1):
    return scale * ((a.mT if transpose_a else a) @ (b.mT if transpose_b else b))


def torch_conv(x, w, b=None, *, strides, pads, dilations, groups):
    rank = x.dim() - 2
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
    return function(F.pad(x, spread(pads, rank)), w, b, strides, 0, dilations, groups)


def torch_conv_filter_gradient(x, d, *, kernel, groups, **window):
    filter = x.new_zeros(d.shape[1], x.shape[1] // groups, *kernel)
    return back(lambda w: torch_conv(x, w, groups=groups, **window))(filter, d)[0]


def torch_max_pool(x, *, kernel, strides, pads, dilations):
    rank = x.dim() - 2
    function = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[rank]
    return function(F.pad(x.double(), spread(pads, rank), value=-math.inf), kernel, strides, 0, dilations).to(x.dtype)


def torch_max_pool_indices(x, *, kernel, strides, pads, dilations):
    """As positions in what is padded, which torch counts in."""
    rank = x.dim() - 2
    function = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[rank]
    padded = F.pad(x.double(), spread(pads, rank), value=-math.inf)
    _, found = function(padded, kernel, strides, 0, dilations, return_indices=True)
    places = np.unravel_index(found.numpy(), padded.shape[2:])
    inside = [place - low for place, low in zip(places, pads, strict=False)]
    return torch.from_numpy(np.asarray(np.ravel_multi_index(inside, x.shape[2:])))


def torch_scatter(x, indices, updates, *, axis, reduction):
    indices = torch.remainder(indices.long(), x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, indices, updates)
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    return x.scatter_reduce(axis, indices, updates, names[reduction])


def torch_avg_pool(x, *, kernel, strides, pads, dilations, count_include_pad=False):
    """torch has no dilated average: a depthwise convolution with ones, over the same of a mask."""
    rank, channels = x.dim() - 2, x.shape[1]
    ones = torch.ones(channels, 1, *kernel, dtype=x.dtype)
    weights = torch.ones_like(x[:1]) if not count_include_pad else torch.ones(F.pad(x[:1], spread(pads, rank)).shape)
    settings = {"strides": strides, "dilations": dilations, "groups": channels}
    total = torch_conv(x, ones, pads=pads, **settings)
    kept = (0,) * 2 * rank if count_include_pad else pads
    return total / torch_conv(weights.to(x.dtype), ones, pads=kept, **settings)


def torch_slice(x, *, starts, stops, steps):
    for axis, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        x = x.index_select(axis, torch.arange(start, stop, step) if (stop - start) * step > 0 else torch.arange(0))
    return x


def torch_gather(x, indices, *, axis):
    size = x.shape[axis]
    flat = x.index_select(axis, torch.remainder(indices.flatten().long(), size))
    return flat.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def torch_reduce(function, empty):
    def reduce(x, *, axes, keepdims):
        for axis in sorted(axes, reverse=True):
            if x.shape[axis] == 0:
                x = torch.full([*x.shape[:axis], 1, *x.shape[axis + 1 :]], empty, dtype=x.dtype)
            x = function(x, axis, keepdims)
        return x

    return reduce


def torch_arange(start, stop, step):
    """torch refuses a step away from stop."""
    stop = start if (stop - start) * step < 0 else stop
    return torch.arange(start.item(), stop.item(), step.item(), dtype=start.dtype)


def torch_reduce_mean(x, *, axes, keepdims):
    return x.mean(axes, keepdims) if axes else x


def torch_cast(x, *, dtype):
    return x.to({f32: torch.float32, f64: torch.float64, boolean: torch.bool, i64: torch.int64}[dtype])


def torch_bitcast(x, *, dtype):
    return x.view({u64: torch.uint64, f16: torch.float16, f64: torch.float64, u8: torch.uint8}[dtype])


def torch_reduce_over(x, axes, *, kind, keepdims):
    return ORACLE[f"reduce_{kind}"](x, axes=tuple(axes.tolist()), keepdims=keepdims)


def torch_adamw(parameter, mean, square, gradient, kept, size, root, *, beta1, beta2, eps):
    mean = mean.lerp(gradient, 1 - beta1)
    square = (square * beta2).addcmul(gradient, gradient, value=1 - beta2)
    return (parameter * kept).addcdiv(mean * -size, square.sqrt() * root + eps), mean, square


def torch_sgd(parameter, velocity, gradient, rate, *, momentum, decay):
    velocity = velocity * momentum + gradient.add(parameter, alpha=decay)
    return parameter - velocity * rate, velocity


def torch_dropout(x, step=None, part=None, *, rate, seed=0, stream=0):
    if step is None:
        return x
    begin = 0 if part is None else int(part) * x.numel()
    key = seed % 2**32, seed // 2**32
    places = range(begin, begin + x.numel())
    words = [philox((i // 4 % 2**32, i // 4 // 2**32, int(step), stream), key)[i % 4] for i in places]
    kept = torch.tensor(words, dtype=torch.float64).reshape(x.shape) >= rate * 2**32
    return torch.where(kept, x / (1 - rate), 0)


def torch_attention_dropout(
    q, k, v, mask=None, step=None, part=None, *, rate, seed=0, stream=0, **attributes
):  # fmt: skip
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    each = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:3], -1)
    weights = torch_attention(q, k, each, mask, **attributes)
    return torch_dropout(weights, step, part, rate=rate, seed=seed, stream=stream) @ v


def torch_attention_dropout_gradient(q, k, v, d, step, part=None, **attributes):
    return back(lambda *leaves: torch_attention_dropout(*leaves, None, step, part, **attributes))(q, k, v, d)


def torch_cross_entropy(logits, labels, *, ignored=-100, smoothing=0.0):
    classes = logits.shape[-1]
    losses = F.cross_entropy(
        logits.reshape(-1, classes), labels.reshape(-1), ignore_index=ignored, label_smoothing=smoothing,
        reduction="none",
    )  # fmt: skip
    return losses.reshape(labels.shape)


def back(function):
    """The op that gives gradients: of the operands of `function` before the last, which is that of its result."""

    def gradients(*operands, **attributes):
        *given, d = operands
        leaves = [x.detach().requires_grad_(x.dtype.is_floating_point) for x in given]
        floats = [x for x in leaves if x.requires_grad]
        return torch.autograd.grad(function(*leaves, **attributes), floats, d)

    return gradients


def torch_norm_gradients(norm):
    def gradients(x, weight, d, *, eps):
        with_bias = [torch.zeros_like(weight)] if norm is F.layer_norm else []
        return back(lambda *leaves: norm(leaves[0], weight.shape, *leaves[1:], eps=eps))(x, weight, *with_bias, d)

    return gradients


def parts(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return z.real, z.imag


def torch_batch_norm(x, scale, bias, *, eps):
    axes = (0, *range(2, x.ndim))
    y = F.batch_norm(x, None, None, scale, bias, training=True, eps=eps)
    return y, x.mean(axes), x.var(axes, correction=0)


ORACLE = {
    "adamw": torch_adamw,
    "sgd": torch_sgd,
    "detach": torch.detach,
    "dropout": torch_dropout,
    "cross_entropy": torch_cross_entropy,
    "cross_entropy_gradient": lambda *given, **settings: back(torch_cross_entropy)(*given, **settings)[0],
    "relu_gradient": lambda y, d: torch.where(y <= 0, 0, d),
    "silu_gradient": lambda x, d: back(F.silu)(*torch.broadcast_tensors(x, d))[0],
    "gelu_gradient": lambda x, d, *, approximate: back(
        lambda x: F.gelu(x, approximate={"erf": "none"}.get(approximate, approximate))
    )(*torch.broadcast_tensors(x, d))[0],
    "attention_gradient": back(torch_attention),
    "conv_filter_gradient": torch_conv_filter_gradient,
    "max_pool_gradient": lambda x, d, **window: back(torch_max_pool)(x, d, **window)[0],
    "attention_dropout": torch_attention_dropout,
    "attention_dropout_gradient": torch_attention_dropout_gradient,
    "layer_norm_gradient": torch_norm_gradients(F.layer_norm),
    "rms_norm_gradient": torch_norm_gradients(F.rms_norm),
    "fft": lambda re, im, *, axis, inverse: parts(
        (torch.fft.ifft if inverse else torch.fft.fft)(torch.complex(re, im), dim=axis)
    ),
    "rfft": lambda x, *, axis: parts(torch.fft.rfft(x, dim=axis)),
    "irfft": lambda re, im, *, axis, length: torch.fft.irfft(torch.complex(re, im), length, dim=axis),
    "div": lambda a, b: a / b if a.dtype.is_floating_point else torch.div(a, b, rounding_mode="trunc"),
    "floor_div": torch.floor_divide,
    "mod": torch.remainder,
    "neg": torch.neg,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "hard_swish": F.hardswish,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros((), dtype=x.dtype)),
    "gelu": lambda x, *, approximate: F.gelu(x, approximate={"erf": "none"}.get(approximate, approximate)),
    "leaky_relu": lambda x, *, alpha: F.leaky_relu(x, alpha),
    "prelu": lambda x, slope: torch.where(x < 0, x * slope, x),
    "elu": lambda x, *, alpha: F.elu(x, alpha),
    "hard_sigmoid": lambda x, *, alpha, beta: (x * alpha + beta).clamp(0, 1),
    "clip": lambda x, *, minimum=-math.inf, maximum=math.inf: torch.clamp(
        x, minimum if minimum != -math.inf else None, maximum if maximum != math.inf else None
    ),
    "cast": torch_cast,
    "bitcast": torch_bitcast,
    "where": torch.where,
    "shift_left": lambda a, b: torch.where((b >= 0) & (b < 64), a << b.clamp(0, 63), 0),
    "shift_right": lambda a, b: a >> torch.where((b >= 0) & (b < 64), b, 63),
    "reduce_sum": torch_reduce(lambda x, axis, keep: x.sum(axis, keep), 0),
    "reduce_prod": torch_reduce(lambda x, axis, keep: x.prod(axis, keep), 1),
    "reduce_max": torch_reduce(lambda x, axis, keep: x.amax(axis, keep), -math.inf),
    "reduce_min": torch_reduce(lambda x, axis, keep: x.amin(axis, keep), math.inf),
    "reduce_mean": torch_reduce_mean,
    "argmax": lambda x, *, axis, keepdims: x.argmax(axis, keepdims),
    "argmin": lambda x, *, axis, keepdims: x.argmin(axis, keepdims),
    "cumsum": lambda x, *, axis: x.cumsum(axis),
    "cumprod": lambda x, *, axis: x.cumprod(axis),
    "det": torch.det,
    "arange": torch_arange,
    "scatter_elements": torch_scatter,
    "max_pool_indices": torch_max_pool_indices,
    "matmul": torch_matmul,
    "expert_matmul": lambda x, c, w: torch.einsum("rsok,rsk->rso", w[c], x.expand(*c.shape, x.shape[2])),
    "layer_norm": lambda x, weight=None, bias=None, *, eps: F.layer_norm(x, x.shape[-1:], weight, bias, eps),
    "rms_norm": lambda x, weight=None, *, eps: F.rms_norm(x, x.shape[-1:], weight, eps),
    "softmax": lambda x, *, axis: F.softmax(x, axis),
    "log_softmax": lambda x, *, axis: F.log_softmax(x, axis),
    "batch_norm_training": torch_batch_norm,
    "batch_norm": lambda x, s, b, m, v, *, eps: F.batch_norm(x, m, v, s, b, eps=eps),
    "group_norm": lambda x, w=None, b=None, *, groups, eps: F.group_norm(x, groups, w, b, eps),
    "attention": torch_attention,
    "rotary": torch_rotary,
    "reshape": lambda x, *, shape: x.reshape(shape),
    "permute": lambda x, *, axes: x.permute(axes),
    "slice": torch_slice,
    "concat": lambda *xs, axis: torch.cat(xs, axis),
    "expand": lambda x, *, shape: x.expand(shape),
    "pad": lambda x, *, low, high, value: F.pad(x, spread([*low, *high], x.dim()), value=value),
    "trilu": lambda x, *, k, upper: x.triu(k) if upper else x.tril(k),
    "gather": torch_gather,
    "checked_index": lambda x, *, limit, wraps=False, what: torch.where(x < 0, x + limit, x) if wraps else x,
    "gather_elements": lambda x, i, *, axis: x.gather(axis, torch.remainder(i, x.shape[axis])),
    "compress": lambda x, condition, *, axis: x.index_select(axis, condition.nonzero()[:, 0]),
    "nonzero": lambda x: torch.atleast_1d(x).nonzero().T,
    "measure": lambda sizes: torch.zeros(sizes.tolist(), dtype=torch.bool),
    "reduce_over": torch_reduce_over,
    "topk": lambda x, *, k, axis, largest: x.sort(dim=axis, descending=largest, stable=True),
    "iota": lambda *, length, start, step, dtype: torch.arange(length, dtype=torch.float64) * step + start,
    "conv": torch_conv,
    "max_pool": torch_max_pool,
    "avg_pool": torch_avg_pool,
}
SAME_NAME = """relu abs exp expm1 log log1p sqrt rsqrt reciprocal sin cos sinh cosh asin acos atan asinh acosh atanh
    tanh erf sigmoid floor ceil round sign bitwise_not bitwise_and bitwise_or bitwise_xor
    isnan isinf logical_not logical_and logical_or logical_xor add sub mul pow maximum minimum
    less less_equal greater greater_equal gcd"""
ORACLE |= {name: getattr(torch, name) for name in SAME_NAME.split()}
ORACLE |= (
    image_cases.ORACLE
    | kv_cache_cases.ORACLE
    | recurrent_cases.ORACLE
    | sequence_state_cases.ORACLE
    | special_oracles.ORACLE
)

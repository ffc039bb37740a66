"""Torch functions that between them call every ATen overload that has a rule: name -> (function, inputs).

A function returns a dict of results; calls through `A` reach overloads that torch's own Python front avoids.
"""

import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

A = torch.ops.aten
Case = tuple[Callable[..., dict[str, torch.Tensor]], tuple[torch.Tensor, ...]]

CASES: dict[str, Case] = {}


def case(*inputs: torch.Tensor) -> Callable:
    def declare(function: Callable) -> Callable:
        CASES[function.__name__] = (function, inputs)
        return function

    return declare


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def export(module: nn.Module, inputs: tuple, **options) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(module, inputs, strict=False, **options)


@functools.cache
def exported(name: str, decomposed: bool) -> torch.export.ExportedProgram:
    """A case in training IR, or in core ATen."""
    if decomposed:
        return exported(name, False).run_decompositions()
    function, inputs = CASES[name]
    return export(Function(function), inputs)


@functools.cache
def unsupported_op(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """`unsupported.<name>`: an op that keeps its input's shape and has no rule."""

    @torch.library.custom_op(f"unsupported::{name}", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    return double


_generator = torch.Generator().manual_seed(7)


def floats(*shape: int, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    return torch.rand(shape, generator=_generator) * (high - low) + low


def ints(*shape: int, low: int = -5, high: int = 6) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=_generator)


def bools(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_generator) < 0.5


@case(floats(2, 5, 7), floats(2, 5, 7, low=0.1, high=3.0))
def unary(x, positive):
    names = ["relu", "neg", "abs", "sign", "silu", "isnan", "isinf", "floor", "ceil", "round"]
    names += ["exp", "expm1", "sin", "cos", "tanh", "erf", "sigmoid", "sinh", "cosh", "atan", "asinh"]
    results = {name: getattr(A, name).default(x * 3) for name in names}
    results |= {name: getattr(A, name).default(x / 2) for name in ("asin", "acos", "atanh")}
    names = ["log", "log1p", "sqrt", "rsqrt", "reciprocal", "log2", "log10", "acosh"]
    return results | {name: getattr(A, name).default(positive) for name in names}


@case(floats(3, 9, low=-6.0, high=6.0))
def activations(x):
    return {
        "gelu": F.gelu(x),
        "gelu_tanh": F.gelu(x, approximate="tanh"),
        "leaky": F.leaky_relu(x, 0.2),
        "elu": F.elu(x, 0.7),
        "selu": F.selu(x),
        "hardswish": F.hardswish(x),
        "hardsigmoid": F.hardsigmoid(x),
        "hardtanh": F.hardtanh(x, -0.5, 2.0),
        "relu6": F.relu6(x),
        "softplus": F.softplus(x),
        "softplus_beta": F.softplus(x, beta=3.0),
        "logsigmoid": F.logsigmoid(x),
        "mish": F.mish(x),
        "celu": F.celu(x),
        "softsign": F.softsign(x),
        "glu": F.glu(F.pad(x, (0, 1))),
        "threshold": F.threshold(x, 0.1, 20.0),
        "square": torch.square(x),
        "trunc": torch.trunc(x),
        "exp2": torch.exp2(x),
        "square_op": A.square.default(x),
        "tanhshrink": F.tanhshrink(x),
        "hardshrink": F.hardshrink(x),
        "softshrink": F.softshrink(x),
    }


@case(floats(2, 3, 4, 5), floats(3), floats(1))
def slopes(x, each, one):
    return {
        "each": F.prelu(x, each),
        "one": F.prelu(x, one),
        "rows": F.prelu(x[:, :, 0, 0], each),
        "flat": F.prelu(one, one),
    }


@case(floats(3, 4), floats(4, low=0.5, high=2.0))
def binary(x, y):
    return {
        "add": x + y,
        "alpha": torch.add(x, y, alpha=3),
        "sub": torch.sub(x, y, alpha=2),
        "mul": x * y,
        "div": x / y,
        "rsub": torch.rsub(x, y, alpha=2),
        "rsub_scalar": A.rsub.Scalar(x, 2, 3),
        "scalars": (x + 1) * 2 - 3,
        "floor": torch.div(x, y, rounding_mode="floor"),
        "trunc": torch.div(x, y, rounding_mode="trunc"),
        "mode_none": A.div.Scalar_mode(x, 3, rounding_mode=None),
        "mode": A.div.Scalar_mode(x, 3, rounding_mode="floor"),
        "floor_divide": torch.floor_divide(x, y),
        "fmod": torch.fmod(x, y),
        "fmod_scalar": torch.fmod(x, 0.7),
        "remainder": torch.remainder(x, -y),
        "remainder_scalar": x % 0.7,
        "remainder_of": A.remainder.Scalar_Tensor(3, y),
        "pow": y**x,
        "pow_scalar": y**3,
        "scalar_pow": 2.0**x,
        "max": torch.maximum(x, y),
        "min": torch.minimum(x, y),
        "max_other": torch.max(x, y),
        "min_other": torch.min(x, y),
        "true_divide": A.true_divide.Tensor(x, y),
        "add_scalar": A.add.Scalar(x, 2, 3),
        "sub_scalar": A.sub.Scalar(x, 2),
        "mul_scalar": A.mul.Scalar(x, 2),
        "div_scalar": A.div.Scalar(x, 2),
        "floor_scalar": A.floor_divide.Scalar(x, 2),
        "lerp": torch.lerp(x, x * 2, 0.3),
        "addcmul": torch.addcmul(x, x, y, value=0.5),
    }


@case(floats(5, 7, low=-20.0, high=20.0), floats(7), ints(5, 7))
def angles_and_sides(x, y, i):
    huge = torch.tensor([0.0, 1e-30, 1e30, 3e38, float("inf"), float("nan")])
    return {
        "tan": torch.tan(x),
        "tan_int": torch.tan(i),
        "hypot": torch.hypot(x, y),
        "hypot_huge": torch.hypot(huge[:5, None], huge[:5]) / 1e30,
        "hypot_nan": torch.hypot(huge, huge[1]),
    }


@case(floats(3, 4), ints(3, 4), bools(3, 4), torch.tensor(3), torch.tensor(2.5), ints(3, 4).int())
def promotion(x, i, b, scalar_int, scalar_float, small):
    """What torch computes in when dtypes differ."""
    return {
        "int_float": i + 0.5,
        "int_int": i + 2,
        "float_int": x + i,
        "bool_float": b * 1.5,
        "bool_int": b + 2,
        "bools": b + b,
        "and": b * b,
        "int_div": i / 3,
        "int_floor": i // 3,
        "int_trunc": torch.div(i, 4, rounding_mode="trunc"),
        "int_mod": i % 3,
        "rank0_int": x * scalar_int,
        "rank0_float": i * scalar_float,
        "small": small + i,
        "small_rank0": small + scalar_int,
        "exp_int": torch.exp(i),
        "sqrt_bool": torch.sqrt(b),
        "floor_int": torch.floor(i),
        "where": torch.where(b, i, 1.5),
        "where_mixed": torch.where(b, x, i),
        "eq": i == 2.0,
        "lt": x < i,
        "sum_bool": b.sum(),
        "sum_small": small.sum(0),
        "mean": b.float().mean(),
        "clamp": torch.clamp(i, 0.5, 2),
        "int_pow": i**2,
        "rsub": 1 - i,
        "cat": torch.cat([x, i], 1),
        "stack": torch.stack([i, x]),
        "round_int": torch.round(i),
        "trunc_int": A.trunc.default(i),
        "to_half": x.half().float(),
        "bfloat": x.bfloat16().float(),
        "abs": i.abs(),
        "neg_small": -small,
        "cumsum_bool": b.cumsum(0),
        "prod_bool": b.prod(),
        "softmax": F.softmax(x.double(), 0),
    }


@case(floats(3, 4), floats(3, 4).round(), bools(3, 4), bools(3, 4), ints(3, 4))
def logic(x, y, a, b, i):
    names = ["eq", "ne", "lt", "le", "gt", "ge"]
    results = {name: getattr(torch, name)(x.round(), y) for name in names}
    results |= {f"{name}_scalar": getattr(torch, name)(x.round(), 1) for name in names}
    for name in ("and", "or", "xor"):
        results[name] = getattr(torch, f"logical_{name}")(y, b)
        results[f"bitwise_{name}"] = getattr(torch, f"bitwise_{name}")(a, b)
        results[f"bitwise_{name}_scalar"] = getattr(A, f"bitwise_{name}").Scalar(a, True)
        results[f"operator_{name}"] = getattr(A, f"__{name}__").Tensor(a, b)
        results[f"operator_{name}_scalar"] = getattr(A, f"__{name}__").Scalar(a, True)
        results[f"bits_{name}"] = getattr(torch, f"bitwise_{name}")(i, 6)
    for name in ("left", "right"):
        results[f"shift_{name}"] = getattr(torch, f"bitwise_{name}_shift")(i, i.abs())
        operator = getattr(A, f"__{name[0]}shift__")
        results |= {f"operator_{name}": operator.Tensor(i, i.abs()), f"operator_{name}_scalar": operator.Scalar(i, 2)}
    special = torch.where(a, x / 0.0, torch.where(b, float("nan"), x))
    return results | {
        "not": torch.logical_not(y),
        "invert": ~a,
        "invert_int": ~i,
        "isfinite": torch.isfinite(special),
        "isnan": torch.isnan(special),
        "isinf": torch.isinf(special),
        "nan_to_num": torch.nan_to_num(special),
        "relu_nan": torch.relu(special),
        "clamp_nan": special.clamp(-1, 1),
        "max_nan": torch.maximum(special, y),
    }


@case(floats(3, 4), bools(3, 4), floats(4), ints(3, 4))
def choosing(x, mask, y, i):
    return {
        "where": torch.where(mask, x, y),
        "other": torch.where(mask, x, 0.5),
        "self": torch.where(mask, 0.5, x),
        "scalars": torch.where(mask, 1.0, 2.0),
        "masked_fill": x.masked_fill(mask, float("-inf")),
        "masked_tensor": x.masked_fill(mask, torch.tensor(2.0)),
        "clamp": x.clamp(-0.5, 0.5),
        "low": x.clamp(min=0.1),
        "tensors": torch.clamp(x, y - 1, y),
        "tensor_low": torch.clamp(x, min=y),
        "clamp_int": i.clamp(-1, 2),
        "clamp_small": i.int().clamp(-1, 2),
        "clamp_min": A.clamp_min.default(x, 0.2),
        "clamp_max": A.clamp_max.default(x, 0.2),
        "clamp_min_t": A.clamp_min.Tensor(x, y),
        "clamp_max_t": A.clamp_max.Tensor(x, y),
        "scalar_mask": A.where.Scalar(mask, 1, 0),
        "hardtanh_int": F.hardtanh(i, -1, 2),
    }


@case(torch.tensor([0, 5, -5, 2**53 + 1, 2**62 + 1, -(2**62) - 1, 2**63 - 1, -(2**63)]))
def large_integers(i):
    return {
        "no_limit": i.clamp(0, torch.iinfo(torch.int64).max),
        "no_floor": i.clamp(min=-(2**63)),
        "high": i.clamp(max=2**53 + 1),
        "low": i.clamp(min=-(2**53) - 1, max=2**62 + 1),
        "pad": A.constant_pad_nd.default(i, [1, 1], 2**53 + 1),
        "pad_largest": A.constant_pad_nd.default(i, [0, 2], 2**63 - 1),
        "pad_fraction": A.constant_pad_nd.default(i, [1, 0], -1.5),
        "pad_bools": A.constant_pad_nd.default(i > 5, [1, 0], 1.5),
    }


@case(floats(3, 4, 5), ints(3, 4, 5), bools(3, 4))
def reductions(x, i, b):
    return {
        "sum": x.sum(),
        "sum_dim": x.sum(1),
        "sum_dims": x.sum((0, -1), keepdim=True),
        "sum_int": i.sum(-1),
        "sum_to": i.sum(0, dtype=torch.float32),
        "mean": x.mean(),
        "mean_dim": x.mean((0, 2)),
        "mean_keep": x.mean(-1, True),
        "prod": x.prod(),
        "prod_dim": x.prod(1),
        "amax": x.amax((0, 1)),
        "amin": x.amin(-1, keepdim=True),
        "max": x.max(),
        "min": i.min(),
        "max_dim": x.max(1)[0],
        "max_at": x.max(1)[1],
        "min_dim": x.min(-1, keepdim=True)[0],
        "min_at": x.min(-1)[1],
        "argmax": x.argmax(),
        "argmax_dim": x.argmax(1),
        "argmin": x.argmin(-1, keepdim=True),
        "argmax_keep": x.argmax(keepdim=True),
        "any": b.any(),
        "any_dim": b.any(1),
        "any_dims": torch.any(x > 1.9, (0, 2)),
        "max_bool": b.max(1)[0],
        "max_bool_at": b.max(1)[1],
        "min_bool_at": b.min(0, keepdim=True)[1],
        "all": b.all(),
        "all_dim": b.all(0, keepdim=True),
        "all_dims": torch.all(x > -1.9, (0, 2)),
        "rank0": x.sum().sum(0),
        "any_float": torch.any(x.round(), -1),
        "rank0_max": x.sum().max(0)[0],
        "count": torch.count_nonzero(i, 1),
    }


@case(floats(3, 4, 5))
def moments(x):
    return {
        "var": x.var(),
        "var_dim": x.var(1),
        "biased": x.var((0, 2), correction=0),
        "std": x.std(),
        "std_dim": x.std(-1, True),
        "std_correction": torch.std(x, -1, correction=2),
        "var_mean": torch.var_mean(x, -1)[0],
        "mean": torch.var_mean(x, 0)[1],
        "var_mean_keep": torch.var_mean(x, (0, 1), correction=0, keepdim=True)[1],
        "std_mean": torch.std_mean(x, 1, correction=1)[0],
        "var_default": A.var.default(x, False),
        "std_default": A.std.default(x),
        "var_dim_op": A.var.dim(x, [1], False),
        "std_dim_op": A.std.dim(x, [1]),
        "var_mean_dim": A.var_mean.dim(x, [1])[0],
        "norm": torch.linalg.vector_norm(x, dim=-1),
        "norm1": torch.linalg.vector_norm(x, 1),
        "norm3": torch.linalg.vector_norm(x, 3, 0),
        "norm_inf": torch.linalg.vector_norm(x, float("inf"), -1),
        "norm_min": torch.linalg.vector_norm(x, float("-inf"), -1),
        "p_norm": A.norm.ScalarOpt_dim(x, 2, [1], True),
        "all_norm": A.norm.Scalar(x, 2),
        "normalize": F.normalize(x, dim=1),
        "logsumexp": torch.logsumexp(x, (0, 1)),
        "logsumexp_keep": torch.logsumexp(x, -1, keepdim=True),
        "logsumexp_empty": torch.logsumexp(torch.full_like(x, float("-inf")), -1),
        "cosine": F.cosine_similarity(x, x + 1, dim=-1),
    }


@case(floats(3, 8), ints(3, 8))
def order(x, i):
    return {
        "cumsum": x.cumsum(1),
        "cumsum_int": i.cumsum(0),
        "topk": x.topk(3)[0],
        "topk_at": x.topk(3, dim=0, largest=False)[1],
        "sort": x.sort()[0],
        "sort_at": x.sort(0, descending=True)[1],
        "argsort": x.argsort(),
        "stable": torch.sort(x, stable=True, dim=1)[1],
    }


@case(
    torch.tensor([[3.0, -1.0, 3.0, float("nan"), 5.0, 2.0, 7.0], [-5.0, -5.0, -6.0, 2.0, 2.0, 9.0, 1.0]]),
    ints(4, 9),
    floats(1, 5, 13, low=-90.0, high=90.0),
)
def running(x, i, wide):
    gone = wide.masked_fill(wide < 0, float("-inf"))
    return {
        **{f"{name}_{axis}_{part}": getattr(x, name)(axis)[part] for name in ("cummax", "cummin") for axis in (0, -1)
           for part in (0, 1)},
        **{f"{name}_int_{part}": getattr(i, name)(1)[part] for name in ("cummax", "cummin") for part in (0, 1)},
        "cummax_rank0": x[0, 0].cummax(0)[0],
        "cummin_rank0_at": x[0, 0].cummin(0)[1],
        "cumprod": (wide / 30).cumprod(2),
        "cumprod_int": i.cumprod(0),
        "cumprod_to": i.cumprod(0, dtype=torch.float32),
        "cumprod_rank0": x[0, 0].cumprod(0),
        "logcumsumexp": wide.logcumsumexp(1),
        "logcumsumexp_of_zeros": gone.logcumsumexp(-1),
        "logcumsumexp_infinite": (-gone).logcumsumexp(-1),
        "logcumsumexp_one": wide.logcumsumexp(0),
        "logcumsumexp_rank0": x[0, 0].logcumsumexp(0),
    }  # fmt: skip


@case(floats(3, 8, 5), torch.randperm(40, generator=_generator).view(8, 5), torch.tensor([[2.0, float("nan"), 1.0]]))
def middle(x, i, nan):
    return {
        "median": x.median(1)[0],
        "median_at": x.median(-1)[1],
        "median_keep": x.median(0, keepdim=True)[0],
        "median_keep_at": x.median(0, keepdim=True)[1],
        "median_int": i.median(0)[0],
        "median_all": x.median(),
        "median_nan": nan.median(1)[0],
        "median_nan_at": nan.median(1)[1],
        "median_rank0": nan[0, 0].median(0)[0],
        "kth": x.kthvalue(3, 1)[0],
        "kth_at": x.kthvalue(5)[1],
        "kth_keep": i.kthvalue(8, 0, keepdim=True)[0],
        "kth_rank0_at": nan[0, 0].kthvalue(1)[1],
    }


@case(
    floats(3, 4),
    floats(4, 5),
    floats(5),
    floats(4),
    floats(2, 3, 4),
    floats(2, 4, 5),
    floats(6, 4),
    floats(3),
    floats(6),
    floats(2, 3, 5),
)
def products(a, b, five, four, batch, other, weight, three, six, added):
    return {
        "mm": torch.mm(a, b),
        "matmul": a @ b,
        "batch_matrix": batch @ b,
        "batched": batch @ other,
        "vector": a @ four,
        "vector_left": four @ b,
        "dot": four @ four,
        "batch_vector": batch @ four,
        "vector_batch": four @ other,
        "bmm": torch.bmm(batch, other),
        "mv": torch.mv(a, four),
        "linear": F.linear(batch, weight),
        "dot_op": A.dot.default(four, four),
        "linear_bias": F.linear(a, weight, six),
        "linear_vector": F.linear(four, weight),
        "addmm": torch.addmm(five, a, b),
        "addmm_scaled": torch.addmm(five, a, b, beta=0.5, alpha=2.0),
        "addmm_only": torch.addmm(five, a, b, beta=0),
        "baddbmm": torch.baddbmm(added, batch, other),
        "einsum": torch.einsum("bij,jk->bki", batch, b),
        "outer": torch.outer(five, four),
        "addmv": torch.addmv(three, a, four),
        "kron": torch.kron(a, b),
        "einsum_heads": torch.einsum("bij,bjk->bik", batch, other),
        "tensordot": torch.tensordot(batch, b, dims=([2], [0])),
    }


@case(floats(2, 3, 4), floats(2, 3, 5), floats(6, 4, 5), floats(6), floats(2, 5, 4), floats(30, 4), floats(3, 4, 4))
def pairs(x, y, weight, bias, others, many, square):
    return {
        "bilinear": F.bilinear(x, y, weight, bias),
        "bilinear_plain": F.bilinear(x[0], y[0], weight),
        "bilinear_vectors": F.bilinear(x[0, 0], y[0, 0], weight),
        "cdist": torch.cdist(x, others),
        "cdist_self": torch.cdist(x, x),
        "cdist_1": torch.cdist(x, others, p=1.0),
        "cdist_3": torch.cdist(x, others, p=3.0),
        "cdist_inf": torch.cdist(x[0], others, p=float("inf")),
        "cdist_many": torch.cdist(many, x),
        "cdist_product": torch.cdist(x, others, compute_mode="use_mm_for_euclid_dist"),
        "cdist_exact": torch.cdist(many, x, compute_mode="donot_use_mm_for_euclid_dist"),
        "euclidean": A._euclidean_dist.default(x, others),
        "det": torch.linalg.det(square),
        "det_old": torch.det(square[0]),
    }


@case(floats(2, 6, 4, 5), floats(5), floats(5), floats(6), floats(6, low=0.5, high=2.0), floats(4, 5))
def norms(x, w, b, channel, positive, both):
    batch_norm = F.batch_norm(x, channel, positive, channel, positive, training=False)
    return {
        "layer": F.layer_norm(x, (5,), w, b),
        "layer_plain": F.layer_norm(x, (5,)),
        "layer_two": F.layer_norm(x, (4, 5), both, both),
        "rms": F.rms_norm(x, (5,), w),
        "rms_two": F.rms_norm(x, (4, 5), eps=1e-5),
        "batch": batch_norm,
        "batch_plain": F.batch_norm(x, channel, positive),
        "group": F.group_norm(x, 3, channel, positive),
        "group_plain": F.group_norm(x, 2),
        "instance": F.instance_norm(x, weight=channel, bias=positive),
        "instance_stats": F.instance_norm(x, channel, positive, use_input_stats=False),
        "native_layer": A.native_layer_norm.default(x, [5], w, b, 1e-5)[0],
        "fused_rms": A._fused_rms_norm.default(x, [5], w, 1e-5)[0],
        "native_group": A.native_group_norm.default(x, channel, None, 2, 6, 20, 2, 1e-5)[0],
        "native_batch": A._native_batch_norm_legit_no_training.default(x, channel, None, channel, positive, 0.1, 1e-5)[
            0
        ],
        "local_response": F.local_response_norm(x, 3),
    }


@case(floats(3, 4, 6))
def softmaxes(x):
    hidden = x.masked_fill(x > -5, float("-inf"))
    return {
        "softmax": F.softmax(x, -1),
        "softmax_first": F.softmax(x, 0),
        "log_softmax": F.log_softmax(x, 1),
        "to_double": F.softmax(x, -1, dtype=torch.float64),
        "rank0": F.softmax(x.sum(), 0),
        "softmin": F.softmin(x, 1),
        "core": A._softmax.default(x, 1, False),
        "log_core": A._log_softmax.default(x, 1, False),
        "safe": A._safe_softmax.default(hidden, -1),
        "safe_some": A._safe_softmax.default(x, 1),
    }


@case(floats(2, 4, 5, 8), floats(2, 4, 7, 8), floats(2, 4, 7, 6), floats(2, 2, 7, 8), bools(5, 7), floats(2, 1, 5, 7))
def attentions(q, k, v, shared, keep, bias):
    sdpa = F.scaled_dot_product_attention
    batched_mask = keep | (bias[:, 0] > 0)
    return {
        "plain": sdpa(q, k, v),
        "scaled": sdpa(q, k, v, scale=0.3),
        "causal": sdpa(q, q, q, is_causal=True),
        "causal_wide": sdpa(q, k, v, is_causal=True),
        "bool": sdpa(q, k, v, attn_mask=keep),
        "float": sdpa(q, k, v, attn_mask=bias),
        "gqa": sdpa(q, shared, shared, enable_gqa=True),
        "rank3": sdpa(q[:, 0], k[:, 0], v[:, 0], attn_mask=batched_mask),
        "rank2": sdpa(q[0, 0], k[0, 0], v[0, 0]),
        "rank5": sdpa(q[None], k[None], v[None], attn_mask=bias),
        "one_batch": sdpa(q, k[:1], v[:1]),
        "rank3_mask2": sdpa(q[0], k[0], v[0], attn_mask=keep),
        "flash": A._scaled_dot_product_flash_attention_for_cpu.default(q, k, k, attn_mask=bias)[0],
        "hidden_row": sdpa(q, k, v, attn_mask=keep & (torch.arange(5) > 0)[:, None]),
    }

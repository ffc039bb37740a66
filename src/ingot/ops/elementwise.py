"""Element-wise ops: one line each where the family allows it. NaN propagates unless a docstring states otherwise."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import DType, boolean, f16, f32, f64, u8, u64
from ingot.ir.graph import Sample, TensorType
from ingot.ops.define import broadcast, broadcast_shapes, expect_kind, expect_numbers, op, same_as, sample

elementwise = functools.partial(op, acts_on="element")

UNARY = tuple(sample(s) for s in ("x[2,5,7]", "x[]", "x[1]", "x[0,3]", "x[67]", "x[2,1,3,2,5]"))
BINARY = tuple(
    sample(s)
    for s in (
        "a[2,5,7] b[2,5,7]",
        "a[2,5,7] b[7]",
        "a[2,5,7] b[5,1]",
        "a[] b[33]",
        "a[5,1] b[1,7]",
        "a[3] b[2,1,1,4,3]",
        "a[0,3] b[1,3]",
        "a[1] b[1]",
    )
)
INTEGER = (sample("a:i64>-9<10[3,5] b:i64>1<5[5]"), sample("a:i64>-9<10[7] b:i64>-4<0[7]"))


def unary(
    name: str,
    function: Callable[[Any], Any],
    doc: str = "",
    *,
    kinds: str = "f",
    result: DType | None = None,
    samples: Sequence[Sample] = UNARY,
    **declaration: Any,
) -> Callable[..., Any]:
    """Declare a one-operand op with the dtype of its operand, or with dtype `result`."""
    same = same_as(0, kinds, name)

    def infer(x: TensorType) -> TensorType:
        return same(x) if result is None else TensorType(result, same(x).shape)

    def reference(x):
        return function(x)

    reference.__doc__ = doc or f"{name}(x), element by element."
    inplace = (0,) if result is None else ()
    return elementwise(name=name, infer=infer, inplace=inplace, samples=samples, **declaration)(reference)


def binary(
    name: str,
    function: Callable[[Any, Any], Any],
    doc: str = "",
    *,
    kinds: str = "fiu",
    result: DType | None = None,
    samples: Sequence[Sample] = BINARY,
    **declaration: Any,
) -> Callable[..., Any]:
    """Declare a two-operand op with numpy broadcasting; both operands have one dtype."""

    def reference(a, b):
        return function(a, b)

    reference.__doc__ = doc or f"{name}(a, b), element by element, broadcast as in numpy."
    infer = broadcast(name, result, kinds=kinds)
    return elementwise(name=name, infer=infer, inplace=() if result else (0, 1), samples=samples, **declaration)(
        reference
    )


def _erf(x):
    """Compute the error function, correct to float64 rounding."""
    x = np.asarray(x)
    values = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
    return values.reshape(x.shape).astype(x.dtype)


def _erfc(x):
    """Compute 1 - erf(x) of a float64, with all its digits where it is small."""
    return np.fromiter(map(math.erfc, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_ints = (sample("x:i64>-9<10[3,5]"),)
unary("relu", lambda x: np.maximum(x, 0), "max(x, 0).", kinds="fi", samples=(*UNARY, *_ints))
unary("neg", np.negative, "-x; the smallest integer stays itself.", kinds="fi", samples=(*UNARY, *_ints))
unary("abs", np.abs, "|x|; the smallest integer stays itself.", kinds="fi", samples=(*UNARY, *_ints))
unary("sign", np.sign, "-1, 0 or 1; NaN stays NaN.", kinds="fi", samples=(*UNARY, *_ints))
unary("exp", np.exp, domain=(-30.0, 30.0))
unary("expm1", np.expm1, "exp(x) - 1, accurate near 0.", domain=(-10.0, 10.0))
unary("log", np.log, "The natural logarithm; -inf at 0, NaN below.", domain=(0.01, 100.0))
unary("log1p", np.log1p, "log(1 + x), accurate near 0.", domain=(-0.9, 10.0))
unary("sqrt", np.sqrt, "The square root; NaN below 0.", domain=(0.0, 100.0))
unary("rsqrt", lambda x: 1 / np.sqrt(x), "1 / sqrt(x); inf at 0.", domain=(0.01, 100.0))
unary("reciprocal", lambda x: 1 / x, "1 / x.")
unary("sin", np.sin, domain=(-30.0, 30.0))
unary("cos", np.cos, domain=(-30.0, 30.0))
unary("sinh", np.sinh, domain=(-5.0, 5.0))
unary("cosh", np.cosh, domain=(-5.0, 5.0))
unary("asin", np.arcsin, "The arcsine; NaN outside of -1..1.", domain=(-1.0, 1.0))
unary("acos", np.arccos, "The arccosine; NaN outside of -1..1.", domain=(-1.0, 1.0))
unary("atan", np.arctan, "The arctangent.", domain=(-30.0, 30.0))
unary("asinh", np.arcsinh, "The inverse of sinh.", domain=(-100.0, 100.0))
unary("acosh", np.arccosh, "The inverse of cosh; NaN below 1.", domain=(1.0, 100.0))
unary("atanh", np.arctanh, "The inverse of tanh; NaN outside of -1..1.", domain=(-0.99, 0.99))
unary("tanh", np.tanh, domain=(-10.0, 10.0))
unary("erf", _erf, "The error function.", domain=(-5.0, 5.0))
unary("sigmoid", _sigmoid, "1 / (1 + exp(-x)).", domain=(-30.0, 30.0))
unary("floor", np.floor, domain=(-50.0, 50.0))
unary("ceil", np.ceil, domain=(-50.0, 50.0))
unary("round", np.rint, "To the nearest integer, halves to even.", domain=(-50.0, 50.0))
unary(
    "silu",
    lambda x: x / (1 + np.exp(-x)),
    "x * sigmoid(x); NaN at -inf.",
    domain=(-30.0, 30.0),
    expand=lambda g, x: g.mul(x, g.sigmoid(x)),
)
unary(
    "mish",
    lambda x: x * np.tanh(_softplus(x)),
    'x * tanh(softplus(x)); NaN at -inf. Misra, "Mish: a self regularized non-monotonic activation", 2019.',
    domain=(-30.0, 30.0),
    expand=lambda g, x: g.mul(x, g.tanh(g.softplus(x))),
)
unary(
    "softplus",
    _softplus,
    "log(1 + exp(x)), without overflow.",
    domain=(-30.0, 30.0),
    expand=lambda g, x: g.add(g.relu(x), g.log1p(g.exp(g.neg(g.abs(x))))),
)
unary(
    "hard_swish",
    lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "x * clip(x + 3, 0, 6) / 6.",
    domain=(-5.0, 5.0),
    expand=lambda g, x: g.mul(g.mul(x, g.clip(g.add(x, 3.0), minimum=0.0, maximum=6.0)), 1 / 6),
)
unary("bitwise_not", np.invert, "The bitwise complement of x.", kinds="iu", samples=_ints)
unary("logical_not", np.logical_not, "not x.", kinds="b", samples=[sample("x:bool[2,5,7]"), sample("x:bool[]")])
unary("isnan", np.isnan, "True where x is NaN.", result=boolean)
unary("isinf", np.isinf, "True where x is infinite, of either sign.", result=boolean)


def _expand_gelu(g, x, *, approximate):
    if approximate == "erf":
        return g.mul(g.mul(x, 0.5), g.add(g.erf(g.mul(x, math.sqrt(0.5))), 1.0))
    cubic = g.add(x, g.mul(g.mul(g.mul(x, x), x), 0.044715))
    return g.mul(g.mul(x, 0.5), g.add(g.tanh(g.mul(cubic, math.sqrt(2 / math.pi))), 1.0))


def _with(samples: Sequence[Sample], **attributes: Any) -> list[Sample]:
    return [sample(s.operands, **attributes) for s in samples]


def _infer_gelu(x: TensorType, *, approximate: str) -> TensorType:
    assert approximate in ("erf", "tanh"), approximate
    return same_as(0, "f", "gelu")(x)


@elementwise(
    infer=_infer_gelu,
    inplace=(0,),
    domain=(-8.0, 8.0),
    expand=_expand_gelu,
    samples=[*_with(UNARY, approximate="erf"), *_with(UNARY[:3], approximate="tanh")],
)
def gelu(x, *, approximate: Literal["erf", "tanh"] = "erf"):
    """x * Phi(x): exact with "erf", or "tanh" for 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    NaN at -inf. Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    wide = np.asarray(x, np.float64)
    if approximate == "erf":
        return (wide * 0.5 * _erfc(wide * -math.sqrt(0.5))).astype(x.dtype)
    power = np.exp(-2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide))
    return (wide / (1 + power)).astype(x.dtype)


def _expand_leaky_relu(g, x, *, alpha):
    return g.where(g.less(x, 0.0), g.mul(x, float(alpha)), x)


@elementwise(
    infer=same_as(0, "f", "leaky_relu"), inplace=(0,), samples=_with(UNARY, alpha=0.1), expand=_expand_leaky_relu
)
def leaky_relu(x, *, alpha: float):
    """x where x >= 0, else alpha * x."""
    return np.where(x < 0, x * alpha, x)


def _expand_elu(g, x, *, alpha):
    return g.where(g.less_equal(x, 0.0), g.mul(g.expm1(x), float(alpha)), x)


@elementwise(infer=same_as(0, "f", "elu"), inplace=(0,), samples=_with(UNARY, alpha=1.5), expand=_expand_elu)
def elu(x, *, alpha: float):
    """x where x > 0, else alpha * (exp(x) - 1)."""
    return np.where(x <= 0, np.expm1(x) * alpha, x)


def _expand_hard_sigmoid(g, x, *, alpha, beta):
    return g.clip(g.add(g.mul(x, float(alpha)), float(beta)), minimum=0.0, maximum=1.0)


@elementwise(
    infer=same_as(0, "f", "hard_sigmoid"),
    inplace=(0,),
    domain=(-5.0, 5.0),
    samples=_with(UNARY, alpha=0.2, beta=0.5),
    expand=_expand_hard_sigmoid,
)
def hard_sigmoid(x, *, alpha: float, beta: float):
    """clip(alpha * x + beta, 0, 1)."""
    return np.clip(x * alpha + beta, 0, 1)


def _infer_clip(x, *, minimum, maximum):
    expect_kind("clip", x, "fi")
    binding = [bound for bound, free in ((minimum, -math.inf), (maximum, math.inf)) if bound != free]
    expect_numbers("clip", x.dtype, *binding)
    return x


def _expand_clip(g, x, *, minimum, maximum):
    dtype = g.type(x).dtype
    if minimum != -math.inf:
        x = g.maximum(x, g.constant(minimum, dtype))
    return x if maximum == math.inf else g.minimum(x, g.constant(maximum, dtype))


@elementwise(
    infer=_infer_clip,
    inplace=(0,),
    expand=_expand_clip,
    samples=[
        *_with(UNARY, minimum=-0.5, maximum=1.25),
        *_with(UNARY[:1], minimum=0.5),
        *_with(UNARY[:1], minimum=1.0, maximum=-1.0),
        *_with(_ints, minimum=-3, maximum=4),
        *_with(_ints, maximum=4),
        *_with(_ints, minimum=2**53 + 1, maximum=2**63 - 1),
    ],
)
def clip(x, *, minimum: float = -math.inf, maximum: float = math.inf):
    """x clamped to minimum and maximum; maximum wins when they cross; an infinite bound has no effect."""
    if x.dtype.kind == "f":
        return np.minimum(np.maximum(x, x.dtype.type(minimum)), x.dtype.type(maximum))
    if minimum != -math.inf:
        x = np.maximum(x, x.dtype.type(minimum))
    return x if maximum == math.inf else np.minimum(x, x.dtype.type(maximum))


def _infer_bitcast(x: TensorType, *, dtype: DType) -> TensorType:
    if x.dtype.bits != dtype.bits or dtype is boolean or "s" in (x.dtype.kind, dtype.kind):
        raise ShapeError(f"bitcast: wrong dtype, got {x} as {dtype}, expected one of as many bits, not bool")
    return TensorType(dtype, x.shape)


@elementwise(
    computes=False,
    infer=_infer_bitcast,
    samples=[
        sample("x:i64>-9<10[2,5,7]", dtype=u64),
        sample("x:i16>-9<10[67]", dtype=f16),
        sample("x:i64[0,3]", dtype=f64),
        sample("x:bool[5]", dtype=u8),
    ],
)
def bitcast(x, *, dtype: DType):
    """The bits of x read as another dtype of the same size. Not defined for an f32 that is widened to float64."""
    return np.ascontiguousarray(x).view(dtype.numpy).reshape(x.shape)


def _div(a, b):
    if a.dtype.kind == "f":
        return a / b
    quotient = a // b
    return quotient + ((a % b != 0) & ((a < 0) != (b < 0)))


def _pow(a, b):
    if a.dtype.kind == "f":
        return np.power(a, b)
    powers = np.power(a, np.maximum(b, 0))
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, powers)


def _shifted_out(a, b):
    """Return whether b is outside the valid shift counts of a's dtype."""
    return (b < 0) | (b >= 8 * a.dtype.itemsize)


def _shift_left(a, b):
    is_invalid = _shifted_out(a, b)
    return np.where(is_invalid, 0, np.left_shift(a, np.where(is_invalid, 0, b).astype(b.dtype))).astype(a.dtype)


def _shift_right(a, b):
    last = 8 * a.dtype.itemsize - 1
    counts = np.where(_shifted_out(a, b), last, b).astype(b.dtype)
    sign = np.where(a < 0, -1, 0).astype(a.dtype) if a.dtype.kind == "i" else np.zeros_like(a)
    return np.where(_shifted_out(a, b), sign, np.right_shift(a, counts)).astype(a.dtype)


_bits = (sample("a:i64>-9<10[3,5] b:i64>-9<10[5]"), sample("a:i64>-99<100[] b:i64>-99<100[33]"))
_shifts = (sample("a:i64>-99<100[3,67] b:i64>-9<99[67]"), sample("a:i64>-99<100[5] b:i64<8[]"))
_bools = (sample("a:bool[2,5] b:bool[5]"), sample("a:bool[] b:bool[3]"))
_compare = (*BINARY, sample("a:i64[3,5] b:i64[5]"), sample("a:bool[3,5] b:bool[5]"))
_divide = (*(sample(s.operands.replace("b[", "b>0.5[")) for s in BINARY), sample("a[7] b>-3<-1[7]"), *INTEGER)

binary("add", np.add, "a + b; integers wrap.", samples=(*BINARY, *INTEGER))
binary("sub", np.subtract, "a - b; integers wrap.", samples=(*BINARY, *INTEGER))
binary("mul", np.multiply, "a * b; integers wrap.", samples=(*BINARY, *INTEGER))
binary("div", _div, "a / b; integers truncate toward zero, and an integer divisor of 0 gives 0.", samples=_divide)
binary("floor_div", np.floor_divide, "floor(a / b); an integer divisor of 0 gives 0.", samples=_divide)
binary("mod", np.mod, "a - floor(a / b) * b, exact, sign of b; an integer divisor of 0 gives 0.", samples=_divide)
binary(
    "pow",
    _pow,
    "a to the power b; integers wrap, and a negative integer exponent truncates the result toward zero.",
    samples=(*(sample(s.operands.replace("a[", "a>0.1[")) for s in BINARY), sample("a:i64>-3<4[5,7] b:i64>-2<4[7]")),
)
binary("maximum", np.maximum, "The larger of a and b; NaN when either is.", samples=(*BINARY, *INTEGER))
binary(
    "prelu",
    lambda x, slope: np.where(x < 0, x * slope, x),
    'x where x >= 0, else slope * x. He et al., "Delving deep into rectifiers", 2015.',
    kinds="f",
    samples=BINARY,
    expand=lambda g, x, slope: g.where(g.less(x, 0.0), g.mul(x, slope), x),
)
binary("minimum", np.minimum, "The smaller of a and b; NaN when either is.", samples=(*BINARY, *INTEGER))


def _gelu_slope(x, approximate):
    wide = np.asarray(x, np.float64)
    if approximate == "erf":
        density = np.exp(wide * wide * -0.5) / math.sqrt(2 * math.pi)
        return 0.5 * _erfc(wide * -math.sqrt(0.5)) + wide * density
    square, factor = wide * wide, 2 * math.sqrt(2 / math.pi)
    share = _sigmoid(wide * factor * (1 + 0.044715 * square))
    return share * (1 + wide * (1 - share) * factor * (1 + 3 * 0.044715 * square))


def _expand_gelu_gradient(g, x, d, *, approximate):
    square = g.mul(x, x)
    if approximate == "erf":
        share = g.mul(g.add(g.erf(g.mul(x, math.sqrt(0.5))), 1.0), 0.5)
        density = g.mul(g.exp(g.mul(square, -0.5)), 1 / math.sqrt(2 * math.pi))
        return g.mul(d, g.add(share, g.mul(x, density)))
    factor = 2 * math.sqrt(2 / math.pi)
    share = g.sigmoid(g.mul(x, g.add(g.mul(square, 0.044715 * factor), factor)))
    inner = g.add(g.mul(square, 3 * 0.044715 * factor), factor)
    slope = g.mul(g.mul(g.mul(x, share), g.sub(1.0, share)), inner)
    return g.mul(d, g.add(share, slope))


def _infer_gelu_gradient(x: TensorType, d: TensorType, *, approximate: str) -> TensorType:
    return broadcast("gelu_gradient", kinds="f")(x, d)


def _expand_silu_gradient(g, x, d):
    share = g.sigmoid(x)
    return g.mul(d, g.mul(share, g.add(g.mul(x, g.sub(1.0, share)), 1.0)))


def _silu_gradient(x, d):
    share = _sigmoid(x)
    return d * (share * (x * (1 - share) + 1))


binary(
    "relu_gradient",
    lambda y, d: np.where(y <= 0, d.dtype.type(0), d),
    "d where y, a result of relu or its operand, is above 0, else 0.",
    kinds="f",
    expand=lambda g, y, d: g.where(g.less_equal(y, 0.0), 0.0, d),
)
binary(
    "silu_gradient",
    _silu_gradient,
    "d times the derivative of silu at x.",
    kinds="f",
    domain=(-8.0, 8.0),
    tolerance={f32: 5e-6},
    expand=_expand_silu_gradient,
)


@elementwise(
    infer=_infer_gelu_gradient,
    inplace=(0, 1),
    domain=(-8.0, 8.0),
    tolerance={f32: 5e-6},
    expand=_expand_gelu_gradient,
    samples=[*_with(BINARY, approximate="erf"), *_with(BINARY[:3], approximate="tanh")],
)
def gelu_gradient(x, d, *, approximate: Literal["erf", "tanh"] = "erf"):
    """d times the derivative of gelu at x."""
    return (d * _gelu_slope(x, approximate)).astype(x.dtype)


binary(
    "gcd",
    np.gcd,
    "The greatest common divisor of a and b, which is not negative; 0 for two zeros.",
    kinds="iu",
    samples=_bits,
)
binary("bitwise_and", np.bitwise_and, "The bitwise and of a and b.", kinds="iu", samples=_bits)
binary("bitwise_or", np.bitwise_or, "The bitwise or of a and b.", kinds="iu", samples=_bits)
binary("bitwise_xor", np.bitwise_xor, "The bitwise exclusive or of a and b.", kinds="iu", samples=_bits)
binary(
    "shift_left",
    _shift_left,
    "a shifted left by b bits; 0 where b is negative or at least the number of bits of the dtype.",
    kinds="iu",
    samples=_shifts,
)
binary(
    "shift_right",
    _shift_right,
    "a shifted right by b bits, filled with copies of the sign; an invalid b shifts all bits out.",
    kinds="iu",
    samples=_shifts,
)
binary("equal", np.equal, "a == b.", kinds="fiubs", result=boolean, samples=_compare)
binary("not_equal", np.not_equal, "a != b.", kinds="fiubs", result=boolean, samples=_compare)
binary("less", np.less, "a < b.", kinds="fiub", result=boolean, samples=_compare)
binary("less_equal", np.less_equal, "a <= b.", kinds="fiub", result=boolean, samples=_compare)
binary("greater", np.greater, "a > b.", kinds="fiub", result=boolean, samples=_compare)
binary("greater_equal", np.greater_equal, "a >= b.", kinds="fiub", result=boolean, samples=_compare)
binary("logical_and", np.logical_and, "a and b.", kinds="b", samples=_bools)
binary("logical_or", np.logical_or, "a or b.", kinds="b", samples=_bools)
binary("logical_xor", np.logical_xor, "a or b, not both.", kinds="b", samples=_bools)


def _infer_where(condition: TensorType, a: TensorType, b: TensorType) -> TensorType:
    expect_kind("where", condition, "b")
    chosen = broadcast("where", kinds="fiubns")(a, b)
    return TensorType(chosen.dtype, broadcast_shapes("where", condition.shape, chosen.shape))


@elementwise(
    computes=False,
    infer=_infer_where,
    inplace=(1, 2),
    samples=[
        sample("c:bool[2,5,7] a[2,5,7] b[2,5,7]"),
        sample("c:bool[5,7] a[2,5,7] b[]"),
        sample("c:bool[1,5,5] a[4,5,5] b[1]"),
        sample("c:bool[2,1] a[] b[3]"),
        sample("c:bool[0] a[1] b[1]"),
        sample("c:bool[5] a:i64[5] b:i64[1]"),
        sample("c:bool[5] a:bool[5] b:bool[5]"),
    ],
)
def where(condition, a, b):
    """a where the condition is true, else b; all three broadcast."""
    return np.where(condition, a, b)

"""Rules for element-wise ops."""

import math
from typing import Any

from ingot.errors import UnsupportedError
from ingot.ir.dim import Expr
from ingot.ir.dtype import DType, boolean, f32, i16, i32, i64
from ingot.load.aten.builder import AtenBuilder, Number, Tensor
from ingot.load.aten.registry import Rule, aten


def _same_dtype(op: str) -> Rule:
    return lambda b, x: b.add(op, x)


def floating(op: str, **attributes: Any) -> Rule:
    """Return the rule of an op with one operand that computes in floats."""
    return lambda b, x: b.add(op, *b.promote(x, floating=True), **attributes)


def _rounding(op: str) -> Rule:
    return lambda b, x: b.add(op, x) if b.dtype(x).kind == "f" else x


@aten("neg.default")
def neg(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.add("sub", b.scalar(0, b.dtype(x)), x) if b.dtype(x).kind == "u" else b.add("neg", x)


for _name in ("relu", "abs", "sign", "silu", "mish", "isnan", "isinf"):
    aten(f"{_name}.default")(_same_dtype(_name))
for _name in (
    *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "tanh", "erf", "sigmoid"),
    *("sin", "cos", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
):
    aten(f"{_name}.default")(floating(_name))
for _name in ("floor", "ceil", "round"):
    aten(f"{_name}.default")(_rounding(_name))


@aten("hardswish.default")
def hardswish(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.add("hard_swish", x)


@aten("hardsigmoid.default")
def hardsigmoid(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.add("hard_sigmoid", x, alpha=1 / 6, beta=0.5)


@aten("gelu.default")
def gelu(b: AtenBuilder, x: Tensor, approximate: str = "none") -> Tensor:
    return b.add("gelu", x, approximate="tanh" if approximate == "tanh" else "erf")


@aten("leaky_relu.default")
def leaky_relu(b: AtenBuilder, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return b.add("leaky_relu", x, alpha=float(negative_slope))


@aten("prelu.default")
def prelu(b: AtenBuilder, x: Tensor, weight: Tensor) -> Tensor:
    """Apply a slope per channel, or one for all."""
    behind = [1] * max(b.rank(x) - 2, 0)
    return b.add("prelu", x, weight if b.rank(x) < 2 else b.reshape(weight, (*b.shape(weight), *behind)))


@aten("elu.default")
def elu(b: AtenBuilder, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    if input_scale != 1:
        raise UnsupportedError(f"torch node {b.hint!r}: elu scales its input, got {input_scale}, expected 1")
    y = b.add("elu", x, alpha=float(alpha))
    return y if scale == 1 else b.add("mul", y, b.scalar(scale, b.dtype(y)))


@aten("softplus.default")
def softplus(b: AtenBuilder, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Above the threshold torch returns x, which equals the exact function up to the last bits."""
    if beta == 1:
        return b.add("softplus", x)
    factor = b.scalar(beta, b.dtype(x))
    return b.add("div", b.add("softplus", b.add("mul", x, factor)), factor)


@aten("log_sigmoid.default")
def log_sigmoid(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.add("neg", b.add("softplus", b.add("neg", x)))


@aten("square.default")
def square(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.add("mul", x, x)


@aten("trunc.default")
def trunc(b: AtenBuilder, x: Tensor) -> Tensor:
    if b.dtype(x).kind != "f":
        return x
    negative = b.add("less", x, b.scalar(0, b.dtype(x)))
    return b.add("where", negative, b.add("ceil", x), b.add("floor", x))


def _scaled_log(base: float) -> Rule:
    def rule(b: AtenBuilder, x: Tensor) -> Tensor:
        y = b.add("log", *b.promote(x, floating=True))
        return b.add("mul", y, b.scalar(1 / math.log(base), b.dtype(y)))

    return rule


@aten("round.decimals")
def round_decimals(b: AtenBuilder, x: Tensor, decimals: int = 0) -> Tensor:
    """Round to `decimals` digits after the point, or before it if negative; halves go to even digits."""
    if b.dtype(x).kind != "f":
        return x
    unit = b.scalar(10.0 ** abs(decimals), b.dtype(x))
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return b.add(back, b.add("round", b.add(there, x, unit)), unit) if decimals else b.add("round", x)


aten("log2.default")(_scaled_log(2))
aten("log10.default")(_scaled_log(10))


@aten("exp2.default")
def exp2(b: AtenBuilder, x: Tensor) -> Tensor:
    (x,) = b.promote(x, floating=True)
    return b.add("exp", b.add("mul", x, b.scalar(math.log(2), b.dtype(x))))


@aten("tan.default")
def tan(b: AtenBuilder, x: Tensor) -> Tensor:
    (x,) = b.promote(x, floating=True)
    return b.add("div", b.add("sin", x), b.add("cos", x))


# -- two operands


@aten("add.Tensor", "add.Scalar")
def add(b: AtenBuilder, x: Tensor, y: Tensor | Number, alpha: Number = 1) -> Tensor:
    return _sum(b, "add", x, y, alpha)


@aten("sub.Tensor", "sub.Scalar")
def sub(b: AtenBuilder, x: Tensor, y: Tensor | Number, alpha: Number = 1) -> Tensor:
    return _sum(b, "sub", x, y, alpha)


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(b: AtenBuilder, x: Tensor, y: Tensor | Number, alpha: Number = 1) -> Tensor:
    dtype = b.promoted(x, y)
    x, y = b.tensor(x, dtype), b.tensor(y, dtype)
    return b.add("sub", y, x if alpha == 1 else b.add("mul", x, b.scalar(alpha, dtype)))


def _sum(b: AtenBuilder, op: str, x: Tensor, y: Tensor | Number, alpha: Number) -> Tensor:
    left, right = b.promote(x, y)
    if b.dtype(left) is boolean:
        return b.add("logical_or", left, right)
    return b.add(op, left, right if alpha == 1 else b.add("mul", right, b.scalar(alpha, b.dtype(right))))


@aten("mul.Tensor", "mul.Scalar")
def mul(b: AtenBuilder, x: Tensor, y: Tensor | Number) -> Tensor:
    left, right = b.promote(x, y)
    return b.add("logical_and" if b.dtype(left) is boolean else "mul", left, right)


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(b: AtenBuilder, x: Tensor, y: Tensor | Number) -> Tensor:
    return b.add("div", *b.promote(x, y, floating=True))


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: AtenBuilder, x: Tensor, y: Tensor | Number, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return div(b, x, y)
    if rounding_mode == "floor":
        return b.add("floor_div", *b.promote(x, y))
    return trunc(b, b.add("div", *b.promote(x, y)))


@aten("floor_divide.default", "floor_divide.Scalar")
def floor_divide(b: AtenBuilder, x: Tensor, y: Tensor | Number) -> Tensor:
    return b.add("floor_div", *b.promote(x, y))


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(b: AtenBuilder, x: Tensor, y: Tensor | Number) -> Tensor:
    """Return the remainder with the sign of the dividend. Floats: sign(x) * (|x| mod |y|), exact; the smallest integer
    has no magnitude.
    """
    left, right = b.promote(x, y)
    if b.dtype(left).kind == "f":
        return b.add("mul", b.add("sign", left), b.add("mod", b.add("abs", left), b.add("abs", right)))
    zero, remainder = b.scalar(0, b.dtype(left)), b.add("mod", left, right)
    differs = b.add("logical_xor", b.add("less", left, zero), b.add("less", right, zero))
    moves = b.add("logical_and", b.add("not_equal", remainder, zero), differs)
    return b.add("where", moves, b.add("sub", remainder, right), remainder)


@aten("gcd.default")
def gcd(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    return b.add("gcd", *b.promote(x, y))


@aten("lcm.default")
def lcm(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    """Return the least common multiple, 0 if either operand is 0."""
    x, y = b.promote(x, y)
    share = b.add("maximum", b.add("gcd", x, y), b.scalar(1, b.dtype(x)))
    return b.add("abs", b.add("mul", b.add("div", x, share), y))


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def pow(b: AtenBuilder, x: Tensor | Number, y: Tensor | Number) -> Tensor:
    return b.add("pow", *b.promote(x, y))


@aten("atan2.default")
def atan2(b: AtenBuilder, y: Tensor, x: Tensor) -> Tensor:
    """Return the arctangent of y / x, shifted by pi where x is negative; 0 for two zeros."""
    y, x = b.promote(y, x, floating=True)
    zero, half_turn = b.scalar(0, b.dtype(x)), b.scalar(math.pi, b.dtype(x))
    angle = b.add("atan", b.add("div", y, x))
    opposite = b.add("where", b.add("less", y, zero), b.add("sub", angle, half_turn), b.add("add", angle, half_turn))
    angle = b.add("where", b.add("less", x, zero), opposite, angle)
    is_origin = b.add("logical_and", b.add("equal", x, zero), b.add("equal", y, zero))
    return b.add("where", is_origin, zero, angle)


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(b: AtenBuilder, x: Tensor, y: Tensor | Number) -> Tensor:
    """Return |x| with the sign bit of y, which zeros and NaN have, too."""
    x, y = b.promote(x, y, floating=True)
    bits = b.add("bitcast", y, dtype=BITS[b.dtype(y).bits])
    magnitude = b.add("abs", x)
    negative = b.add("less", bits, b.scalar(0, b.dtype(bits)))
    return b.add("where", negative, b.add("neg", magnitude), magnitude)


@aten("signbit.default")
def signbit(b: AtenBuilder, x: Tensor) -> Tensor:
    """Return whether a number is negative; for floats, also true for -0 and for NaN with the sign bit."""
    if b.dtype(x).kind == "f":
        x = b.add("bitcast", x, dtype=BITS[b.dtype(x).bits])
    return b.add("less", x, b.scalar(0, b.dtype(x)))


@aten("angle.default")
def angle(b: AtenBuilder, x: Tensor) -> Tensor:
    """Return pi for negative real numbers, NaN for NaN, else 0."""
    (x,) = b.promote(x, floating=True)
    zero = b.scalar(0, b.dtype(x))
    transposed = b.add("where", b.add("less", x, zero), b.scalar(math.pi, b.dtype(x)), zero)
    return b.add("where", b.add("isnan", x), x, transposed)


@aten("hypot.default")
def hypot(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    """Compute sqrt(x^2 + y^2) without overflow: the larger magnitude times sqrt(1 + ratio^2)."""
    x, y = (b.add("abs", side) for side in b.promote(x, y))
    large, small = b.add("maximum", x, y), b.add("minimum", x, y)
    zero, one = b.scalar(0, b.dtype(x)), b.scalar(1, b.dtype(x))
    ratio = b.add("div", small, b.add("where", b.add("equal", large, zero), one, large))
    root = b.add("mul", large, b.add("sqrt", b.add("add", b.add("mul", ratio, ratio), one)))
    return b.add("where", b.add("isinf", large), large, root)


BITS = {16: i16, 32: i32, 64: i64}  # the integers that have the bits of a float


@aten("fmax.default", "fmin.default")
def fmax(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    """Return the larger (or smaller) operand; a number if the other one is NaN."""
    x, y = b.promote(x, y)
    chosen = b.add("maximum" if b.target == "aten.fmax.default" else "minimum", x, y)
    if b.dtype(x).kind != "f":
        return chosen
    return b.add("where", b.add("isnan", x), y, b.add("where", b.add("isnan", y), x, chosen))


def _promoting(op: str) -> Rule:
    return lambda b, x, y: b.add(op, *b.promote(x, y))


for _op, _targets in {
    "mod": ("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"),
    "maximum": ("maximum.default", "max.other"),
    "minimum": ("minimum.default", "min.other"),
    "equal": ("eq.Tensor", "eq.Scalar"),
    "not_equal": ("ne.Tensor", "ne.Scalar"),
    "less": ("lt.Tensor", "lt.Scalar"),
    "less_equal": ("le.Tensor", "le.Scalar"),
    "greater": ("gt.Tensor", "gt.Scalar"),
    "greater_equal": ("ge.Tensor", "ge.Scalar"),
}.items():
    aten(*_targets)(_promoting(_op))


# -- logic


def as_bool(b: AtenBuilder, x: Tensor | Number) -> Tensor:
    """Return x != 0."""
    return b.tensor(x, boolean)


def _logical(op: str) -> Rule:
    return lambda b, x, y: b.add(op, as_bool(b, x), as_bool(b, y))


def _bitwise(op: str) -> Rule:
    def rule(b: AtenBuilder, x: Tensor, y: Tensor | Number) -> Tensor:
        left, right = b.promote(x, y)
        return b.add(f"logical_{op}" if b.dtype(left) is boolean else f"bitwise_{op}", left, right)

    return rule


for _name in ("and", "or", "xor"):
    aten(f"logical_{_name}.default")(_logical(f"logical_{_name}"))
    aten(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar", f"__{_name}__.Tensor", f"__{_name}__.Scalar")(
        _bitwise(_name)
    )


@aten("logical_not.default")
def logical_not(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.add("logical_not", as_bool(b, x))


@aten("bitwise_not.default")
def bitwise_not(b: AtenBuilder, x: Tensor) -> Tensor:
    if b.dtype(x) is boolean:
        return b.add("logical_not", x)
    return b.add("bitwise_not", x)


def _shift(op: str) -> Rule:
    return lambda b, x, y: b.add(op, *b.promote(x, y))


aten("bitwise_left_shift.Tensor", "__lshift__.Tensor", "__lshift__.Scalar")(_shift("shift_left"))
aten("bitwise_right_shift.Tensor", "__rshift__.Tensor", "__rshift__.Scalar")(_shift("shift_right"))


@aten("isfinite.default")
def isfinite(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.add("logical_not", b.add("logical_or", b.add("isnan", x), b.add("isinf", x)))


# -- choosing and limiting


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(b: AtenBuilder, condition: Tensor, x: Tensor | Number, y: Tensor | Number) -> Tensor:
    return b.add("where", as_bool(b, condition), *b.promote(x, y))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: AtenBuilder, x: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    return b.add("where", as_bool(b, mask), b.tensor(value, b.dtype(x)), x)


@aten("clamp.default")
def clamp(b: AtenBuilder, x: Tensor, min: Number | None = None, max: Number | None = None) -> Tensor:
    dtype: DType = b.result.dtype
    x = b.cast(x, dtype)
    if dtype not in (f32, i64) or isinstance(min, (Expr, str)) or isinstance(max, (Expr, str)):
        return clamp_tensor(b, x, min, max)
    number = float if dtype is f32 else int
    low, high = (-math.inf if min is None else number(min)), (math.inf if max is None else number(max))
    return b.add("clip", x, minimum=low, maximum=high)


@aten("clamp.Tensor")
def clamp_tensor(b: AtenBuilder, x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    dtype: DType = b.result.dtype
    x = b.cast(x, dtype)
    if min is not None:
        x = b.add("maximum", x, b.tensor(min, dtype))
    return x if max is None else b.add("minimum", x, b.tensor(max, dtype))


@aten("clamp_min.default", "clamp_min.Tensor")
def clamp_min(b: AtenBuilder, x: Tensor, min: Tensor | Number) -> Tensor:
    return b.add("maximum", *b.promote(x, min))


@aten("clamp_max.default", "clamp_max.Tensor")
def clamp_max(b: AtenBuilder, x: Tensor, max: Tensor | Number) -> Tensor:
    return b.add("minimum", *b.promote(x, max))


@aten("hardtanh.default")
def hardtanh(b: AtenBuilder, x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return clamp(b, x, min_val, max_val)


@aten("relu6.default")
def relu6(b: AtenBuilder, x: Tensor) -> Tensor:
    return clamp(b, x, 0.0, 6.0)

"""Rules for element-wise, comparison and logical ops."""

from __future__ import annotations

import math

from ingot.ir.dtype import DType, boolean, f32, f64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx

UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "HardSwish": "hard_swish",
    "IsNaN": "isnan",
    "Log": "log",
    "Mish": "mish",
    "Neg": "neg",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softplus": "softplus",
    "Sqrt": "sqrt",
    "Tanh": "tanh",
}
BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "div",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "mul",
    "Or": "logical_or",
    "Sub": "sub",
    "Xor": "logical_xor",
}
SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875  # the defaults, as f32
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


@onnx(*UNARY)
def unary(call: Call) -> str:
    if call.type(0).dtype.kind == "u" and call.op in ("Abs", "Sign"):
        return call[0] if call.op == "Abs" else call.cast(call.cast(call[0], boolean), call.type(0).dtype)
    return getattr(call.build, UNARY[call.op])(call[0])


@onnx(*BINARY, since=7)
def binary(call: Call) -> str:
    return getattr(call.build, BINARY[call.op])(call[0], call[1])


@onnx(*VARIADIC)
def variadic(call: Call) -> str:
    return _chain(call, VARIADIC[call.op])


@onnx("Mean")
def mean(call: Call) -> str:
    return call.build.mul(_chain(call, "add"), 1 / len(call))


def _chain(call: Call, op: str) -> str:
    first, *rest = call.values()
    for other in rest:
        first = getattr(call.build, op)(first, other)
    return first


@onnx("Where")
def where(call: Call) -> str:
    return call.build.where(call[0], call[1], call[2])


@onnx("Pow", since=7)
def pow_(call: Call) -> str:
    """The result has the dtype of the base; the dtype of the exponent may differ."""
    base, exponent = call[0], call[1]
    dtype, other = call.type(0).dtype, call.type(1).dtype
    wide = _wider(dtype, other)
    return call.cast(call.build.pow(call.cast(base, wide), call.cast(exponent, wide)), dtype)


def _wider(base: DType, exponent: DType) -> DType:
    if base.kind == "f":
        return base
    if exponent.kind == "f":
        return f64 if exponent is f64 else f32
    return base


@onnx("Mod")
def mod(call: Call) -> str:
    """fmod=0 has the sign of the divisor, as the plain op; fmod=1 has the sign of the dividend."""
    build, a, b = call.build, call[0], call[1]
    fmod = call.attr_int("fmod", 0)
    if fmod not in (0, 1):
        raise call.malformed(f"attribute 'fmod' is {fmod}, expected 0 or 1")
    if fmod == 0:
        return build.mod(a, b)
    if call.type(0).dtype.kind == "f":  # sign(a) * (|a| mod |b|), where nothing is rounded
        return build.mul(build.sign(a), build.mod(build.abs(a), build.abs(b)))
    remainder = build.mod(a, b)
    differs = build.logical_xor(build.less(a, 0), build.less(b, 0))
    moves = build.logical_and(build.not_equal(remainder, 0), differs)
    return build.where(moves, build.sub(remainder, b), remainder)


@onnx("Clip", since=11)
def clip(call: Call) -> str:
    """Known bounds become attributes, except those of unsigned integers."""
    x, bounds, left = call[0], {}, {}
    for index, name in ((1, "minimum"), (2, "maximum")):
        if call.has(index):
            bound = call.scalar(index)
            data = call.build.graph.data(bound)
            if data is None or data != data or call.type(0).dtype.kind == "u":
                left[name] = bound
            else:
                bounds[name] = data.item()
    if left:
        if call.has(1):
            x = call.build.maximum(x, call.scalar(1))
        return call.build.minimum(x, call.scalar(2)) if call.has(2) else x
    return call.build.clip(x, **bounds) if bounds else x


@onnx("Cast", since=6)
@onnx("CastLike")
def cast(call: Call) -> str:
    """`saturate` and `round_mode` only apply to casts to 8-bit floats."""
    dtype = call.attr_dtype("to") if call.op == "Cast" else call.type(1).dtype
    mode, saturate = call.attr_text("round_mode", "up"), bool(call.attr_int("saturate", 1))
    if mode not in ("up", "down", "nearest"):
        raise call.malformed(f"attribute 'round_mode' is {mode!r}, expected 'up', 'down' or 'nearest'")
    if dtype is call.type(0).dtype or dtype.kind != "n":
        return call.cast(call[0], dtype)
    return call.build.cast(call[0], dtype=dtype, saturate=saturate, round_mode=mode)


@onnx("Gelu", since=20)
def gelu(call: Call) -> str:
    kind = call.attr_text("approximate", "none")
    if kind not in ("none", "tanh"):
        raise call.malformed(f"attribute 'approximate' is {kind!r}, expected 'none' or 'tanh'")
    return call.build.gelu(call[0], approximate="erf" if kind == "none" else "tanh")


@onnx("LeakyRelu")
def leaky_relu(call: Call) -> str:
    return call.build.leaky_relu(call[0], alpha=call.attr_float("alpha", 0.01))


@onnx("ThresholdedRelu")
def thresholded_relu(call: Call) -> str:
    """Return x above alpha, else 0."""
    return call.build.where(call.build.greater(call[0], call.attr_float("alpha", 1.0)), call[0], 0.0)


@onnx("Elu")
def elu(call: Call) -> str:
    return call.build.elu(call[0], alpha=call.attr_float("alpha", 1.0))


@onnx("Celu")
def celu(call: Call) -> str:
    """Return x above 0, else alpha * (exp(x / alpha) - 1)."""
    build, x, alpha = call.build, call[0], call.attr_float("alpha", 1.0)
    if alpha == 0:
        raise call.malformed("attribute 'alpha' is 0")
    below = build.mul(build.expm1(build.mul(x, 1 / alpha)), alpha)
    return build.where(build.less_equal(x, 0.0), below, x)


@onnx("Selu")
def selu(call: Call) -> str:
    """Return gamma * (x above 0, else alpha * (exp(x) - 1))."""
    alpha, gamma = call.attr_float("alpha", SELU_ALPHA), call.attr_float("gamma", SELU_GAMMA)
    return call.build.mul(call.build.elu(call[0], alpha=alpha), gamma)


@onnx("Shrink")
def shrink(call: Call) -> str:
    """Move x toward 0 by `bias` if |x| > `lambd`, else return 0; integers are computed in float64 and truncated."""
    build, dtype = call.build, call.type(0).dtype
    bias, bound = call.attr_float("bias", 0.0), call.attr_float("lambd", 0.5)
    x = call[0] if dtype.kind == "f" else call.cast(call[0], f64)
    above = build.where(build.greater(x, bound), build.sub(x, bias), 0.0)
    return call.cast(build.where(build.less(x, -bound), build.add(x, bias), above), dtype)


@onnx("BitShift")
def bit_shift(call: Call) -> str:
    direction = call.attr_text("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise call.malformed(f"attribute 'direction' is {direction[:100]!r}, expected 'LEFT' or 'RIGHT'")
    return getattr(call.build, f"shift_{direction.lower()}")(call[0], call[1])


@onnx("BitCast", since=26)
def bit_cast(call: Call) -> str:
    dtype = call.attr_dtype("to")
    if dtype.bits != call.type(0).dtype.bits:
        raise call.malformed(f"attribute 'to' is {dtype}, expected as many bits as {call.type(0).dtype}")
    if dtype in (boolean, call.type(0).dtype):
        return call.cast(call[0], dtype)
    return call.build.bitcast(call[0], dtype=dtype)


@onnx("HardSigmoid")
def hard_sigmoid(call: Call) -> str:
    return call.build.hard_sigmoid(call[0], alpha=call.attr_float("alpha", 0.2), beta=call.attr_float("beta", 0.5))


@onnx("PRelu", since=7)
def prelu(call: Call) -> str:
    """Return x, multiplied by the slope where x is below 0; the slope broadcasts to x."""
    build, x = call.build, call[0]
    if call.type(0).dtype.kind == "f":
        return build.prelu(x, call[1])
    return build.where(build.less(x, 0), build.mul(x, call[1]), x)


@onnx("Softsign")
def softsign(call: Call) -> str:
    return call.build.div(call[0], call.build.add(call.build.abs(call[0]), 1.0))


@onnx("Tan")
def tan(call: Call) -> str:
    return call.build.div(call.build.sin(call[0]), call.build.cos(call[0]))


@onnx("IsInf")
def isinf(call: Call) -> str:
    build, x = call.build, call[0]
    negative, positive = call.attr_int("detect_negative", 1), call.attr_int("detect_positive", 1)
    if negative and positive:
        return build.isinf(x)
    if positive:
        return build.equal(x, math.inf)
    if negative:
        return build.equal(x, -math.inf)
    return build.logical_and(build.isnan(x), build.isinf(x))


@onnx("Identity")
def identity(call: Call) -> str:
    return call[0]

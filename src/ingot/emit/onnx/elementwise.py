"""ONNX rules of element-wise ops and casts. Results that ONNX leaves undefined, as of a cast out of range, stay so."""

from __future__ import annotations

import math
from typing import Any

from ingot.emit.onnx.builder import NUMBERS, Builder
from ingot.emit.onnx.registry import rule
from ingot.ir.dtype import boolean, i64, u64
from ingot.ir.graph import Node

# Ops with another name in ONNX, without attributes.
SAME = {
    "relu": "Relu", "neg": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "sinh": "Sinh", "cosh": "Cosh", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "tanh": "Tanh", "erf": "Erf",
    "sigmoid": "Sigmoid", "floor": "Floor", "ceil": "Ceil", "round": "Round", "mish": "Mish", "softplus": "Softplus",
    "hard_swish": "HardSwish", "bitwise_not": "BitwiseNot", "logical_not": "Not", "isnan": "IsNaN", "isinf": "IsInf",
    "add": "Add", "sub": "Sub", "mul": "Mul", "maximum": "Max", "minimum": "Min", "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor", "logical_and": "And", "logical_or": "Or",
    "logical_xor": "Xor", "where": "Where", "string_concat": "StringConcat",
}  # fmt: skip

COMPARISONS = {
    "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "not_equal": "Equal",
}  # fmt: skip


@rule(*SAME)
def same(builder: Builder, node: Node, *operands: str) -> str:
    return getattr(builder, SAME[node.op.name])(*operands)


@rule(*COMPARISONS)
def compare(builder: Builder, node: Node, a: str, b: str) -> str:
    """ONNX has no comparison of bools."""
    name = COMPARISONS[node.op.name]
    if name != "Equal" and builder.type(node, 0).dtype is boolean:
        a, b = (builder.Cast(x, to=NUMBERS[i64]) for x in (a, b))
    result = getattr(builder, name)(a, b)
    return builder.Not(result) if node.op.name == "not_equal" else result


@rule("gelu")
def gelu(builder: Builder, node: Node, x: str) -> str:
    return builder.Gelu(x, approximate="none" if node.approximate == "erf" else "tanh")


@rule("leaky_relu", "elu", "hard_sigmoid")
def with_numbers(builder: Builder, node: Node, x: str) -> str:
    name = {"leaky_relu": "LeakyRelu", "elu": "Elu", "hard_sigmoid": "HardSigmoid"}[node.op.name]
    return getattr(builder, name)(x, **{key: float(value) for key, value in node.attributes.items()})


@rule("prelu")
def prelu(builder: Builder, node: Node, x: str, slope: str) -> str:
    """ONNX broadcasts the slope to x, but not x."""
    shape = builder.graph.type(node.output).shape
    return builder.PRelu(x if builder.type(node, 0).shape == shape else builder.Expand(x, builder.sizes(shape)), slope)


@rule("silu")
def silu(builder: Builder, node: Node, x: str) -> str:
    return builder.Mul(x, builder.Sigmoid(x))


@rule("rsqrt")
def rsqrt(builder: Builder, node: Node, x: str) -> str:
    return builder.Reciprocal(builder.Sqrt(x))


@rule("expm1")
def expm1(builder: Builder, node: Node, x: str) -> str:
    return builder.Sub(builder.Exp(x), builder.number(1, builder.type(node, 0).dtype))


@rule("log1p")
def log1p(builder: Builder, node: Node, x: str) -> str:
    return builder.Log(builder.Add(x, builder.number(1, builder.type(node, 0).dtype)))


@rule("clip")
def clip(builder: Builder, node: Node, x: str) -> str:
    dtype = builder.type(node, 0).dtype
    minimum = None if node.minimum == -math.inf else builder.number(node.minimum, dtype)
    maximum = None if node.maximum == math.inf else builder.number(node.maximum, dtype)
    return builder.Clip(x, minimum, maximum)


@rule("cast")
def cast(builder: Builder, node: Node, x: str) -> str:
    """Attributes of low-precision floats are written only if they differ from ONNX's defaults."""
    saturate = None if node.saturate else 0
    return builder.Cast(
        x, to=NUMBERS[node.dtype], saturate=saturate, round_mode=None if node.round_mode == "up" else node.round_mode
    )


@rule("bitcast")
def bitcast(builder: Builder, node: Node, x: str) -> str:
    return builder.BitCast(x, to=NUMBERS[node.dtype])


@rule("div", "floor_div", "mod")
def divide(builder: Builder, node: Node, a: str, b: str) -> str:
    if builder.type(node, 0).dtype.kind == "f":
        return builder.Div(a, b) if node.op.name == "div" else _floored(builder, node, a, b)
    return _guarded(builder, node, b, lambda divisor: _whole(builder, node.op.name, a, divisor))


def _guarded(builder: Builder, node: Node, b: str, divided: Any) -> str:
    """An integer quotient or remainder that is 0 where the divisor is."""
    data = builder.graph.data(node.operands[1])
    if data is not None and data.all():
        return divided(b)
    dtype = builder.type(node, 1).dtype
    zero, is_zero = builder.number(0, dtype), builder.Equal(b, builder.number(0, dtype))
    return builder.Where(is_zero, zero, divided(builder.Where(is_zero, builder.number(1, dtype), b)))


def _whole(builder: Builder, name: str, a: str, b: str) -> str:
    if name == "div":
        return builder.Div(a, b)
    rest = builder.Mod(a, b)
    return rest if name == "mod" else builder.Div(builder.Sub(a, rest), b)


def _floored(builder: Builder, node: Node, a: str, b: str) -> str:
    """Floor division of floats as in numpy: the remainder is exact, the quotient rounded to the nearest integer."""
    dtype = builder.type(node, 0).dtype
    zero = builder.number(0, dtype)
    rest = builder.Mod(a, b, fmod=1)
    transposed = builder.And(
        builder.Xor(builder.Less(rest, zero), builder.Less(b, zero)), builder.Not(builder.Equal(rest, zero))
    )
    rest = builder.Where(transposed, builder.Add(rest, b), rest)
    if node.op.name == "mod":
        return rest
    return builder.Where(builder.Equal(b, zero), builder.Div(a, b), builder.Round(builder.Div(builder.Sub(a, rest), b)))


@rule("pow")
def power(builder: Builder, node: Node, a: str, b: str) -> str:
    """A negative exponent of an integer gives 0 except for 1 and -1; ONNX leaves it undefined."""
    dtype = builder.type(node, 0).dtype
    data = builder.graph.data(node.operands[1])
    if dtype.kind == "f" or dtype.kind == "u" or (data is not None and (data >= 0).all()):
        return builder.Pow(a, b)
    zero, one, minus = (builder.number(value, dtype) for value in (0, 1, -1))
    is_odd = builder.Equal(builder.Mod(b, builder.number(2, dtype)), one)
    inverse = builder.Where(
        builder.Equal(a, minus), builder.Where(is_odd, minus, one), builder.Where(builder.Equal(a, one), one, zero)
    )
    return builder.Where(builder.Less(b, zero), inverse, builder.Pow(a, builder.Max(b, zero)))


@rule("shift_left", "shift_right")
def shift(builder: Builder, node: Node, a: str, b: str) -> str:
    """ONNX shifts unsigned integers only: a negative integer is shifted as its complement."""
    dtype, is_left = builder.type(node, 0).dtype, node.op.name == "shift_left"
    zero = builder.number(0, dtype)
    is_signed = dtype.kind == "i"
    beyond = builder.GreaterOrEqual(b, builder.number(dtype.bits, dtype))
    if is_signed:
        beyond = builder.Or(beyond, builder.Less(b, zero))
    is_negative = builder.Less(a, zero) if is_signed and not is_left else None
    x = a if is_negative is None else builder.Where(is_negative, builder.BitwiseNot(a), a)
    shift = builder.Cast(builder.Where(beyond, zero, b), to=NUMBERS[u64])
    wide = builder.BitShift(builder.Cast(x, to=NUMBERS[u64]), shift, direction="LEFT" if is_left else "RIGHT")
    shifted = builder.Where(beyond, zero, builder.Cast(wide, to=NUMBERS[dtype]))
    return shifted if is_negative is None else builder.Where(is_negative, builder.BitwiseNot(shifted), shifted)

"""Element-wise ops and casts. Where ONNX leaves a result open, such as a cast beyond the range, it stays open."""

from __future__ import annotations

import math
from typing import Any

from ingot.emit.onnx.builder import NUMBERS, Pen
from ingot.emit.onnx.registry import rule
from ingot.ir.dtype import boolean, i64, u64
from ingot.ir.graph import Node

# Ops that ONNX has under another name, without attributes.
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
def same(pen: Pen, node: Node, *operands: str) -> str:
    return getattr(pen, SAME[node.op.name])(*operands)


@rule(*COMPARISONS)
def compare(pen: Pen, node: Node, a: str, b: str) -> str:
    """ONNX orders no bools."""
    name = COMPARISONS[node.op.name]
    if name != "Equal" and pen.type(node, 0).dtype is boolean:
        a, b = (pen.Cast(x, to=NUMBERS[i64]) for x in (a, b))
    result = getattr(pen, name)(a, b)
    return pen.Not(result) if node.op.name == "not_equal" else result


@rule("gelu")
def gelu(pen: Pen, node: Node, x: str) -> str:
    return pen.Gelu(x, approximate="none" if node.approximate == "erf" else "tanh")


@rule("leaky_relu", "elu", "hard_sigmoid")
def with_numbers(pen: Pen, node: Node, x: str) -> str:
    name = {"leaky_relu": "LeakyRelu", "elu": "Elu", "hard_sigmoid": "HardSigmoid"}[node.op.name]
    return getattr(pen, name)(x, **{key: float(value) for key, value in node.attributes.items()})


@rule("prelu")
def prelu(pen: Pen, node: Node, x: str, slope: str) -> str:
    """ONNX's slope broadcasts to x, and x to nothing."""
    shape = pen.graph.type(node.output).shape
    return pen.PRelu(x if pen.type(node, 0).shape == shape else pen.Expand(x, pen.sizes(shape)), slope)


@rule("silu")
def silu(pen: Pen, node: Node, x: str) -> str:
    return pen.Mul(x, pen.Sigmoid(x))


@rule("rsqrt")
def rsqrt(pen: Pen, node: Node, x: str) -> str:
    return pen.Reciprocal(pen.Sqrt(x))


@rule("expm1")
def expm1(pen: Pen, node: Node, x: str) -> str:
    return pen.Sub(pen.Exp(x), pen.number(1, pen.type(node, 0).dtype))


@rule("log1p")
def log1p(pen: Pen, node: Node, x: str) -> str:
    return pen.Log(pen.Add(x, pen.number(1, pen.type(node, 0).dtype)))


@rule("clip")
def clip(pen: Pen, node: Node, x: str) -> str:
    dtype = pen.type(node, 0).dtype
    minimum = None if node.minimum == -math.inf else pen.number(node.minimum, dtype)
    maximum = None if node.maximum == math.inf else pen.number(node.maximum, dtype)
    return pen.Clip(x, minimum, maximum)


@rule("cast")
def cast(pen: Pen, node: Node, x: str) -> str:
    """The attributes for narrow floats are written where they are not ONNX's defaults."""
    saturate = None if node.saturate else 0
    return pen.Cast(
        x, to=NUMBERS[node.dtype], saturate=saturate, round_mode=None if node.round_mode == "up" else node.round_mode
    )


@rule("bitcast")
def bitcast(pen: Pen, node: Node, x: str) -> str:
    return pen.BitCast(x, to=NUMBERS[node.dtype])


@rule("div", "floor_div", "mod")
def divide(pen: Pen, node: Node, a: str, b: str) -> str:
    if pen.type(node, 0).dtype.kind == "f":
        return pen.Div(a, b) if node.op.name == "div" else _floored(pen, node, a, b)
    return _guarded(pen, node, b, lambda divisor: _whole(pen, node.op.name, a, divisor))


def _guarded(pen: Pen, node: Node, b: str, divided: Any) -> str:
    """An integer quotient or remainder that is 0 where the divisor is."""
    data = pen.graph.data(node.operands[1])
    if data is not None and data.all():
        return divided(b)
    dtype = pen.type(node, 1).dtype
    zero, is_zero = pen.number(0, dtype), pen.Equal(b, pen.number(0, dtype))
    return pen.Where(is_zero, zero, divided(pen.Where(is_zero, pen.number(1, dtype), b)))


def _whole(pen: Pen, name: str, a: str, b: str) -> str:
    if name == "div":
        return pen.Div(a, b)
    rest = pen.Mod(a, b)
    return rest if name == "mod" else pen.Div(pen.Sub(a, rest), b)


def _floored(pen: Pen, node: Node, a: str, b: str) -> str:
    """Of floats, as numpy has it: the remainder is exact, and gives the quotient its nearest whole number."""
    dtype = pen.type(node, 0).dtype
    zero = pen.number(0, dtype)
    rest = pen.Mod(a, b, fmod=1)
    transposed = pen.And(pen.Xor(pen.Less(rest, zero), pen.Less(b, zero)), pen.Not(pen.Equal(rest, zero)))
    rest = pen.Where(transposed, pen.Add(rest, b), rest)
    if node.op.name == "mod":
        return rest
    return pen.Where(pen.Equal(b, zero), pen.Div(a, b), pen.Round(pen.Div(pen.Sub(a, rest), b)))


@rule("pow")
def power(pen: Pen, node: Node, a: str, b: str) -> str:
    """A negative exponent of an integer leaves 1 and -1 alone; ONNX leaves it open."""
    dtype = pen.type(node, 0).dtype
    data = pen.graph.data(node.operands[1])
    if dtype.kind == "f" or dtype.kind == "u" or (data is not None and (data >= 0).all()):
        return pen.Pow(a, b)
    zero, one, minus = (pen.number(value, dtype) for value in (0, 1, -1))
    is_odd = pen.Equal(pen.Mod(b, pen.number(2, dtype)), one)
    inverse = pen.Where(pen.Equal(a, minus), pen.Where(is_odd, minus, one), pen.Where(pen.Equal(a, one), one, zero))
    return pen.Where(pen.Less(b, zero), inverse, pen.Pow(a, pen.Max(b, zero)))


@rule("shift_left", "shift_right")
def shift(pen: Pen, node: Node, a: str, b: str) -> str:
    """ONNX shifts unsigned numbers: a signed one is shifted as its complement where it is negative."""
    dtype, is_left = pen.type(node, 0).dtype, node.op.name == "shift_left"
    zero = pen.number(0, dtype)
    is_signed = dtype.kind == "i"
    beyond = pen.GreaterOrEqual(b, pen.number(dtype.bits, dtype))
    if is_signed:
        beyond = pen.Or(beyond, pen.Less(b, zero))
    is_negative = pen.Less(a, zero) if is_signed and not is_left else None
    x = a if is_negative is None else pen.Where(is_negative, pen.BitwiseNot(a), a)
    places = pen.Cast(pen.Where(beyond, zero, b), to=NUMBERS[u64])
    wide = pen.BitShift(pen.Cast(x, to=NUMBERS[u64]), places, direction="LEFT" if is_left else "RIGHT")
    made = pen.Where(beyond, zero, pen.Cast(wide, to=NUMBERS[dtype]))
    return made if is_negative is None else pen.Where(is_negative, pen.BitwiseNot(made), made)

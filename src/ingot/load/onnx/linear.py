"""Matrix products: MatMul, Gemm, Einsum of one or two operands."""

from __future__ import annotations

import re

from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, count
from ingot.ops.define import unify


@onnx("MatMul")
def matmul(call: Call) -> str:
    return multiply(call, call[0], call[1])


def multiply(call: Call, a: str, b: str, **attributes: object) -> str:
    """numpy's matmul: a vector gets a dim of 1, which the result loses."""
    build, ranks = call.build, (call.build.type(a).rank, call.build.type(b).rank)
    if 0 in ranks:
        raise call.malformed(f"a scalar operand, got {build.type(a)} and {build.type(b)}")
    if ranks[0] == 1:
        a = build.reshape(a, shape=(1, *build.type(a).shape))
    if ranks[1] == 1:
        b = build.reshape(b, shape=(*build.type(b).shape, 1))
    result = build.matmul(a, b, **attributes)
    shape = list(build.type(result).shape)
    if ranks[1] == 1:
        del shape[-1]
    if ranks[0] == 1:
        del shape[-1 if ranks[1] == 1 else -2]
    return call.reshape(result, shape)


@onnx("Gemm")
def gemm(call: Call) -> str:
    """alpha * a' b' + beta * c."""
    build = call.build
    if call.type(0).rank != 2 or call.type(1).rank != 2:
        raise call.malformed(f"operands of rank 2 expected, got {call.type(0)} and {call.type(1)}")
    flags = {"transpose_a": bool(call.attr_int("transA", 0)), "transpose_b": bool(call.attr_int("transB", 0))}
    alpha, beta = call.attr_float("alpha", 1.0), call.attr_float("beta", 1.0)
    if call.type(0).dtype.kind != "f" and (alpha, beta) != (1.0, 1.0):
        raise call.unsupported(f"alpha or beta on {call.type(0).dtype}")
    result = build.matmul(call[0], call[1], scale=alpha, **flags)
    if not call.has(2) or beta == 0.0:
        return result
    addend = call[2] if beta == 1.0 else build.mul(call[2], beta)
    shape = build.type(result).shape
    total = build.add(result, addend)
    if build.type(total).rank != len(shape):
        raise call.malformed(f"c does not broadcast to the product, got {call.type(2)}, expected {list(shape)}")
    return total


@onnx("Einsum")
def einsum(call: Call) -> str:
    """Two operands become one batched matmul; one operand a sum and a permutation."""
    inputs, output = _equation(call)
    if len(call) == 1:
        return _reorder(call, call[0], inputs[0], output)
    if len(call) != 2:
        raise call.unsupported(f"an equation of {len(call)} operands")
    left, right = inputs
    sizes: dict[str, Size] = {}
    for letters, index in ((left, 0), (right, 1)):
        for letter, size in zip(letters, call.shape(index), strict=True):
            sizes[letter] = unify(f"dims of {letter!r}", sizes.get(letter, size), size)  # type: ignore[assignment]
    batch = [c for c in left if c in right and c in output]
    summed = [c for c in left if c in right and c not in output]
    rows = [c for c in left if c not in right and c in output]
    columns = [c for c in right if c not in left and c in output]
    groups = [[sizes[c] for c in group] for group in (batch, rows, summed, columns)]
    dims, m, k, n = groups[0], count(groups[1]), count(groups[2]), count(groups[3])
    a = call.reshape(_reorder(call, call[0], left, [*batch, *rows, *summed]), (*dims, m, k))
    b = call.reshape(_reorder(call, call[1], right, [*batch, *summed, *columns]), (*dims, k, n))
    result = call.reshape(call.build.matmul(a, b), (*dims, *groups[1], *groups[3]))
    return _reorder(call, result, [*batch, *rows, *columns], output)


def _equation(call: Call) -> tuple[list[list[str]], list[str]]:
    text = call.attr_text("equation").replace(" ", "")
    if "..." in text:
        raise call.unsupported(f"an ellipsis, {text!r}")
    if not re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)*(->[A-Za-z]*)?", text):
        raise call.malformed(f"not an einsum equation, got {text[:100]!r}")
    head, arrow, tail = text.partition("->")
    inputs = [list(term) for term in head.split(",")]
    letters = "".join(head.split(","))
    output = list(tail) if arrow else sorted(c for c in set(letters) if letters.count(c) == 1)
    if len(inputs) != len(call) or any(len(t) != call.type(i).rank for i, t in enumerate(inputs)):
        raise call.malformed(f"equation {text!r} does not fit {', '.join(str(call.type(i)) for i in range(len(call)))}")
    if any(len(set(term)) != len(term) for term in inputs):
        raise call.unsupported(f"a repeated letter in a term, {text!r}")
    if len(set(output)) != len(output) or not set(output) <= set(letters):
        raise call.malformed(f"a letter of the result is repeated or unknown, got {text!r}")
    return inputs, output


def _reorder(call: Call, x: str, letters: list[str], wanted: list[str]) -> str:
    """x with its axes as `wanted`, those not wanted summed away."""
    gone = tuple(i for i, c in enumerate(letters) if c not in wanted)
    if gone:
        x = call.build.reduce_sum(x, axes=gone, keepdims=False)
        letters = [c for c in letters if c in wanted]
    return call.permute(x, [letters.index(c) for c in wanted])

"""Rules for matrix products, MatMul, Gemm and Einsum, for distances, determinants and inverses."""

from __future__ import annotations

import re

from ingot.ir.dtype import i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.conv import accumulator
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size, count
from ingot.ops.define import unify

_FIRST_UNDER_ELLIPSIS = 0xE000  # not a letter of an equation: a private-use range larger than any rank


@onnx("MatMul")
def matmul(call: Call) -> str:
    return multiply(call, call[0], call[1])


def multiply(call: Call, a: str, b: str, **attributes: object) -> str:
    """Multiply as numpy's matmul: a vector gets a dim of 1, which the result drops."""
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
    """Compute alpha * a' b' + beta * c."""
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


@onnx("Det")
def det(call: Call) -> str:
    return call.build.det(call[0])


@onnx("CDist", domain=MICROSOFT)
def distances(call: Call) -> str:
    """Compute the distance of each row of a from each row of b."""
    build, metric = call.build, call.word("metric", "sqeuclidean", ("sqeuclidean", "euclidean"))
    (rows, width), (others, _) = call.shape(0), call.shape(1)
    apart = build.sub(call.reshape(call[0], (rows, 1, width)), call.reshape(call[1], (1, others, width)))
    squares = build.reduce_sum(build.mul(apart, apart), axes=(2,), keepdims=False)
    return build.sqrt(squares) if metric == "euclidean" else squares


@onnx("Inverse", domain=MICROSOFT)
def inverse(call: Call) -> str:
    """Solve A y = 1 by the LU factors of A."""
    build, dtype = call.build, call.type(0).dtype
    x = call.cast(call[0], accumulator(dtype))
    *batch, size, _ = call.known_shape(build.type(x))
    lu, pivots, _ = build.add_all("lu_factor", x)
    order = call.reshape(build.pivoted_rows(pivots, rows=size), (*batch, size, 1))
    column = build.iota(length=size, start=0, step=1, dtype=i64)
    rows_of_one = call.cast(build.equal(order, column), build.type(x).dtype)
    half = build.solve_triangular(lu, rows_of_one, upper=False, unit=True)
    return call.cast(build.solve_triangular(lu, half, upper=True, unit=False), dtype)


@onnx("Einsum")
def einsum(call: Call) -> str:
    """Multiply the operands pairwise with batched matmuls; at the end, sum unused letters and permute the axes."""
    terms, output = _equation(call)
    x, letters = _diagonal(call, call[0], terms[0])
    for i in range(1, len(call)):
        other, added = _diagonal(call, call[i], terms[i])
        wanted = {c for term in (output, *terms[i + 1 :]) for c in term}
        x, letters = _contract(call, (x, letters), (other, added), wanted)
    return _reorder(call, x, letters, output)


def _contract(
    call: Call, left: tuple[str, list[str]], right: tuple[str, list[str]], wanted: set[str]
) -> tuple[str, list[str]]:
    """Contract two operands with their letters, dropping letters that are not wanted."""
    (a, first), (b, second) = left, right
    sizes: dict[str, Size] = {}
    for letters, x in ((first, a), (second, b)):
        for letter, size in zip(letters, call.known_shape(call.build.type(x)), strict=True):
            known = sizes.get(letter, size)
            # An ellipsis broadcasts.
            sizes[letter] = size if known == 1 else known if size == 1 else unify(f"dims of {letter!r}", known, size)  # type: ignore[assignment]
    a, b = (_stretched(call, x, letters, sizes) for x, letters in ((a, first), (b, second)))
    batch = [c for c in first if c in second and c in wanted]
    summed = [c for c in first if c in second and c not in wanted]
    rows = [c for c in first if c not in second and c in wanted]
    columns = [c for c in second if c not in first and c in wanted]
    groups = [[sizes[c] for c in group] for group in (batch, rows, summed, columns)]
    dims, m, k, n = groups[0], count(groups[1]), count(groups[2]), count(groups[3])
    a = call.reshape(_reorder(call, a, first, [*batch, *rows, *summed]), (*dims, m, k))
    b = call.reshape(_reorder(call, b, second, [*batch, *summed, *columns]), (*dims, k, n))
    return call.reshape(call.build.matmul(a, b), (*dims, *groups[1], *groups[3])), [*batch, *rows, *columns]


def _stretched(call: Call, x: str, letters: list[str], sizes: dict[str, Size]) -> str:
    """Expand dims of 1 in x to the sizes that they broadcast to."""
    shape = tuple(sizes[c] for c in letters)
    return x if call.build.type(x).shape == shape else call.build.expand(x, shape=shape)


def _diagonal(call: Call, x: str, letters: list[str]) -> tuple[str, list[str]]:
    """Merge the axes of a repeated letter into one axis, the diagonal; each letter occurs once in the result."""
    letters = list(letters)
    while len(set(letters)) < len(letters):
        repeated = next(c for c in letters if letters.count(c) > 1)
        first, second = [i for i, c in enumerate(letters) if c == repeated][:2]
        rest = [i for i in range(len(letters)) if i not in (first, second)]
        shape = call.known_shape(call.build.type(x))
        size = unify(f"dims of {repeated!r}", shape[first], shape[second])
        if not isinstance(size, int):
            raise call.unbound(f"a repeated letter of a symbolic dim, {size},")
        dims = [shape[i] for i in rest]
        x = call.reshape(call.permute(x, [*rest, first, second]), (*dims, size * size))
        x = call.slice(x, len(rest), 0, size * size, size + 1)
        letters = [*(letters[i] for i in rest), repeated]
    return x, letters


def _equation(call: Call) -> tuple[list[list[str]], list[str]]:
    """Return the letters of each operand and of the result; each dim under an ellipsis gets its own character."""
    text = call.attr_text("equation").replace(" ", "")
    term = r"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
    if not re.fullmatch(rf"{term}(,{term})*(->{term})?", text):
        raise call.malformed(f"not an einsum equation, got {text[:100]!r}")
    head, arrow, tail = text.partition("->")
    terms, covered = head.split(","), 0
    fits = len(terms) == len(call)
    for i, term in enumerate(terms[: len(call)]):
        under = call.type(i).rank - len(term.replace("...", ""))
        fits = fits and (under >= 0 if "..." in term else under == 0)
        covered = max(covered, under)
        terms[i] = term.replace("...", _ellipsis(under))
    if not fits:
        raise call.malformed(f"equation {text!r} does not fit {', '.join(str(call.type(i)) for i in range(len(call)))}")
    letters = "".join(terms)
    alone = sorted(c for c in set(letters) if letters.count(c) == 1 and c.isalpha())
    output = list(tail.replace("...", _ellipsis(covered))) if arrow else [*_ellipsis(covered), *alone]
    if len(set(output)) != len(output) or not set(output) <= set(letters):
        raise call.malformed(f"a letter of the result is repeated or unknown, got {text!r}")
    return [list(term) for term in terms], output


def _ellipsis(rank: int) -> str:
    """Return a character for each dim, ordered from the last dim, so that dims align at the end."""
    return "".join(chr(_FIRST_UNDER_ELLIPSIS + i) for i in reversed(range(rank)))


def _reorder(call: Call, x: str, letters: list[str], wanted: list[str]) -> str:
    """Permute the axes of x to `wanted`, and sum over the others."""
    gone = tuple(i for i, c in enumerate(letters) if c not in wanted)
    if gone:
        x = call.build.reduce_sum(x, axes=gone, keepdims=False)
        letters = [c for c in letters if c in wanted]
    return call.permute(x, [letters.index(c) for c in wanted])

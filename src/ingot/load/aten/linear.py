"""Rules: matrix products."""

import torch

from ingot.dtype import i64
from ingot.errors import UnsupportedError
from ingot.load.aten.builder import AtenBuilder, Number, Tensor, from_torch
from ingot.load.aten.registry import aten


def product_of(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    """numpy's matmul: a vector on the left is a row, on the right a column, and that axis leaves the result."""
    left = b.reshape(x, (1, *b.shape(x))) if b.rank(x) == 1 else x
    right = b.reshape(y, (*b.shape(y), 1)) if b.rank(y) == 1 else y
    result = b.add("matmul", left, right)
    shape = list(b.shape(result))
    if b.rank(y) == 1:
        del shape[-1]
    if b.rank(x) == 1:
        del shape[-1 if b.rank(y) == 1 else -2]
    return b.reshape(result, shape)


@aten("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")
def matmul(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    return product_of(b, x, y)


@aten("linear.default")
def linear(b: AtenBuilder, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    transposed = b.permute(weight, (1, 0)) if b.rank(weight) == 2 else weight
    result = product_of(b, x, transposed)
    return result if bias is None else b.add("add", result, bias)


@aten("addmm.default", "addmv.default", "baddbmm.default")
def addmm(b: AtenBuilder, bias: Tensor, x: Tensor, y: Tensor, beta: Number = 1, alpha: Number = 1) -> Tensor:
    result = product_of(b, x, y)
    if alpha != 1:
        result = b.add("mul", result, b.scalar(alpha, b.dtype(result)))
    if beta == 0:
        return result
    return b.add("add", result, bias if beta == 1 else b.add("mul", bias, b.scalar(beta, b.dtype(bias))))


@aten("transformers.grouped_mm_fallback.default")
def grouped_mm(b: AtenBuilder, x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows in groups that end at `ends`, each group times a matrix [k, n] of its own; rows of no group give zeros."""
    rows, experts = b.shape(x)[0], b.shape(weights)[0]
    place = b.reshape(b.add("iota", length=rows, start=0, step=1, dtype=i64), (rows, 1))
    is_behind = b.add("greater_equal", place, b.cast(ends, i64))
    group = b.add("reduce_sum", b.cast(is_behind, i64), axes=(1,), keepdims=True)
    chosen = b.add("minimum", group, b.scalar(experts - 1, i64))
    product = b.add("expert_matmul", b.reshape(x, (rows, 1, b.shape(x)[1])), chosen, b.permute(weights, (0, 2, 1)))
    is_grouped = b.add("less", group, b.scalar(experts, i64))
    return b.add("where", is_grouped, b.reshape(product, b.result.shape), b.scalar(0, b.dtype(x)))


@aten("_grouped_mm.default")
def torch_grouped_mm(
    b: AtenBuilder, x: Tensor, weights: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    if offs is None or bias is not None or b.rank(x) != 2 or b.rank(weights) != 3:
        got = f"{b.type(x)} and {b.type(weights)}"
        raise UnsupportedError(f"torch node {b.hint!r}: grouped_mm of {got}, expected groups of rows and no bias")
    return b.cast(grouped_mm(b, x, weights, offs), b.dtype(x) if out_dtype is None else from_torch(out_dtype))

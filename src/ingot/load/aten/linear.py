"""Rules for matrix products, distances and determinants."""

from collections.abc import Sequence

import numpy as np
import torch

from ingot.errors import UnsupportedError
from ingot.ir.dtype import i64
from ingot.load.aten.builder import AtenBuilder, Number, Tensor, element_count, from_torch
from ingot.load.aten.reduce import linalg_vector_norm, root
from ingot.load.aten.registry import aten

MAX_ROWS_APART = 25  # whose distances torch computes one by one, and not by a product of matrices


def product_of(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    """Multiply as numpy's matmul: a vector is a row on the left, a column on the right, and its axis is dropped from
    the result.
    """
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


@aten("bilinear.default")
def bilinear(b: AtenBuilder, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x^T W[o] y for every o: the products with x of all W at once, and with y row by row."""
    lead, (outputs, left, right) = b.shape(x)[:-1], b.shape(weight)
    rows = element_count(lead)
    result = b.reshape(_bilinear(b, b.reshape(x, (rows, left)), weight, b.reshape(y, (rows, right))), (*lead, outputs))
    return result if bias is None else b.add("add", result, bias)


@aten("_trilinear.default")
def trilinear(
    b: AtenBuilder, x: Tensor, weight: Tensor, y: Tensor, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """Handle the form that torch decomposes `bilinear` to; leave any other form to torch's decomposition."""
    if [*map(list, (expand1, expand2, expand3, sumdim))] != [[1, 3], [0], [1, 2], [2, 3]]:
        return NotImplemented
    return _bilinear(b, x, weight, y)


def _bilinear(b: AtenBuilder, x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    """x [n,i], weight [o,i,j], y [n,j] -> [n,o]."""
    outputs, left, right = b.shape(weight)
    wide = b.add("matmul", x, b.reshape(b.permute(weight, (1, 0, 2)), (left, outputs * right)))
    rows = b.shape(y)[0]
    column = b.reshape(y, (rows, right, 1))
    return b.reshape(b.add("matmul", b.reshape(wide, (rows, outputs, right)), column), (rows, outputs))


@aten("_euclidean_dist.default")
def euclidean_dist(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    """Compute |x|^2 - 2 x^T y + |y|^2, as torch does, with the same loss of accuracy for small distances."""
    last = b.rank(x) - 1
    sizes = [b.add("reduce_sum", b.add("mul", side, side), axes=(last,), keepdims=True) for side in (x, y)]
    both = b.add("add", sizes[0], b.permute(sizes[1], (*range(last - 1), last, last - 1)))
    product = b.add("matmul", x, y, transpose_b=True, scale=-2.0)
    return root(b, b.add("maximum", b.add("add", both, product), b.scalar(0, b.dtype(x))))


@aten("_cdist_forward.default")
def cdist(b: AtenBuilder, x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Compute the p-norm of each row of x minus each row of y.

    compute_mode: 1 and 2 select the method for p=2; 0 selects it by the number of rows.
    """
    (rows, size), others = b.shape(x)[-2:], b.shape(y)[-2]
    is_large = any(not isinstance(count, int) or count > MAX_ROWS_APART for count in (rows, others))
    if p == 2 and (compute_mode == 1 or (compute_mode != 2 and is_large)):
        return euclidean_dist(b, x, y)
    left = b.reshape(x, (*b.shape(x)[:-2], rows, 1, size))
    right = b.reshape(y, (*b.shape(y)[:-2], 1, others, size))
    return linalg_vector_norm(b, b.add("sub", left, right), p, -1)


@aten("_pdist_forward.default")
def pdist(b: AtenBuilder, x: Tensor, p: float = 2) -> Tensor:
    """Compute the p-norm of each row minus each later row."""
    rows = b.static(b.shape(x)[0], "the number of rows")
    left, right = (b.constant(side) for side in np.triu_indices(rows, 1))
    distance = b.add("sub", b.add("gather", x, left, axis=0), b.add("gather", x, right, axis=0))
    return linalg_vector_norm(b, distance, p, 1)


@aten("addbmm.default")
def addbmm(b: AtenBuilder, x: Tensor, left: Tensor, right: Tensor, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Compute beta * x + alpha * the sum of products of a batch."""
    total = b.add("reduce_sum", b.add("matmul", left, right), axes=(0,), keepdims=False)
    dtype = b.dtype(total)
    total = total if alpha == 1 else b.add("mul", total, b.scalar(alpha, dtype))
    if beta == 0:  # x may then be NaN
        return total
    return b.add("add", total, x if beta == 1 else b.add("mul", x, b.scalar(beta, dtype)))


@aten("_linalg_det.default")
def det(b: AtenBuilder, x: Tensor) -> tuple[Tensor, None, None]:
    """Return the determinant without the factors, which torch only keeps for the backward op."""
    return b.add("det", x), None, None


@aten("transformers.grouped_mm_fallback.default")
def grouped_mm(b: AtenBuilder, x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply groups of rows that end at `ends`, each by its own matrix [k, n]; rows in no group give zeros."""
    rows, experts = b.shape(x)[0], b.shape(weights)[0]
    position = b.reshape(b.add("iota", length=rows, start=0, step=1, dtype=i64), (rows, 1))
    is_behind = b.add("greater_equal", position, b.cast(ends, i64))
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

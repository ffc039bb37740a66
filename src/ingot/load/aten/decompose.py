"""Rules for matrix factorizations, and for linear systems that they solve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.errors import UnsupportedError
from ingot.ir.dim import Known
from ingot.ir.dtype import boolean, i32, i64
from ingot.load.aten.builder import AtenBuilder, Complex, Tensor, broadcast
from ingot.load.aten.registry import aten
from ingot.load.aten.shape import identity


def _transposed(b: AtenBuilder, x: Tensor) -> Tensor:
    """Transpose the matrices."""
    rank = b.rank(x)
    return b.permute(x, (*range(rank - 2), rank - 1, rank - 2))


def _solve_triangular(b: AtenBuilder, a: Tensor, x: Tensor, *, upper: bool, unit: bool = False) -> Tensor:
    return b.add("solve_triangular", a, x, upper=bool(upper), unit=bool(unit))


def _zeros(b: AtenBuilder, result: int) -> Tensor:
    """Return zeros of the type of one of several results."""
    return b.expand(b.scalar(0, b.result[result].dtype), b.result[result].shape)


# -- triangles


@aten("linalg_solve_triangular.default")
def solve_triangular(
    b: AtenBuilder, a: Tensor, x: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    if left:
        return _solve_triangular(b, a, x, upper=upper, unit=unitriangular)
    return _transposed(
        b, _solve_triangular(b, _transposed(b, a), _transposed(b, x), upper=not upper, unit=unitriangular)
    )


@aten("triangular_solve.default")
def triangular_solve(
    b: AtenBuilder, x: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    factor = _transposed(b, a) if transpose else a
    solved = _solve_triangular(b, factor, x, upper=upper != transpose, unit=unitriangular)
    return solved, b.expand(a, b.result[1].shape)


@aten("cholesky.default", "linalg_cholesky_ex.default")
def cholesky(
    b: AtenBuilder, x: Tensor, upper: bool = False, check_errors: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    factor, info = b.add("cholesky", _transposed(b, x) if upper else x)
    factor = _transposed(b, factor) if upper else factor
    return factor if b.target == "aten.cholesky.default" else (factor, info)


@aten("cholesky_solve.default")
def cholesky_solve(b: AtenBuilder, x: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = _transposed(b, factor) if upper else factor
    half = _solve_triangular(b, lower, x, upper=False)
    return _solve_triangular(b, _transposed(b, lower), half, upper=True)


@aten("cholesky_inverse.default")
def cholesky_inverse(b: AtenBuilder, factor: Tensor, upper: bool = False) -> Tensor:
    size = b.shape(factor)[-1]
    return cholesky_solve(b, identity(b, size, size, b.dtype(factor)), factor, upper)


# -- L and U


@aten("linalg_lu_factor_ex.default")
def lu_factor(
    b: AtenBuilder, x: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    if not pivot:
        raise UnsupportedError(f"torch node {b.hint!r}: got a factorisation without pivots, expected pivot=True")
    return b.add("lu_factor", x)


@aten("lu_unpack.default")
def lu_unpack(
    b: AtenBuilder, lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return P, L and U; a result that is not requested has no elements."""
    rows = b.shape(lu)[-2]
    axis, dtype = b.rank(lu) - 2, b.dtype(lu)
    permutation, lower, upper = (_zeros(b, i) for i in range(3))
    if unpack_pivots:
        order = b.add("pivoted_rows", pivots, rows=rows)
        position = b.reshape(b.add("iota", length=rows, start=0, step=1, dtype=i64), (rows, 1))
        is_there = b.add("equal", position, b.reshape(order, (*b.shape(order)[:-1], 1, rows)))
        permutation = b.cast(is_there, b.result[0].dtype)
    if unpack_data:
        steps = b.shape(pivots)[-1]
        below = b.add("trilu", b.slice(lu, axis + 1, 0, steps), k=-1, upper=False)
        lower = b.add("add", below, identity(b, rows, steps, dtype))
        upper = b.add("trilu", b.slice(lu, axis, 0, steps), k=0, upper=True)
    return permutation, lower, upper


@aten("linalg_lu.default")
def lu(b: AtenBuilder, x: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots, _ = lu_factor(b, x, pivot=pivot)
    return lu_unpack(b, factors, pivots)


@aten("linalg_lu_solve.default")
def lu_solve(
    b: AtenBuilder, lu: Tensor, pivots: Tensor, x: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    if left:
        return _solve_by_lu(b, lu, pivots, x, transpose=adjoint)
    return _transposed(b, _solve_by_lu(b, lu, pivots, _transposed(b, x), transpose=not adjoint))


def _solve_by_lu(b: AtenBuilder, lu: Tensor, pivots: Tensor, x: Tensor, *, transpose: bool = False) -> Tensor:
    """Solve A y = x, or A^T y = x, where L U are the rows of A in the order of the pivots."""
    size = b.shape(lu)[-1]
    order = b.add("pivoted_rows", pivots, rows=size)
    if not transpose:
        half = _solve_triangular(b, lu, _rows_of(b, x, order), upper=False, unit=True)
        return _solve_triangular(b, lu, half, upper=True)
    transposed = _transposed(b, lu)
    half = _solve_triangular(b, transposed, x, upper=False)
    solved = _solve_triangular(b, transposed, half, upper=True, unit=True)
    back = b.add("topk", order, k=size, axis=b.rank(order) - 1, largest=False)[1]  # the inverse of a permutation
    return _rows_of(b, solved, back)


def _rows_of(b: AtenBuilder, x: Tensor, order: Tensor) -> Tensor:
    """Reorder the rows of x [..., n, k] by the order [..., n] of their batch."""
    *batch, rows, columns = b.shape(x)
    *others, _ = b.shape(order)
    shape = (*broadcast(b.hint, batch, others), rows, columns)
    position = b.expand(b.reshape(order, (*others, rows, 1)), shape)
    return b.add("gather_elements", b.expand(x, shape), position, axis=len(shape) - 2)


@aten("_linalg_solve_ex.default")
def solve(
    b: AtenBuilder, a: Tensor, x: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A single right side, or one vector per matrix, is treated as a column."""
    is_vector = b.rank(x) == 1 or b.shape(x) == b.shape(a)[:-1]
    columns = b.reshape(x, (*b.shape(x), 1)) if is_vector else x
    if left:
        lu, pivots, info = b.add("lu_factor", a)
        solved = _solve_by_lu(b, lu, pivots, columns)
    else:
        lu, pivots, info = b.add("lu_factor", _transposed(b, a))
        solved = _solve_by_lu(b, lu, pivots, columns if is_vector else _transposed(b, columns))
        solved = solved if is_vector else _transposed(b, solved)
    return b.reshape(solved, b.result[0].shape), lu, pivots, info


@aten("linalg_inv_ex.default")
def inverse(b: AtenBuilder, x: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    size = b.shape(x)[-1]
    lu, pivots, info = b.add("lu_factor", x)
    return _solve_by_lu(b, lu, pivots, identity(b, size, size, b.dtype(x))), info


@aten("_linalg_slogdet.default")
def slogdet(b: AtenBuilder, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute it from the diagonal of U; each row exchange changes the sign of the product."""
    size, dtype, axis = b.shape(x)[-1], b.dtype(x), b.rank(x) - 2
    lu, pivots, _ = b.add("lu_factor", x)
    on_diagonal = b.cast(identity(b, size, size, i32), boolean)
    masked = b.add("where", on_diagonal, lu, b.scalar(0, dtype))
    diagonal = b.add("reduce_sum", masked, axes=(axis + 1,), keepdims=False)
    moves = b.add("not_equal", pivots, b.add("iota", length=size, start=1, step=1, dtype=i32))
    sign = b.add("where", moves, b.scalar(-1, dtype), b.scalar(1, dtype))
    sign = b.add("reduce_prod", b.add("mul", sign, b.add("sign", diagonal)), axes=(axis,), keepdims=False)
    logarithms = b.add("log", b.add("abs", diagonal))
    return sign, b.add("reduce_sum", logarithms, axes=(axis,), keepdims=False), lu, pivots


@aten("linalg_ldl_factor_ex.default")
def ldl_factor(
    b: AtenBuilder, x: Tensor, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    return b.add("ldl_factor", x)


@aten("linalg_ldl_solve.default")
def ldl_solve(b: AtenBuilder, factors: Tensor, pivots: Tensor, x: Tensor, *, hermitian: bool = False) -> Tensor:
    return b.add("ldl_solve", factors, pivots, x)


# -- Q and R


@aten("geqrf.default")
def geqrf(b: AtenBuilder, x: Tensor) -> tuple[Tensor, Tensor]:
    return b.add("qr_factor", x)


@aten("linalg_householder_product.default")
def householder_product(b: AtenBuilder, vectors: Tensor, factors: Tensor) -> Tensor:
    return b.add("householder_product", vectors, factors)


@aten("linalg_qr.default")
def qr(b: AtenBuilder, x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Q has as many columns as R has rows: all, or as many as the smaller side; with mode "r", Q is empty."""
    vectors, factors = b.add("qr_factor", x)
    axis = b.rank(x) - 2
    size = b.shape(x)[axis] if mode == "complete" else b.shape(factors)[-1]
    upper = b.add("trilu", b.slice(vectors, axis, 0, size), k=0, upper=True)
    if mode == "r":
        return _zeros(b, 0), upper
    return b.add("householder_product", _columns(b, vectors, size), factors), upper


def _columns(b: AtenBuilder, x: Tensor, size: Known) -> Tensor:
    """Return the first columns of matrices, padded with zero columns."""
    axis, count = b.rank(x) - 1, b.static(b.shape(x)[-1], "the number of columns")
    wanted = b.static(size, "the number of columns")
    if wanted <= count:
        return b.slice(x, axis, 0, wanted)
    more = b.expand(b.scalar(0, b.dtype(x)), (*b.shape(x)[:-1], wanted - count))
    return b.add("concat", x, more, axis=axis)


@aten("ormqr.default")
def ormqr(
    b: AtenBuilder, vectors: Tensor, factors: Tensor, x: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """Multiply by the full, square Q."""
    rows = b.shape(vectors)[-2]
    product = b.add("householder_product", _columns(b, vectors, rows), factors)
    product = _transposed(b, product) if transpose else product
    return b.add("matmul", product, x) if left else b.add("matmul", x, product)


# -- eigenvalues and singular values


@aten("_linalg_eigh.default")
def eigh(b: AtenBuilder, x: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    values, vectors = b.add("eigh", x if UPLO.upper() == "L" else _transposed(b, x))
    return values, vectors if compute_v else _zeros(b, 1)


@aten("linalg_eig.default", is_complex=True)
def eig(b: AtenBuilder, x: Tensor | Complex) -> tuple[Complex, Complex]:
    if isinstance(x, Complex):
        raise UnsupportedError(f"torch node {b.hint!r}: got eigenvalues of a complex matrix, expected a real one")
    real, imaginary, vectors, rotation = b.add("eig", x)
    return Complex(real, imaginary), Complex(vectors, rotation)


@aten("_linalg_svd.default")
def svd(
    b: AtenBuilder, x: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    left, values, right = b.add("svd", x, full=bool(full_matrices and compute_uv))
    return (left, values, right) if compute_uv else (_zeros(b, 0), values, _zeros(b, 2))


@aten("linalg_pinv.atol_rtol_tensor")
def pinv(
    b: AtenBuilder, x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    """Compute the pseudoinverse without singular values, or eigenvalues, up to the tolerance."""
    shape, dtype, axis = b.shape(x), b.dtype(x), b.rank(x) - 2
    if 0 in shape:
        return b.expand(b.scalar(0, dtype), b.result.shape)
    if hermitian:
        values, right = b.add("eigh", x)
        left = right
    else:
        left, values, transposed = b.add("svd", x, full=False)
        right = _transposed(b, transposed)
    sizes = b.add("abs", values)
    largest = b.add("reduce_max", sizes, axes=(axis,), keepdims=True)
    is_kept = b.add("greater", sizes, _least(b, largest, shape, atol, rtol))
    inverses = b.add("where", is_kept, b.add("reciprocal", values), b.scalar(0, dtype))
    scaled = b.add("mul", right, b.reshape(inverses, (*b.shape(inverses)[:-1], 1, b.shape(inverses)[-1])))
    return b.add("matmul", scaled, _transposed(b, left))


def _least(b: AtenBuilder, largest: Tensor, shape: Sequence[Known], atol: Tensor | None, rtol: Tensor | None) -> Tensor:
    """Return the threshold of values: absolute, or relative to the largest; the relative tolerance is 0 by default if
    an absolute one is given.
    """
    dtype = b.dtype(largest)
    sizes = [b.static(size, "the size of a matrix") for size in shape[-2:]]
    usual = b.scalar(float(np.finfo(dtype.numpy).eps) * max(sizes), dtype)
    zero = b.scalar(0, dtype)
    amount = zero if atol is None else b.cast(b.reshape(atol, (*b.shape(atol), 1)), dtype)
    if rtol is not None:
        share = b.cast(b.reshape(rtol, (*b.shape(rtol), 1)), dtype)
    else:
        share = usual if atol is None else b.add("where", b.add("greater", amount, zero), zero, usual)
    return b.add("maximum", amount, b.add("mul", share, largest))


@aten("linalg_matrix_exp.default")
def matrix_exp(b: AtenBuilder, x: Tensor) -> Tensor:
    return b.add("matrix_exp", x)

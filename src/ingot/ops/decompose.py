"""Matrix factorizations and solvers of linear equations. They are computed in float64 and rounded once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot.errors import InputError, ShapeError
from ingot.ir.dim import Dim, minimum
from ingot.ir.dtype import f16, f32, i32, i64
from ingot.ir.graph import Index, TensorType
from ingot.ops.define import Size, broadcast_shapes, expect_kind, op, sample, unify

_TOLERANCE = {f32: 1e-5, f16: 1e-2}
_SQUARE = (sample("x[3,3]"), sample("x[2,4,5,5]"), sample("x[1,1]"), sample("x[0,3,3]"), sample("x[2,0,0]"))
_ANY = (sample("x[4,3]"), sample("x[2,3,5]"), sample("x[1,1]"), sample("x[0,3,2]"), sample("x[2,0,3]"))
_TERMS = 18  # of the series of exp, which is exact in float64 up to a norm of 1/2
_PIVOT_RATIO = (1 + math.sqrt(17)) / 8


def _expect_matrices(name: str, x: TensorType, *, is_square: bool = False) -> tuple[tuple[Dim, ...], Dim, Dim]:
    """Return the batch, rows and columns of a float type of rank 2 or more. Raises ShapeError."""
    expect_kind(name, x, "f")
    if x.rank < 2:
        raise ShapeError(f"{name}: rank too low, got {x}, expected 2 or more")
    if is_square:
        unify(f"{name} of {x}", x.shape[-2], x.shape[-1])
    return x.shape[:-2], x.shape[-2], x.shape[-1]


def _smaller(rows: Dim, columns: Dim) -> Dim:
    """Return the smaller of two dims, or None if one is unknown."""
    return None if rows is None or columns is None else minimum(rows, columns)


def _stacked(x: np.ndarray) -> np.ndarray:
    """Copy a batch of matrices to float64 [count, rows, columns]."""
    return x.astype(np.float64).reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _converged(name: str, function: Callable[..., Any], x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Compute factors with an iterative numpy function. Raises InputError if it does not converge."""
    if not np.isfinite(x).all():
        raise InputError(f"{name}: got a matrix with an infinity or NaN, expected finite numbers")
    try:
        return tuple(part.astype(x.dtype) for part in function(x.astype(np.float64)))
    except np.linalg.LinAlgError as error:
        raise InputError(f"{name}: got {error}, expected a matrix whose steps converge") from error


def _infer_cholesky(x: TensorType) -> tuple[TensorType, TensorType]:
    batch, _, _ = _expect_matrices("cholesky", x, is_square=True)
    return x, TensorType(i32, batch)


@op(infer=_infer_cholesky, outputs=2, tolerance=_TOLERANCE, samples=_SQUARE)
def cholesky(x):
    """The lower triangular L with x = L L^T, and the number of the first failing row, or 0.

    x [..., n, n] is symmetric: its upper triangle is not read. If L does not exist, the failing row and the following
    rows are NaN.
    """
    a = np.tril(_stacked(x))
    info = np.zeros(len(a), np.int32)
    for j in range(a.shape[1]):
        pivot = a[:, j, j] - (a[:, j, :j] ** 2).sum(-1)
        info[(info == 0) & ~(pivot > 0)] = j + 1
        a[:, j, j] = np.sqrt(np.where(info == 0, pivot, np.nan))
        subcolumn = a[:, j + 1 :, j] - np.matmul(a[:, j + 1 :, :j], a[:, j, :j, None])[..., 0]
        a[:, j + 1 :, j] = subcolumn / a[:, j, j, None]
    rows = np.arange(a.shape[1])[None, :, None]
    a = np.where((info > 0)[:, None, None] & (rows >= info[:, None, None] - 1), np.nan, a)
    return np.tril(a).reshape(x.shape).astype(x.dtype), info.reshape(x.shape[:-2])


def _infer_lu(x: TensorType) -> tuple[TensorType, TensorType, TensorType]:
    batch, rows, columns = _expect_matrices("lu_factor", x)
    return x, TensorType(i32, (*batch, _smaller(rows, columns))), TensorType(i32, batch)


@op(infer=_infer_lu, outputs=3, tolerance=_TOLERANCE, samples=_ANY)
def lu_factor(x):
    """L without its diagonal of ones below U, the row from 1 that each row was exchanged with, and the first
    zero of U.

    x [..., m, n]; pivots i32 [..., min(m, n)], as in LAPACK; the last result, i32 [...], is 0 without a zero.
    """
    a = _stacked(x)
    count, steps = len(a), min(a.shape[1:])
    pivots, info, each = np.zeros((count, steps), np.int32), np.zeros(count, np.int32), np.arange(count)
    for j in range(steps):
        pivot_row = j + np.argmax(np.abs(a[:, j:, j]), axis=1)
        pivots[:, j] = pivot_row + 1
        a[each, j], a[each, pivot_row] = a[each, pivot_row], a[each, j].copy()
        pivot = a[:, j, j]
        info[(info == 0) & (pivot == 0)] = j + 1
        a[:, j + 1 :, j] /= np.where(pivot == 0, 1, pivot)[:, None]
        a[:, j + 1 :, j + 1 :] -= a[:, j + 1 :, j, None] * a[:, j, None, j + 1 :]
    batch = x.shape[:-2]
    return a.reshape(x.shape).astype(x.dtype), pivots.reshape(*batch, steps), info.reshape(batch)


def _infer_pivoted(pivots: TensorType, *, rows: Any) -> TensorType:
    if pivots.dtype is not i32 or pivots.rank < 1:
        raise ShapeError(f"pivoted_rows: bad pivots, got {pivots}, expected i32 of rank 1 or more")
    if isinstance(rows, int) and isinstance(pivots.shape[-1], int) and rows < pivots.shape[-1]:
        raise ShapeError(f"pivoted_rows: too few rows, got {rows}, expected {pivots.shape[-1]} or more")
    return TensorType(i64, (*pivots.shape[:-1], rows))


@op(
    infer=_infer_pivoted,
    addresses={"pivots": Index(lambda pivots, *, rows: range(1, rows + 1))},
    samples=[
        sample("p:i32>1<5[3]", rows=4), sample("p:i32>1<3[2,3,2]", rows=2), sample("p:i32>1<2[0,1]", rows=1),
        sample("p:i32>1<2[2,0]", rows=3), sample("p:i32>1<2[2,0]", rows=0),
    ],
)  # fmt: skip
def pivoted_rows(pivots, *, rows: Size):
    """The original index of each row after rows i and pivots[i] - 1 are exchanged, in order of i."""
    flat = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    order, each = np.tile(np.arange(rows), (len(flat), 1)), np.arange(len(flat))
    for i in range(flat.shape[1]):
        pivot_row = flat[:, i] - 1
        order[each, i], order[each, pivot_row] = order[each, pivot_row], order[each, i].copy()
    return order.reshape(*pivots.shape[:-1], rows)


def _infer_triangular(a: TensorType, x: TensorType, *, upper: bool, unit: bool) -> TensorType:
    batch, size, _ = _expect_matrices("solve_triangular", a, is_square=True)
    others, rows, columns = _expect_matrices("solve_triangular", x)
    where = f"solve_triangular of {a} and {x}"
    if a.dtype is not x.dtype:
        raise ShapeError(f"{where}: dtypes differ, got {a.dtype} and {x.dtype}")
    return TensorType(x.dtype, (*broadcast_shapes(where, batch, others), unify(where, rows, size), columns))


@op(
    infer=_infer_triangular,
    tolerance=_TOLERANCE,
    domain=(0.5, 2.0),
    samples=[
        sample("a[3,3] x[3,2]", upper=False, unit=False),
        sample("a[2,1,4,4] x[3,4,5]", upper=True, unit=False),
        sample("a[4,4] x[3,4,1]", upper=False, unit=True),
        sample("a[0,3,3] x[0,3,2]", upper=True, unit=True),
        sample("a[0,0] x[0,2]", upper=True, unit=False),
    ],
)
def solve_triangular(a, x, *, upper: bool, unit: bool):
    """The y with a y = x, where a is triangular, with a unit diagonal if `unit`.

    a [..., n, n], of which the other triangle is not read; x [..., n, k]; batches broadcast. A zero on the diagonal
    gives infinities or NaN.
    """
    size = a.shape[-1]
    batch = np.broadcast_shapes(a.shape[:-2], x.shape[:-2])
    wide, y = a.astype(np.float64), np.broadcast_to(x, (*batch, *x.shape[-2:])).astype(np.float64)
    for i in reversed(range(size)) if upper else range(size):
        done = slice(i + 1, size) if upper else slice(0, i)
        y[..., i : i + 1, :] -= np.matmul(wide[..., i : i + 1, done], y[..., done, :])
        if not unit:
            y[..., i : i + 1, :] /= wide[..., i : i + 1, i : i + 1]
    return y.astype(x.dtype)


def _infer_qr(x: TensorType) -> tuple[TensorType, TensorType]:
    batch, rows, columns = _expect_matrices("qr_factor", x)
    return x, TensorType(x.dtype, (*batch, _smaller(rows, columns)))


@op(infer=_infer_qr, outputs=2, tolerance=_TOLERANCE, samples=_ANY)
def qr_factor(x):
    """R above the vectors of Householder's reflections, whose product is Q, and their factors, as LAPACK's geqrf."""
    steps = min(x.shape[-2:])
    if x.size == 0:
        return x.copy(), np.zeros((*x.shape[:-2], steps), x.dtype)
    vectors, factors = np.linalg.qr(_stacked(x), mode="raw")
    vectors = np.swapaxes(vectors, -1, -2).reshape(x.shape)
    return vectors.astype(x.dtype), factors.reshape(*x.shape[:-2], steps).astype(x.dtype)


def _infer_householder(vectors: TensorType, factors: TensorType) -> TensorType:
    batch, rows, columns = _expect_matrices("householder_product", vectors)
    where = f"householder_product of {vectors} and {factors}"
    if factors.dtype is not vectors.dtype or factors.rank != vectors.rank - 1:
        raise ShapeError(f"{where}: factors do not fit, expected {vectors.dtype} of rank {vectors.rank - 1}")
    for left, right in zip(batch, factors.shape[:-1], strict=True):
        unify(where, left, right)
    sizes = (rows, columns, factors.shape[-1])
    if all(isinstance(size, int) for size in sizes) and not sizes[0] >= sizes[1] >= sizes[2]:  # type: ignore[operator]
        raise ShapeError(f"{where}: sizes do not fit, expected rows >= columns >= factors")
    return vectors


@op(
    infer=_infer_householder,
    outputs=1,
    tolerance=_TOLERANCE,
    samples=[
        sample("v[4,3] f[3]"), sample("v[2,3,3] f[2,2]"), sample("v[1,1] f[1]"), sample("v[0,3,2] f[0,2]"),
        sample("v[3,2] f[0]"),
    ],
)  # fmt: skip
def householder_product(vectors, factors):
    """The first columns of the product of reflections I - f v v^T, where v is 1 in its own row and 0 above.

    vectors [..., m, n], of which the part below the diagonal is read; factors [..., k]; m >= n >= k; the result is
    [..., m, n].
    """
    wide = _stacked(vectors)
    scales = factors.astype(np.float64).reshape(len(wide), factors.shape[-1])
    product = np.broadcast_to(np.eye(*wide.shape[1:]), wide.shape).copy()
    for i in reversed(range(scales.shape[1])):
        vector = np.concatenate([np.ones((len(wide), 1, 1)), wide[:, i + 1 :, i : i + 1]], axis=1)
        part = np.matmul(np.swapaxes(vector, -1, -2), product[:, i:])
        product[:, i:] -= scales[:, i, None, None] * vector * part
    return product.reshape(vectors.shape).astype(vectors.dtype)


def _infer_eigh(x: TensorType) -> tuple[TensorType, TensorType]:
    batch, size, _ = _expect_matrices("eigh", x, is_square=True)
    return TensorType(x.dtype, (*batch, size)), x


@op(infer=_infer_eigh, outputs=2, tolerance=_TOLERANCE, samples=_SQUARE)
def eigh(x):
    """The eigenvalues of a symmetric matrix in ascending order, and the eigenvectors as columns.

    The upper triangle of x [..., n, n] is not read. A matrix with an infinity or NaN is an error.
    """
    return _converged("eigh", np.linalg.eigh, x)


def _infer_eig(x: TensorType) -> tuple[TensorType, ...]:
    batch, size, _ = _expect_matrices("eig", x, is_square=True)
    values = TensorType(x.dtype, (*batch, size))
    return values, values, x, x


def _eigenvalues(x: np.ndarray) -> tuple[np.ndarray, ...]:
    values, vectors = np.linalg.eig(x)
    return values.real, values.imag, vectors.real, vectors.imag


@op(infer=_infer_eig, outputs=4, tolerance=_TOLERANCE, samples=_SQUARE)
def eig(x):
    """The eigenvalues of a square matrix, real and imaginary parts, and the eigenvectors, which are columns, likewise.

    x [..., n, n]. Each vector has the length 1. A matrix with an infinity or NaN is an error.
    """
    return _converged("eig", _eigenvalues, x)


def _infer_svd(x: TensorType, *, full: bool) -> tuple[TensorType, TensorType, TensorType]:
    batch, rows, columns = _expect_matrices("svd", x)
    least = _smaller(rows, columns)
    left, right = (rows, columns) if full else (least, least)
    shapes = ((*batch, rows, left), (*batch, least), (*batch, right, columns))
    return tuple(TensorType(x.dtype, shape) for shape in shapes)  # type: ignore[return-value]  # of three


@op(
    infer=_infer_svd,
    outputs=3,
    tolerance=_TOLERANCE,
    samples=[
        sample("x[4,3]", full=False), sample("x[2,3,4]", full=False), sample("x[4,4]", full=True),
        sample("x[0,3,2]", full=True), sample("x[2,0,3]", full=False),
    ],
)  # fmt: skip
def svd(x, *, full: bool):
    """The factors of x = U diag(s) V^T: U, the singular values s in descending order, and V^T.

    U and V have min(m, n) columns each; with `full` they are square. A matrix with an infinity or NaN is an error.
    """
    return _converged("svd", functools.partial(np.linalg.svd, full_matrices=full), x)


def _infer_matrix_exp(x: TensorType) -> TensorType:
    _expect_matrices("matrix_exp", x, is_square=True)
    return x


@op(infer=_infer_matrix_exp, tolerance=_TOLERANCE, domain=(-1.0, 1.0), samples=_SQUARE)
def matrix_exp(x):
    """The exponentials of square matrices, by scaling, Taylor's series and squaring (Moler and Van Loan, 2003)."""
    a = _stacked(x)
    norm = np.abs(a).sum(-2).max(-1, initial=0)
    halvings = np.where(np.isfinite(norm) & (norm > 0), np.frexp(norm)[1] + 1, 0).clip(0)
    a = np.ldexp(a, -halvings[:, None, None])
    total = np.broadcast_to(np.eye(a.shape[-1]), a.shape).copy()
    term = total.copy()
    for k in range(1, _TERMS + 1):
        term = np.matmul(term, a) / k
        total += term
    for step in range(halvings.max(initial=0)):
        more = halvings > step
        total[more] = np.matmul(total[more], total[more])
    return total.reshape(x.shape).astype(x.dtype)


def _infer_ldl(x: TensorType) -> tuple[TensorType, TensorType, TensorType]:
    batch, size, _ = _expect_matrices("ldl_factor", x, is_square=True)
    return x, TensorType(i32, (*batch, size)), TensorType(i32, batch)


@op(infer=_infer_ldl, outputs=3, tolerance=_TOLERANCE, samples=_SQUARE)
def ldl_factor(x):
    """L below the blocks of D with x = L D L^T, the pivots, and the number of the first zero block, or 0.

    x [..., n, n] is symmetric: its upper triangle is not read, and becomes zeros. The pivots i32 [..., n] follow
    LAPACK's sytrf: the exchanged row, counted from 1, or twice its negative for a block of two rows (Bunch and Kaufman,
    1977).
    """
    a = np.tril(_stacked(x))
    pivots, info = np.zeros(a.shape[:2], np.int32), np.zeros(len(a), np.int32)
    for each, (matrix, row) in enumerate(zip(a, pivots, strict=True)):
        info[each] = _factor_symmetric(matrix, row)
    return a.reshape(x.shape).astype(x.dtype), pivots.reshape(x.shape[:-1]), info.reshape(x.shape[:-2])


def _factor_symmetric(a: np.ndarray, pivots: np.ndarray) -> int:
    """Factorize the lower triangle of one matrix in place; return the number of the first zero block, or 0."""
    size, k, first_zero = len(a), 0, 0
    while k < size:
        pivot_row, step = _symmetric_pivot(a, k)
        last_row = k + step - 1
        _exchange(a, last_row, pivot_row, k, step)
        trailing = slice(k + step, size)
        columns, block = a[trailing, k : k + step].copy(), a[k : k + step, k : k + step]
        block = block + np.tril(block, -1).T
        if step == 1 and block[0, 0] == 0:
            first_zero = first_zero or k + 1
        else:
            scaled = columns / block if step == 1 else np.matmul(columns, _inverse_of_two(block))
            a[trailing, trailing] -= np.tril(np.matmul(scaled, columns.T))
            a[trailing, k : k + step] = scaled
        pivots[k : k + step] = pivot_row + 1 if step == 1 else -(pivot_row + 1)
        k += step
    return first_zero


def _inverse_of_two(block: np.ndarray) -> np.ndarray:
    (p, q), (_, r) = block
    return np.array([[r, -q], [-q, p]]) / (p * r - q * q)


def _symmetric_pivot(a: np.ndarray, k: int) -> tuple[int, int]:
    """Return the pivot row for row k (or k + 1), and the number of rows of the block."""
    own, subcolumn = abs(a[k, k]), np.abs(a[k + 1 :, k])
    largest = subcolumn.max(initial=0)
    if not max(own, largest) > 0 or own >= _PIVOT_RATIO * largest:
        return k, 1
    row = k + 1 + int(np.argmax(subcolumn))
    in_row = max(np.abs(a[row, k:row]).max(initial=0), np.abs(a[row + 1 :, row]).max(initial=0))
    if own >= _PIVOT_RATIO * largest * (largest / in_row):
        return k, 1
    return row, 1 if abs(a[row, row]) >= _PIVOT_RATIO * in_row else 2


def _exchange(a: np.ndarray, last_row: int, pivot_row: int, k: int, step: int) -> None:
    """Exchange rows and columns of the lower triangle from k on."""
    if last_row == pivot_row:
        return
    a[pivot_row + 1 :, [last_row, pivot_row]] = a[pivot_row + 1 :, [pivot_row, last_row]]
    between = a[last_row + 1 : pivot_row, last_row].copy()
    a[last_row + 1 : pivot_row, last_row] = a[pivot_row, last_row + 1 : pivot_row]
    a[pivot_row, last_row + 1 : pivot_row] = between
    a[[last_row, pivot_row], [last_row, pivot_row]] = a[[pivot_row, last_row], [pivot_row, last_row]]
    if step == 2:
        a[[k + 1, pivot_row], k] = a[[pivot_row, k + 1], k]


def _infer_ldl_solve(factors: TensorType, pivots: TensorType, x: TensorType) -> TensorType:
    batch, size, _ = _expect_matrices("ldl_solve", factors, is_square=True)
    others, rows, columns = _expect_matrices("ldl_solve", x)
    where = f"ldl_solve of {factors}, {pivots} and {x}"
    if factors.dtype is not x.dtype or pivots.dtype is not i32 or pivots.rank != factors.rank - 1:
        raise ShapeError(f"{where}: operands do not fit, expected one dtype and i32 of rank {factors.rank - 1}")
    for left, right in zip(pivots.shape, factors.shape, strict=False):
        unify(where, left, right)
    return TensorType(x.dtype, (*broadcast_shapes(where, batch, others), unify(where, rows, size), columns))


@op(
    infer=_infer_ldl_solve,
    addresses={"pivots": "`_blocks_of` checks the range of each number, and pairs them"},
    tolerance=_TOLERANCE,
    domain=(0.5, 2.0),
    samples=[
        sample("f[1,1] p:i32>1<2[1] x[1,2]"), sample("f[2,1,1] p:i32>1<2[2,1] x[3,2,1,4]"),
        sample("f[2,2] p:i32>-2<-1[2] x[2,1]"), sample("f[0,3,3] p:i32[0,3] x[0,3,2]"),
    ],
)  # fmt: skip
def ldl_solve(factors, pivots, x):
    """The y with L D L^T y = x for the factors and pivots of `ldl_factor`; batches broadcast.

    factors [..., n, n]; pivots i32 [..., n], an error unless `ldl_factor` can produce them; x [..., n, k].
    """
    size = factors.shape[-1]
    batch = np.broadcast_shapes(factors.shape[:-2], x.shape[:-2])
    wide = _stacked(np.broadcast_to(factors, (*batch, size, size)))
    pivot_rows = np.broadcast_to(pivots, (*batch, size)).reshape(len(wide), size)
    y = _stacked(np.broadcast_to(x, (*batch, *x.shape[-2:])))
    for matrix, row, columns in zip(wide, pivot_rows, y, strict=True):
        blocks = _blocks_of(row)
        for k, step, pivot_row in blocks:
            last, trailing = k + step - 1, slice(k + step, size)
            columns[[last, pivot_row]] = columns[[pivot_row, last]]
            columns[trailing] -= np.matmul(matrix[trailing, k : k + step], columns[k : k + step])
            block = matrix[k : k + step, k : k + step]
            block = np.tril(block) + np.tril(block, -1).T
            part = columns[k : k + step]
            columns[k : k + step] = part / block if step == 1 else np.matmul(_inverse_of_two(block), part)
        for k, step, pivot_row in reversed(blocks):
            last, trailing = k + step - 1, slice(k + step, size)
            columns[k : k + step] -= np.matmul(matrix[trailing, k : k + step].T, columns[trailing])
            columns[[last, pivot_row]] = columns[[pivot_row, last]]
    return y.reshape(*batch, *x.shape[-2:]).astype(x.dtype)


def _blocks_of(pivots: np.ndarray) -> list[tuple[int, int, int]]:
    """Return, for each block, its first row, its number of rows, and the row exchanged with its last row.

    Raises InputError if the pivots belong to no factorization.
    """
    blocks, k, size = [], 0, len(pivots)
    while k < size:
        pivot = int(pivots[k])
        step = 1 if pivot > 0 else 2
        if not k + step <= abs(pivot) <= size or (step == 2 and int(pivots[k + 1]) != pivot):
            raise InputError(f"ldl_solve: bad pivot of row {k}, got {pivot}, expected one of `ldl_factor`")
        blocks.append((k, step, abs(pivot) - 1))
        k += step
    return blocks

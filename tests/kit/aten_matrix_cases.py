"""Cases as in `aten_cases`: factorisations of matrices, and systems of equations.

What a factorisation leaves open, such as the signs of singular vectors, is compared by products that do not.
"""

import torch

from aten_cases import A, case, floats

L = torch.linalg


def positive(*shape: int) -> torch.Tensor:
    """Symmetric matrices with eigenvalues above 1/2."""
    x = floats(*shape, shape[-1])
    return x @ x.mT + torch.eye(shape[-1]) / 2


@case(positive(2, 4), floats(4, 3), floats(2, 4, 3))
def cholesky_factors(x, y, each):
    upper = A.linalg_cholesky_ex.default(x, upper=True)
    indefinite = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    return {
        "plain": L.cholesky(x), "upper": upper[0], "info": upper[1],
        "old": A.cholesky.default(x), "old_upper": A.cholesky.default(x.double(), True),
        "failed": A.linalg_cholesky_ex.default(indefinite)[1],
        "solved": torch.cholesky_solve(y, L.cholesky(x[0])),
        "solved_each": torch.cholesky_solve(y, L.cholesky(x).mT, upper=True),
        "inverse": torch.cholesky_inverse(L.cholesky(x[1])),
        "inverse_upper": torch.cholesky_inverse(L.cholesky(x).mT, upper=True),
        "triangle": L.solve_triangular(x, each, upper=False),
        "triangle_right": L.solve_triangular(x, each.mT, upper=True, left=False),
        "triangle_unit": L.solve_triangular(x[0], each, upper=True, unitriangular=True),
        "triangle_old": torch.triangular_solve(y, x[0])[0],
        "triangle_transposed": torch.triangular_solve(each, x, upper=False, transpose=True)[0],
        "triangle_coefficient": torch.triangular_solve(y, x, unitriangular=True)[1],
    }  # fmt: skip


@case(floats(2, 4, 4), floats(4, 3), floats(5, 3), floats(2, 3, 5), floats(2, 4))
def lu_factors(x, y, tall, wide, vectors):
    lu, pivots = torch.linalg.lu_factor(x)
    results = {
        "lu": lu, "pivots": pivots, "info": A.linalg_lu_factor_ex.default(x)[2],
        "solve": L.solve(x, y.expand(2, 4, 3)), "solve_one": L.solve(x[0], y), "solve_vector": L.solve(x[0], y[:, 0]),
        "solve_vectors": L.solve(x, vectors), "solve_right": L.solve(x, y.mT.expand(2, 3, 4), left=False),
        "inverse": L.inv(x), "inverse_none": L.inv(x[:, :0, :0]), "inverse_old": torch.inverse(x[0].double()),
        "no_pivots": A.linalg_inv_ex.default(torch.zeros(2, 2))[1],
        "sign": L.slogdet(x)[0], "logarithm": L.slogdet(x)[1], "sign_none": L.slogdet(x[:, :0, :0])[0],
        "matrix_power": L.matrix_power(x, -2),
        "tensor_solve": L.tensorsolve(x[0].reshape(2, 2, 4), y[:, 0].reshape(2, 2)),
    }  # fmt: skip
    for left in (True, False):
        for adjoint in (True, False):
            side = y if left else y.mT
            results[f"lu_solve_{left}_{adjoint}"] = L.lu_solve(lu, pivots, side, left=left, adjoint=adjoint)
    for name, matrix in {"square": x, "tall": tall, "wide": wide}.items():
        for part, value in zip("plu", L.lu(matrix), strict=True):
            results[f"{name}_{part}"] = value
    results["unpacked"] = torch.lu_unpack(lu, pivots, unpack_data=False)[0]
    results["unpacked_upper"] = torch.lu_unpack(lu, pivots, unpack_pivots=False)[2]
    symmetric = x + x.mT
    factors, places, info = L.ldl_factor_ex(symmetric)
    zeros = L.ldl_factor_ex(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    return results | {
        "ldl": factors, "ldl_pivots": places, "ldl_info": info, "ldl_solved": L.ldl_solve(factors, places, y),
        "ldl_zeros": zeros[0], "ldl_zeros_pivots": zeros[1],
    }  # fmt: skip


@case(floats(5, 3), floats(2, 3, 4), floats(5, 2), floats(2, 5))
def qr_factors(tall, wide, y, row):
    vectors, factors = torch.geqrf(tall)
    results = {
        "vectors": vectors, "factors": factors, "householder": L.householder_product(vectors, factors),
        "upper": L.qr(tall, mode="r")[1],
    }  # fmt: skip
    for name, matrix in {"tall": tall, "wide": wide}.items():
        for mode in ("reduced", "complete"):
            q, r = L.qr(matrix, mode=mode)
            results |= {f"{name}_{mode}_q": q, f"{name}_{mode}_r": r}
    for transposed in (True, False):
        results[f"left_{transposed}"] = torch.ormqr(vectors, factors, y, transpose=transposed)
        results[f"right_{transposed}"] = torch.ormqr(vectors, factors, row, left=False, transpose=transposed)
    return results


@case(floats(2, 4, 4), positive(3))
def eigenvalues_of_any(x, symmetric):
    results = {"none": torch.view_as_real(L.eigvals(x[:, :0, :0]))}
    for name, matrix in {"each": x, "one": x[0], "real": symmetric}.items():
        values, vectors = L.eig(matrix)
        results |= {
            name: torch.view_as_real(values), f"{name}_lengths": vectors.abs(),
            f"{name}_apart": torch.view_as_real(matrix.to(vectors.dtype) @ vectors - vectors * values[..., None, :]),
            f"{name}_alone": torch.view_as_real(L.eigvals(matrix)),
        }  # fmt: skip
    return results


@case(positive(2, 4), floats(5, 3), floats(2, 3, 4), torch.tensor(0.5), torch.tensor([0.1, 0.2]))
def spectral(symmetric, tall, wide, amount, share):
    values, vectors = L.eigh(symmetric)
    other, transposed = L.eigh(symmetric, UPLO="U")
    results = {
        "values": values, "rebuilt": vectors * values[:, None] @ vectors.mT, "upper": other,
        "rebuilt_upper": transposed * other[:, None] @ transposed.mT, "alone": L.eigvalsh(symmetric),
        "singular": L.svdvals(wide), "whole": L.svd(tall)[0].abs().sum() * 0,
        "rank": L.matrix_rank(tall), "condition": L.cond(symmetric), "nuclear": L.matrix_norm(tall, "nuc"),
        "pinv": L.pinv(tall), "pinv_wide": L.pinv(wide), "pinv_hermitian": L.pinv(symmetric, hermitian=True),
        "pinv_amount": L.pinv(tall, atol=amount), "pinv_share": L.pinv(wide, rtol=share),
        "pinv_both": L.pinv(wide, atol=amount, rtol=share), "pinv_none": L.pinv(wide[:0]),
        "exp": L.matrix_exp(symmetric), "exp_large": L.matrix_exp(symmetric[0] * -9),
        "exp_zero": L.matrix_exp(tall[:0, :0]),
    }  # fmt: skip
    for name, matrix in {"tall": tall, "wide": wide}.items():
        left, sizes, right = L.svd(matrix, full_matrices=False)
        results |= {f"{name}_sizes": sizes, f"{name}_rebuilt": left * sizes[..., None, :] @ right}
    return results

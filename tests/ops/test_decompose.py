"""Factorisations against torch's, which are LAPACK's, and matrices that have none."""

import numpy as np
import pytest
import torch

import ingot.ops  # noqa: F401
from ingot.errors import InputError, ShapeError
from ingot.ir.dtype import DTYPES
from ingot.ir.graph import OPS, Graph, TensorType
from ingot.ops.define import compute

NAN = float("nan")


def apply(name, *operands, **attributes):
    return compute(OPS[name], operands, attributes)


def matrices(size, *, rank=None, is_whole=False):
    """[40, size, size] of few distinct numbers, so that pivots are equal and zero, or of any."""
    random = np.random.default_rng(size)
    if is_whole:
        return random.integers(-1, 2, (40, size, size)).astype(np.float64)
    return random.standard_normal((40, size, rank or size)) @ random.standard_normal((40, rank or size, size))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_symmetric_factors_have_the_pivots_of_lapack(size):
    for x in (matrices(size), matrices(size, is_whole=True) + np.eye(size) / 8):
        x = x + np.swapaxes(x, -1, -2)
        factors, pivots, info = apply("ldl_factor", x)
        expected = torch.linalg.ldl_factor_ex(torch.from_numpy(x))
        assert np.array_equal(pivots, expected[1].numpy())
        assert np.array_equal(info, expected[2].numpy())
        np.testing.assert_allclose(factors, expected[0].numpy(), rtol=1e-9, atol=1e-9)
        y = np.random.default_rng(1).standard_normal((40, size, 2))
        solved = apply("ldl_solve", factors, pivots, np.matmul(x, y))[0]
        good = np.abs(np.linalg.det(x)) > 0.1
        np.testing.assert_allclose(solved[good], y[good], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_rows_are_exchanged_as_lapack_does_it(size):
    for x in (matrices(size), matrices(size, rank=1), matrices(size, is_whole=True)):
        lu, pivots, info = apply("lu_factor", x)
        expected = torch.linalg.lu_factor_ex(torch.from_numpy(x))
        order = apply("pivoted_rows", pivots, rows=size)[0]
        lower, upper = np.tril(lu, -1) + np.eye(size), np.triu(lu)
        np.testing.assert_allclose(np.take_along_axis(x, order[..., None], 1), lower @ upper, atol=1e-12)
        if np.linalg.matrix_rank(x).min() == size:
            assert np.array_equal(pivots, expected[1].numpy())
            assert np.array_equal(info, expected[2].numpy())


def test_a_matrix_without_a_factor_reports_the_failing_block():
    x = np.array([np.eye(3), np.diag([1.0, -1.0, 2.0]), np.full((3, 3), NAN), np.zeros((3, 3))])
    factors, info = apply("cholesky", x)
    expected = torch.linalg.cholesky_ex(torch.from_numpy(x))
    assert np.array_equal(info, expected[1].numpy())
    assert np.isnan(factors).any((1, 2)).tolist() == [False, True, True, True]
    assert np.array_equal(factors[1], [[1, 0, 0], [NAN, NAN, 0], [NAN, NAN, NAN]], equal_nan=True)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_eigenvectors_of_any_square_matrix_keep_their_directions(size):
    x = np.concatenate([matrices(size), matrices(size, is_whole=True)])
    real, imaginary, *parts = apply("eig", x)
    values, vectors = real + 1j * imaginary, parts[0] + 1j * parts[1]
    np.testing.assert_allclose(x @ vectors, values[:, None] * vectors, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-9)
    expected = torch.linalg.eigvals(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(values.prod(1), expected.prod(1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [0.0, 1e-20, 1.0, 300.0, 1e20, NAN])
def test_exponentials_of_any_size(size):
    x = np.array([[[0.0, size], [-size, 0.0]], [[-size, size], [0.0, -size]]])
    expected = torch.linalg.matrix_exp(torch.from_numpy(x)).numpy()
    if size == 1e20:  # torch's steps overflow
        x, expected = x[1:], np.zeros((1, 2, 2))
    np.testing.assert_allclose(apply("matrix_exp", x)[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "operands", "attributes", "message"),
    [
        ("eigh", [np.array([[NAN]])], {}, "eigh: got a matrix with an infinity or NaN"),
        ("eig", [np.array([[-np.inf]])], {}, "eig: got a matrix with an infinity or NaN"),
        ("svd", [np.array([[np.inf, 1.0]])], {"full": False}, "svd: got a matrix with an infinity or NaN"),
        *(
            ("ldl_solve", [np.eye(2), np.array(pivots, np.int32), np.eye(2)], {}, "ldl_solve: bad pivot of row")
            for pivots in ([0, 1], [1, 3], [2, 1], [1, -2], [-2, -1], [-1, -1], [-(2**31), -(2**31)])
        ),
    ],
)
def test_what_is_refused(name, operands, attributes, message):
    with pytest.raises(InputError, match=message):
        apply(name, *operands, **attributes)


@pytest.mark.parametrize(
    ("name", "types", "attributes"),
    [
        ("cholesky", ["f64[2,3]"], {}),
        ("lu_factor", ["f64[3]"], {}),
        ("eigh", ["i32[3,3]"], {}),
        ("eig", ["f64[2,3]"], {}),
        ("pivoted_rows", ["i32[3]"], {"rows": 2}),
        ("pivoted_rows", ["f64[3]"], {"rows": 3}),
        ("solve_triangular", ["f64[3,3]", "f64[2,3]"], {"upper": True, "unit": False}),
        ("solve_triangular", ["f64[3,3]", "f32[3,3]"], {"upper": True, "unit": False}),
        ("householder_product", ["f64[3,2]", "f64[3]"], {}),
        ("householder_product", ["f64[2,3]", "f64[2]"], {}),
        ("householder_product", ["f64[3,2]", "f64[2,2]"], {}),
        ("ldl_solve", ["f64[3,3]", "i32[2]", "f64[3,1]"], {}),
    ],
)
def test_operands_that_do_not_fit(name, types, attributes):
    graph = Graph("g")
    names = []
    for i, text in enumerate(types):
        word, _, dims = text.removesuffix("]").partition("[")
        names.append(graph.add_input(f"x{i}", TensorType(DTYPES[word], tuple(map(int, dims.split(","))))))
    with pytest.raises(ShapeError, match=name):
        graph.add(name, names, **attributes)

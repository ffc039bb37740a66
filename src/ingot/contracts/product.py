"""Checks of products of rows with a constant matrix. Shapes are (k, n), for one row, or (m, k, n)."""

from __future__ import annotations

import numpy as np

from ingot.contracts.check import SUBJECTS, Array, Feeds, Shape, Subject, check, expect, expect_bits, expect_close
from ingot.ir.graph import Graph


def _feeds(shape: Shape, rng: np.random.Generator) -> Feeds:
    m, k, n = shape if len(shape) == 3 else (1, *shape)
    return {"x": rng.standard_normal((m, k), np.float32), "w": rng.standard_normal((k, n), np.float32)}


def _write(graph: Graph, names: dict[str, str], shape: Shape) -> str:
    return graph.add("matmul", [names["x"], names["w"]]).output


SUBJECTS["matvec"] = SUBJECTS["gemm"] = Subject(_feeds, _write, lambda feeds: feeds["x"] @ feeds["w"], ("w",))


def _product(x: Array, w: Array, threads: int = 1) -> Array:
    return SUBJECTS["gemm"].run((*x.shape, w.shape[1]), {"x": x, "w": w}, threads)


def _bound(tolerance: float, feeds: Feeds) -> Array:
    x, w = (np.abs(feeds[name].astype(np.float64)) for name in ("x", "w"))
    return np.asarray(tolerance * (x @ w))


@check
def product_error(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Compare with float64."""
    feeds = _feeds(shape, rng)
    expect_close(_product(feeds["x"], feeds["w"]), SUBJECTS[subject].exact(feeds), _bound(tolerance, feeds))


@check
def product_scales(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Scale x by 8 and by -1: the result scales exactly."""
    feeds = _feeds(shape, rng)
    y = _product(feeds["x"], feeds["w"])
    for factor in (np.float32(8), np.float32(-1)):
        expect_bits(_product(feeds["x"] * factor, feeds["w"]), y * factor, f"with x times {factor}")


@check
def product_picks(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Multiply rows with a single 1: the result is the row of w."""
    feeds = _feeds(shape, rng)
    x = np.zeros_like(feeds["x"])
    columns = rng.integers(0, x.shape[1], len(x))
    x[np.arange(len(x)), columns] = 1
    expect(np.array_equal(_product(x, feeds["w"]), feeds["w"][columns]), "the result is not the row of w")


@check
def product_keeps_nan(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Put a NaN into w: 0 times NaN is NaN, and other columns do not change."""
    feeds = _feeds(shape, rng)
    k, n = feeds["w"].shape
    feeds["w"][k // 2, n // 2] = np.nan
    y = _product(np.zeros_like(feeds["x"]), feeds["w"])
    expect(np.isnan(y[:, n // 2]).all() and not np.delete(y, n // 2, 1).any(), "a NaN of w is lost, or spreads")


@check
def product_bits(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Compare the bits of a row alone, among other rows, and on two threads."""
    feeds = _feeds(shape, rng)
    x, w = feeds["x"], feeds["w"]
    y = _product(x, w)
    rows = rng.standard_normal((64, x.shape[1]), np.float32)
    rows[37] = x[-1]
    expect_bits(_product(rows, w)[37], y[-1], "among 64 rows")
    expect_bits(_product(x[-1:], w)[0], y[-1], "alone")
    expect_bits(_product(x, w, 2), y, "on two threads")

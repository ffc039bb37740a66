"""Checks of softmax, layer norm and RMS norm over the rows of x. Shapes are (rows, columns)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot.contracts.check import SUBJECTS, Array, Feeds, Shape, Subject, check, expect, expect_bits, expect_close
from ingot.ir.graph import Graph

_EPS = 1e-5


def _feeds(shape: Shape, rng: np.random.Generator) -> Feeds:
    return {"x": rng.standard_normal(shape, np.float32) * np.float32(3)}


def _softmax(feeds: Feeds) -> Array:
    power = np.exp(feeds["x"] - feeds["x"].max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))


def _layer_norm(feeds: Feeds) -> Array:
    x = feeds["x"]
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + _EPS))


def _rms_norm(feeds: Feeds) -> Array:
    x = feeds["x"]
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + _EPS))


def _subject(op: str, formula: Callable[[Feeds], Array], **attributes: Any) -> Subject:
    def write(graph: Graph, names: dict[str, str], shape: Shape) -> str:
        return graph.add(op, [names["x"]], **attributes).output

    return Subject(_feeds, write, formula)


_SOFTMAX = _subject("softmax", _softmax, axis=1)
_LAYER_NORM, _RMS_NORM = _subject("layer_norm", _layer_norm, eps=_EPS), _subject("rms_norm", _rms_norm, eps=_EPS)
_EXACT_RMS_NORM = _subject("rms_norm", _rms_norm, eps=0.0)
_ALL = (_SOFTMAX, _LAYER_NORM, _RMS_NORM)
SUBJECTS["norms"] = _SOFTMAX


@check
def norms_error(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Compare with float64."""
    feeds = _feeds(shape, rng)
    for each in _ALL:
        exact = each.exact(feeds)
        expect_close(each.run(shape, feeds), exact, tolerance * np.maximum(1, np.abs(exact)))


@check
def softmax_sums(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Check that the results are not negative and sum to 1."""
    y = _SOFTMAX.run(shape, _feeds(shape, rng))
    expect((y >= 0).all(), "a result is below 0")
    expect_close(y.sum(-1, dtype=np.float64), np.ones(shape[0]), tolerance)


@check
def softmax_shifts(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Compare softmax of x and x + 8, for multiples of 1/256, so that the addition is exact."""
    x = np.round(_feeds(shape, rng)["x"] * 256) / np.float32(256)
    expect_close(_SOFTMAX.run(shape, {"x": x + np.float32(8)}), _SOFTMAX.run(shape, {"x": x}), tolerance)


@check
def softmax_large(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Use values at both limits of f32: results stay finite."""
    x = _feeds(shape, rng)["x"]
    x[:, 0], x[:, -1] = -3e38, 3e38
    expect(np.isfinite(_SOFTMAX.run(shape, {"x": x})).all(), "a result is not finite")


@check
def layer_norm_moments(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Check the mean of each row, and its variance, which eps reduces."""
    x = _feeds(shape, rng)["x"]
    y = _LAYER_NORM.run(shape, {"x": x}).astype(np.float64)
    spread = x.astype(np.float64).var(-1)
    expect_close(y.mean(-1), np.zeros(shape[0]), tolerance)
    expect_close(y.var(-1), spread / (spread + _EPS), 4 * tolerance)


@check
def rms_norm_scales(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Check that signs stay, and that without eps x and 4 x give the same bits."""
    feeds = _feeds(shape, rng)
    y = _EXACT_RMS_NORM.run(shape, feeds)
    expect((np.sign(y) == np.sign(feeds["x"])).all(), "a sign changes")
    expect_bits(_EXACT_RMS_NORM.run(shape, {"x": 4 * feeds["x"]}), y, "with x times 4")


@check
def norms_bits(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Compare the bits of a row alone, and of all rows on two threads."""
    feeds = _feeds(shape, rng)
    for each in _ALL:
        y = each.run(shape, feeds)
        expect_bits(each.run((1, shape[1]), {"x": feeds["x"][-1:]})[0], y[-1], "alone")
        expect_bits(each.run(shape, feeds, 2), y, "on two threads")

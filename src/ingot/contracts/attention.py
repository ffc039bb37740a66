"""Checks of attention with a boolean mask. Shapes are (heads, rows, keys, width)."""

from __future__ import annotations

import numpy as np

from ingot.contracts.check import SUBJECTS, Array, Feeds, Shape, Subject, check, expect, expect_bits, expect_close
from ingot.ir.graph import Graph


def _feeds(shape: Shape, rng: np.random.Generator) -> Feeds:
    heads, rows, keys, width = shape
    sizes = {"q": rows, "k": keys, "v": keys}
    feeds = {name: rng.standard_normal((1, heads, size, width), np.float32) for name, size in sizes.items()}
    mask = rng.random((1, 1, rows, keys)) < 0.8
    mask[..., 0] = True
    return feeds | {"mask": mask}


def _write(graph: Graph, names: dict[str, str], shape: Shape) -> str:
    return graph.add("attention", [names[name] for name in ("q", "k", "v", "mask")], scale=shape[3] ** -0.5).output


def _formula(feeds: Feeds) -> Array:
    q, k, v, mask = (feeds[name] for name in ("q", "k", "v", "mask"))
    scores = np.where(mask, q @ np.swapaxes(k, -1, -2) * q.dtype.type(q.shape[-1] ** -0.5), -np.inf)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True) @ v)


SUBJECTS["attention"] = _SUBJECT = Subject(_feeds, _write, _formula)


@check
def attention_error(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Compare with float64."""
    feeds = _feeds(shape, rng)
    expect_close(_SUBJECT.run(shape, feeds), _SUBJECT.exact(feeds), tolerance * np.abs(feeds["v"]).max())


@check
def attention_between(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Check that results are between the least and the largest value: the weights sum to 1."""
    feeds = _feeds(shape, rng)
    y, v = _SUBJECT.run(shape, feeds), feeds["v"]
    slack = tolerance * np.abs(v).max()
    low, high = v.min(2, keepdims=True) - slack, v.max(2, keepdims=True) + slack
    expect(((y >= low) & (y <= high)).all(), "a result is outside the range of the values")


@check
def attention_hides(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Change keys and values that the mask hides from every row: the bits do not change."""
    feeds = _feeds(shape, rng)
    feeds["mask"] = np.broadcast_to(feeds["mask"][:, :, :1], feeds["mask"].shape).copy()
    hidden = ~feeds["mask"][0, 0, 0]
    other = {name: each.copy() for name, each in feeds.items()}
    other["k"][:, :, hidden] = 3e3
    other["v"][:, :, hidden] = -7e5
    expect_bits(_SUBJECT.run(shape, other), _SUBJECT.run(shape, feeds), "with other hidden keys")


@check
def attention_order(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Permute keys, values and columns of the mask together: the result stays within the tolerance."""
    feeds = _feeds(shape, rng)
    order = rng.permutation(shape[2])
    permuted = feeds | {"k": feeds["k"][:, :, order], "v": feeds["v"][:, :, order], "mask": feeds["mask"][..., order]}
    allowed = 2 * tolerance * np.abs(feeds["v"]).max()
    expect_close(_SUBJECT.run(shape, permuted), _SUBJECT.run(shape, feeds), allowed)


@check
def attention_blind(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Mask all keys of a row: its result is zeros."""
    feeds = _feeds(shape, rng)
    feeds["mask"][0, 0, shape[1] // 2] = False
    expect(not _SUBJECT.run(shape, feeds)[:, :, shape[1] // 2].any(), "a fully masked row is not zeros")


@check
def attention_large(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Use scores in the thousands, for which exp overflows: results stay finite."""
    feeds = _feeds(shape, rng)
    feeds["q"] *= np.float32(1e4)
    expect(np.isfinite(_SUBJECT.run(shape, feeds)).all(), "a result is not finite")


@check
def attention_bits(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Compare the bits on two threads, and as the second element of a batch."""
    feeds = _feeds(shape, rng)
    y = _SUBJECT.run(shape, feeds)
    expect_bits(_SUBJECT.run(shape, feeds, 2), y, "on two threads")
    both = {name: np.concatenate([each[:, :, ::-1], each]) for name, each in feeds.items()}
    expect_bits(_SUBJECT.run(shape, both)[1:], y, "behind another batch")

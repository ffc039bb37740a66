"""Checks of convolutions with a constant filter. Shapes are (channels, filters, side, window, groups)."""

from __future__ import annotations

import numpy as np

from ingot.contracts.check import SUBJECTS, Array, Feeds, Shape, Subject, check, expect, expect_bits, expect_close
from ingot.ir.graph import Graph


def _feeds(shape: Shape, rng: np.random.Generator) -> Feeds:
    channels, filters, side, window, groups = shape
    x = rng.standard_normal((1, channels, side, side), np.float32)
    return {"x": x, "w": rng.standard_normal((filters, channels // groups, window, window), np.float32)}


def _write(graph: Graph, names: dict[str, str], shape: Shape) -> str:
    *_, window, groups = shape
    pads = (window // 2,) * 4
    node = graph.add("conv", [names["x"], names["w"]], strides=(1, 1), pads=pads, dilations=(1, 1), groups=groups)
    return node.output


def _formula(feeds: Feeds) -> Array:
    """Compute by im2col and a product for each group."""
    x, w = feeds["x"], feeds["w"]
    (count, channels, *_), (filters, depth, window, _), pad = x.shape, w.shape, w.shape[2] // 2
    groups = channels // depth
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), (2, 3))
    height, width = windows.shape[2:4]
    columns = windows.reshape(count, groups, depth, height, width, window, window).transpose(0, 1, 2, 5, 6, 3, 4)
    columns = columns.reshape(count, groups, depth * window * window, height * width)
    y = w.reshape(groups, filters // groups, -1) @ columns
    return np.asarray(y.reshape(count, filters, height, width))


SUBJECTS["conv"] = _SUBJECT = Subject(_feeds, _write, _formula, ("w",))


@check
def conv_error(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Compare with float64."""
    feeds = _feeds(shape, rng)
    allowed = tolerance * _SUBJECT.exact({name: np.abs(each) for name, each in feeds.items()})
    expect_close(_SUBJECT.run(shape, feeds), _SUBJECT.exact(feeds), allowed + 1e-30)


@check
def conv_scales(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Scale x by 8: the result scales exactly."""
    feeds = _feeds(shape, rng)
    wide = feeds | {"x": 8 * feeds["x"]}
    expect_bits(_SUBJECT.run(shape, wide), 8 * _SUBJECT.run(shape, feeds), "with x times 8")


@check
def conv_impulse(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Convolve a single 1: the result is the flipped filter around it."""
    channels, filters, side, window, groups = shape
    feeds = _feeds(shape, rng)
    channel, middle, pad = int(rng.integers(channels)), side // 2, window // 2
    feeds["x"] = np.zeros_like(feeds["x"])
    feeds["x"][0, channel, middle, middle] = 1
    wanted = np.zeros((filters, side, side))
    depth, each = channels // groups, filters // groups
    own = slice(channel // depth * each, (channel // depth + 1) * each)
    around = slice(middle - pad, middle - pad + window)
    wanted[own, around, around] = feeds["w"][own, channel % depth, ::-1, ::-1]
    largest = np.abs(feeds["w"]).max()
    expect_close(_SUBJECT.run(shape, feeds)[0], wanted, tolerance * largest * window * window)


@check
def conv_zeros(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Convolve an image of zeros: the result is zeros."""
    feeds = _feeds(shape, rng)
    expect(not _SUBJECT.run(shape, feeds | {"x": np.zeros_like(feeds["x"])}).any(), "zeros do not give zeros")


@check
def conv_bits(subject: str, shape: Shape, tolerance: float, rng: np.random.Generator) -> None:
    """Compare the bits on two threads, and as the second image of a batch."""
    feeds = _feeds(shape, rng)
    y = _SUBJECT.run(shape, feeds)
    expect_bits(_SUBJECT.run(shape, feeds, 2), y, "on two threads")
    both = feeds | {"x": np.concatenate([feeds["x"][:, ::-1], feeds["x"]])}
    expect_bits(_SUBJECT.run(shape, both)[1:], y, "behind another image")

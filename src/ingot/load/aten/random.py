"""Rules: random ops. They draw anew in each run, from the state of `draw_uniform`; see docs/random.md."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from ingot.dim import Known
from ingot.dtype import f64
from ingot.errors import UnsupportedError
from ingot.load.aten.builder import AtenBuilder, AtenPen, Number, Tensor
from ingot.load.aten.registry import aten
from ingot.load.draws import drawing_state, normal


def _uniform(b: AtenBuilder, shape: Sequence[Known]) -> Tensor:
    """f64 in 0..1. Raises UnsupportedError in a graph of torch.compile, which draws from torch's generator."""
    if not b.draws:
        raise UnsupportedError(f"torch node {b.hint!r}: random numbers, expected torch.export, not torch.compile")
    name = b.graph.fresh(f"{b.hint}.draw_uniform")
    return b.add("draw_uniform", drawing_state(b.graph), shape=tuple(shape), stream=zlib.crc32(name.encode()))


def _between(b: AtenBuilder, low: float, high: float, *, is_whole: bool = False) -> Tensor:
    pen = AtenPen(b)
    drawn = pen.add(pen.mul(_uniform(b, b.result.shape), float(high - low)), float(low))
    return b.cast(pen.floor(drawn) if is_whole else drawn, b.result.dtype)


def _normal(b: AtenBuilder, mean: Tensor | float, deviation: Tensor | float) -> Tensor:
    pen, shape = AtenPen(b), b.result.shape
    pairs = _uniform(b, (2, *shape))
    drawn = normal(pen, *(b.reshape(b.slice(pairs, 0, i, i + 1), shape) for i in range(2)))
    mean, deviation = (b.cast(x, f64) if isinstance(x, str) else float(x) for x in (mean, deviation))
    return b.cast(pen.add(pen.mul(drawn, deviation), mean), b.result.dtype)


def _below(b: AtenBuilder, probability: Tensor) -> Tensor:
    return b.cast(b.add("less", _uniform(b, b.result.shape), b.cast(probability, f64)), b.result.dtype)


@aten("rand.default", "rand_like.default")
def rand(b: AtenBuilder, *_: Any, **__: Any) -> Tensor:
    return _between(b, 0, 1)


@aten("uniform.default")
def uniform(b: AtenBuilder, x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return _between(b, low, high)


@aten("randint.default", "randint_like.default")
def randint(b: AtenBuilder, first: Any, second: Any, **_: Any) -> Tensor:
    """randint(high, size) and randint_like(x, high)."""
    high = b.static(second if isinstance(first, str) else first, "the bound of random integers")
    return _between(b, 0, high, is_whole=True)


@aten("randint.low", "randint_like.low_dtype")
def randint_from(b: AtenBuilder, first: Any, second: Any, third: Any, **_: Any) -> Tensor:
    """randint(low, high, size) and randint_like(x, low, high)."""
    bounds = (second, third) if isinstance(first, str) else (first, second)
    low, high = (b.static(bound, "the bound of random integers") for bound in bounds)
    return _between(b, low, high, is_whole=True)


@aten("randn.default", "randn_like.default")
def randn(b: AtenBuilder, *_: Any, **__: Any) -> Tensor:
    return _normal(b, 0.0, 1.0)


@aten("normal_functional.default")
def normal_over(b: AtenBuilder, x: Tensor, mean: float = 0.0, deviation: float = 1.0, **_: Any) -> Tensor:
    return _normal(b, mean, deviation)


@aten("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal_of(b: AtenBuilder, mean: Tensor | float, deviation: Tensor | float = 1.0, **_: Any) -> Tensor:
    return _normal(b, mean, deviation)


@aten("bernoulli.default")
def bernoulli(b: AtenBuilder, x: Tensor, **_: Any) -> Tensor:
    return _below(b, x)


@aten("bernoulli.p")
def bernoulli_of(b: AtenBuilder, x: Tensor, p: Number = 0.5, **_: Any) -> Tensor:
    return _below(b, b.scalar(p, f64))


@aten("exponential.default")
def exponential(b: AtenBuilder, x: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    pen = AtenPen(b)
    drawn = pen.log(pen.add(pen.neg(_uniform(b, b.result.shape)), 1.0))
    return b.cast(pen.mul(drawn, -1.0 / rate), b.result.dtype)


@aten("multinomial.default")
def multinomial(b: AtenBuilder, x: Tensor, count: Known, replacement: bool = False, **_: Any) -> Tensor:
    """For each draw, how many running sums of the weights it reaches; a last axis of one class is always drawn."""
    if not replacement and count != 1:
        raise UnsupportedError(f"torch node {b.hint!r}: {count} draws without replacement, expected replacement=True")
    pen, (*batch, classes) = AtenPen(b), b.shape(x)
    axis = len(batch)
    sums = pen.cumsum(b.cast(x, f64), axis=axis)
    total = b.slice(sums, axis, classes - 1, classes)
    drawn = pen.mul(_uniform(b, (*batch, count)), b.expand(total, (*batch, count)))
    reached = pen.less_equal(
        b.reshape(b.slice(sums, axis, 0, classes - 1), (*batch, 1, classes - 1)), b.reshape(drawn, (*batch, count, 1))
    )
    return pen.reduce_sum(b.cast(reached, b.result.dtype), axes=(axis + 1,), keepdims=False)

"""Rules for random ops. They draw new numbers in each run, from the state of `draw_uniform`; see docs/random.md."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

from ingot.errors import UnsupportedError
from ingot.ir.dim import Known
from ingot.ir.dtype import DType, f64
from ingot.load.aten.builder import AtenBuilder, AtenGraphBuilder, Number, Tensor
from ingot.load.aten.registry import aten
from ingot.load.draws import drawing_state, normal

_SMALL = 2.0**-60  # what keeps a class of weight 0 from 0 / 0, below any exponential number but 0


def _uniform(b: AtenBuilder, shape: Sequence[Known]) -> Tensor:
    """Return uniform f64 numbers in 0..1. Raises UnsupportedError in a graph of torch.compile, which uses torch's
    generator.
    """
    if not b.draws:
        raise UnsupportedError(f"torch node {b.hint!r}: random numbers, expected torch.export, not torch.compile")
    name = b.graph.fresh(f"{b.hint}.draw_uniform")
    return b.add("draw_uniform", drawing_state(b.graph), shape=tuple(shape), stream=zlib.crc32(name.encode()))


def _between(b: AtenBuilder, low: float, high: float, *, is_whole: bool = False) -> Tensor:
    build = AtenGraphBuilder(b)
    drawn = build.add(build.mul(_uniform(b, b.result.shape), float(high - low)), float(low))
    return b.cast(build.floor(drawn) if is_whole else drawn, b.result.dtype)


def _exponential(b: AtenBuilder, shape: Sequence[Known]) -> Tensor:
    """Return exponential f64 numbers of rate 1: 0 or more."""
    build = AtenGraphBuilder(b)
    return build.neg(build.log(build.add(build.neg(_uniform(b, shape)), 1.0)))


def _normal(b: AtenBuilder, mean: Tensor | float, deviation: Tensor | float, dtype: DType | None = None) -> Tensor:
    """Return normal numbers, in the dtype of the result unless another is given."""
    build, shape = AtenGraphBuilder(b), b.result.shape
    pairs = _uniform(b, (2, *shape))
    drawn = normal(build, *(b.reshape(b.slice(pairs, 0, i, i + 1), shape) for i in range(2)))
    mean, deviation = (b.cast(x, f64) if isinstance(x, str) else float(x) for x in (mean, deviation))
    return b.cast(build.add(build.mul(drawn, deviation), mean), dtype or b.result.dtype)


def _below(b: AtenBuilder, probability: Tensor) -> Tensor:
    return b.cast(b.add("less", _uniform(b, b.result.shape), b.cast(probability, f64)), b.result.dtype)


@aten("rand.default", "rand_like.default", "uniform.default")
def uniform(b: AtenBuilder, _: Any, low: float = 0.0, high: float = 1.0, **__: Any) -> Tensor:
    """Draw uniform numbers of a size, or of the size of a tensor."""
    return _between(b, low, high)


@aten("randint.default", "randint_like.default")
def randint(b: AtenBuilder, first: Any, second: Any, **_: Any) -> Tensor:
    """Handle randint(high, size) and randint_like(x, high)."""
    high = b.static(second if isinstance(first, str) else first, "the bound of random integers")
    return _between(b, 0, high, is_whole=True)


@aten("randint.low", "randint_like.low_dtype")
def randint_from(b: AtenBuilder, first: Any, second: Any, third: Any, **_: Any) -> Tensor:
    """Handle randint(low, high, size) and randint_like(x, low, high)."""
    bounds = (second, third) if isinstance(first, str) else (first, second)
    low, high = (b.static(bound, "the bound of random integers") for bound in bounds)
    return _between(b, low, high, is_whole=True)


@aten("randn.default", "randn_like.default", "normal_functional.default")
def normal_over(b: AtenBuilder, _: Any, mean: float = 0.0, deviation: float = 1.0, **__: Any) -> Tensor:
    """Draw normal numbers of a size, or of the size of a tensor."""
    return _normal(b, mean, deviation)


@aten("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "normal.float_float")
def normal_of(b: AtenBuilder, mean: Tensor | float, deviation: Tensor | float = 1.0, *_: Any, **__: Any) -> Tensor:
    return _normal(b, mean, deviation)


@aten("bernoulli.default")
def bernoulli(b: AtenBuilder, x: Tensor, **_: Any) -> Tensor:
    return _below(b, x)


@aten("log_normal.default")
def log_normal(b: AtenBuilder, x: Tensor, mean: float = 1.0, deviation: float = 2.0, **_: Any) -> Tensor:
    return b.cast(b.add("exp", _normal(b, mean, deviation, f64)), b.result.dtype)


@aten("cauchy.default")
def cauchy(b: AtenBuilder, x: Tensor, median: float = 0.0, width: float = 1.0, **_: Any) -> Tensor:
    """Compute Cauchy numbers as the tangent of a uniform angle in -pi/2..pi/2."""
    build = AtenGraphBuilder(b)
    angle = build.mul(build.add(_uniform(b, b.result.shape), -0.5), math.pi)
    drawn = build.div(build.sin(angle), build.cos(angle))
    return b.cast(build.add(build.mul(drawn, float(width)), float(median)), b.result.dtype)


@aten("geometric.default")
def geometric(b: AtenBuilder, x: Tensor, p: float, **_: Any) -> Tensor:
    """Count the trials until the first success: 1 or more. Devroye, "Non-Uniform Random Variate Generation", 1986,
    chapter X.2.
    """
    build = AtenGraphBuilder(b)
    rate = -math.log1p(-p) if p < 1 else math.inf
    return b.cast(build.maximum(build.ceil(build.mul(_exponential(b, b.result.shape), 1 / rate)), 1.0), b.result.dtype)


@aten("randperm.default")
def randperm(b: AtenBuilder, count: Known, **_: Any) -> Tensor:
    """Sort random numbers, and return their order."""
    order = b.add("topk", _uniform(b, (count,)), k=count, axis=0, largest=False)[1]
    return b.cast(order, b.result.dtype)


@aten("rrelu_with_noise_functional.default")
def rrelu(
    b: AtenBuilder, x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return x, multiplied where negative by a random slope in training, by the mean slope otherwise; and the random
    slopes.
    """
    positive = b.add("greater", x, b.scalar(0, b.dtype(x)))
    if not training:
        slope = b.scalar((lower + upper) / 2, b.dtype(x))
        return b.add("where", positive, x, b.add("mul", x, slope)), noise
    build = AtenGraphBuilder(b)
    drawn = build.add(build.mul(_uniform(b, b.shape(x)), float(upper - lower)), float(lower))
    slopes = b.add("where", positive, b.scalar(1, b.dtype(x)), b.cast(drawn, b.dtype(x)))
    return b.add("mul", x, slopes), slopes


@aten("bernoulli.Tensor")
def bernoulli_each(b: AtenBuilder, x: Tensor, p: Tensor, **_: Any) -> Tensor:
    return _below(b, p)


@aten("bernoulli.p")
def bernoulli_of(b: AtenBuilder, x: Tensor, p: Number = 0.5, **_: Any) -> Tensor:
    return _below(b, b.scalar(p, f64))


@aten("exponential.default")
def exponential(b: AtenBuilder, x: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    build = AtenGraphBuilder(b)
    return b.cast(build.mul(_exponential(b, b.result.shape), 1.0 / rate), b.result.dtype)


@aten("multinomial.default")
def multinomial(b: AtenBuilder, x: Tensor, count: Known, replacement: bool = False, **_: Any) -> Tensor:
    """With replacement, count for each sample the cumulative weights up to it; a last class is always possible.

    Without replacement, return the largest weights after dividing each by an exponential number. Efraimidis and
    Spirakis, "Weighted random sampling with a reservoir", 2006.
    """
    build, (*batch, classes) = AtenGraphBuilder(b), b.shape(x)
    axis = len(batch)
    if not replacement:
        spread = build.add(_exponential(b, b.shape(x)), _SMALL)
        return b.add("topk", build.div(b.cast(x, f64), spread), k=count, axis=axis, largest=True)[1]
    sums = build.cumsum(b.cast(x, f64), axis=axis)
    total = b.slice(sums, axis, classes - 1, classes)
    drawn = build.mul(_uniform(b, (*batch, count)), b.expand(total, (*batch, count)))
    reached = build.less_equal(
        b.reshape(b.slice(sums, axis, 0, classes - 1), (*batch, 1, classes - 1)), b.reshape(drawn, (*batch, count, 1))
    )
    return build.reduce_sum(b.cast(reached, b.result.dtype), axes=(axis + 1,), keepdims=False)

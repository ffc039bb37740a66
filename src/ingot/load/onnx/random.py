"""Rules for random ops. With a seed they use `random_uniform`, whose numbers are the same in each run; without a seed
`draw_uniform`, whose numbers differ in each run; see docs/random.md.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from ingot.ir.dtype import DType, boolean, f64
from ingot.load.draws import normal
from ingot.load.onnx.builder import OnnxBuilder
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, is_negative
from ingot.load.onnx.tensors import count_elements


def _uniform(call: Call, shape: Sequence[Size]) -> str:
    """Return uniform random numbers as f64 in 0..1."""
    if any(is_negative(d) for d in shape):
        raise call.malformed(f"negative dim, got {list(shape)}")
    count_elements([d for d in shape if isinstance(d, int)], "random numbers")
    if "seed" in call.attributes:
        return call.build.random_uniform(shape=tuple(shape), seed=_seed(call))
    draws = call.build.facts.draws
    assert draws is not None
    return call.build.draw_uniform(draws(), shape=tuple(shape), stream=zlib.crc32(call.outputs[0].encode()))


def random_state_of_iteration(build: OnnxBuilder, draws: str, trip: str) -> str:
    """Return the random state of one iteration of a loop, with its own seed. draws: the state of the enclosing
    graph.
    """
    distance = np.array([zlib.crc32(build.hint.encode()) * 2**30 + 1, 0])
    return build.add(draws, build.mul(build.reshape(build.add(trip, 1), shape=(1,)), distance))


def _seed(call: Call) -> int:
    seed = call.attr_int("seed") if call.op == "Dropout" else call.attr_float("seed")
    if not math.isfinite(seed):
        raise call.malformed(f"attribute 'seed' is {seed}, expected a number")
    return int(seed) % 2**32


def _shape(call: Call) -> tuple[Size, ...]:
    return call.shape(0) if call.op.endswith("Like") else call.attr_ints("shape")


def _dtype(call: Call) -> DType:
    """Return the dtype of the attribute, or of the operand."""
    if "dtype" in call.attributes:
        return call.attr_dtype("dtype")
    return call.type(0).dtype if call.op.endswith("Like") else call.attr_dtype("dtype", 1)


@onnx("RandomUniform", "RandomUniformLike")
def random_uniform(call: Call) -> str:
    low, high = call.attr_float("low", 0.0), call.attr_float("high", 1.0)
    scaled = call.build.mul(_uniform(call, _shape(call)), high - low)
    return call.cast(call.build.add(scaled, low), _dtype(call))


@onnx("RandomNormal", "RandomNormalLike")
def random_normal(call: Call) -> str:
    build, shape = call.build, _shape(call)
    pairs = _uniform(call, (2, *shape))
    drawn = normal(build, *(call.reshape(call.slice(pairs, 0, i, i + 1), shape) for i in range(2)))
    moved = build.add(build.mul(drawn, call.attr_float("scale", 1.0)), call.attr_float("mean", 0.0))
    return call.cast(moved, _dtype(call))


@onnx("Bernoulli", since=15)
def bernoulli(call: Call) -> str:
    """Return 1 where a uniform random number is below the probability."""
    drawn = call.build.less(_uniform(call, call.shape(0)), call.cast(call[0], f64))
    return call.cast(drawn, call.attr_dtype("dtype") if "dtype" in call.attributes else call.type(0).dtype)


@onnx("Multinomial")
def multinomial(call: Call) -> str:
    """Count, for each sample, the cumulative probabilities up to its random number; operand 0 holds
    log-probabilities.
    """
    build, samples = call.build, call.attr_int("sample_size", 1)
    if call.type(0).rank != 2 or samples < 1:
        raise call.malformed(f"sample_size is {samples}, operand {call.type(0)}, expected 1 or more and rank 2")
    batch, classes = call.shape(0)
    probabilities = build.softmax(call.cast(call[0], f64), axis=1)
    sums = call.reshape(call.slice(build.cumsum(probabilities, axis=1), 1, 0, classes - 1), (batch, 1, classes - 1))
    drawn = _uniform(call, (batch, samples, 1))
    dtype = call.attr_dtype("dtype", 6)
    return build.reduce_sum(call.cast(build.less_equal(sums, drawn), dtype), axes=(2,), keepdims=False)


@onnx("Dropout", since=10)
def dropout(call: Call) -> tuple[str | None, ...]:
    """Return x outside of training. In training, elements whose random number is below the ratio become 0, others are
    scaled.

    If the mode is only known at run time, the graph selects the result.
    """
    build, shape, dtype = call.build, call.shape(0), call.type(0).dtype
    training = call.single(2) if call.has(2) else np.array(False)
    if isinstance(training, np.ndarray) and not training.item():
        everything = build.expand(build.scalar(True, boolean), shape=shape) if len(call.outputs) > 1 else None
        return call[0], everything
    ratio = call.scalar(1) if call.has(1) else build.scalar(0.5, dtype)
    known = build.graph.data(ratio)
    if known is not None and not 0 <= known < 1:
        raise call.malformed(f"a ratio of {known}, expected 0 <= ratio < 1")
    mask = build.greater_equal(_uniform(call, shape), call.cast(ratio, f64))
    scaled = build.div(call[0], call.cast(build.add(build.neg(ratio), 1.0), dtype))
    y = build.where(mask, scaled, 0.0)
    if isinstance(training, np.ndarray):
        return y, mask
    return build.where(training, y, call[0]), build.logical_or(mask, build.logical_not(training))

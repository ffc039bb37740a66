"""Ops that generate elements from no operands, or from a few numbers."""

import math
from typing import Annotated, Any

import numpy as np

from ingot.errors import InputError, ShapeError
from ingot.ir.dim import Known
from ingot.ir.dtype import DType, boolean, f32, f64, i64
from ingot.ir.graph import Index, TensorType
from ingot.ops.define import Size, Sizes, expect_kind, expect_numbers, op, sample, unify
from ingot.ops.dropout import WORD, philox

DRAWS = "ingot.draws"  # the state that `draw_uniform` reads: a seed, and the number of runs so far

MAX_RANGE = 2**28  # elements of a range with bounds from data

MAX_MEASURED = 1 << 40  # elements of a value whose sizes are data

Number = Annotated[Any, Known | float]


def _infer_iota(*, length, start, step, dtype):
    if (isinstance(length, int) and length < 0) or dtype.kind == "b":
        raise ShapeError(f"iota: bad length or dtype, got {length} of {dtype}, expected 0 or more numbers")
    expect_numbers("iota", dtype, start, step)
    return TensorType(dtype, (length,))


@op(
    infer=_infer_iota,
    samples=[
        sample("", length=7, start=0, step=1, dtype=i64),
        sample("", length=5, start=-3, step=2, dtype=i64),
        sample("", length=33, start=0.5, step=-0.25, dtype=f32),
        sample("", length=0, start=0, step=1, dtype=i64),
        sample("", length=1, start=9, step=1, dtype=f32),
    ],
)
def iota(*, length: Size, start: Number, step: Number, dtype: DType):
    """start + step * i for i in 0..length-1; floats are computed in float64 and rounded once."""
    positions = np.arange(length, dtype=np.float64 if dtype.kind == "f" else dtype.numpy)
    return (positions * step + start).astype(dtype.numpy)


@op(
    infer=lambda *, values: TensorType(i64, (len(values),)),
    samples=[sample("", values=(2, 3, 5)), sample("", values=()), sample("", values=(1,))],
)
def dims(*, values: Sizes):
    """The given dims as data: i64[n]."""
    return np.array(values, np.int64)


def _infer_arange(start, stop, step):
    expect_kind("arange", start, "fiu")
    if any(t.rank or t.dtype is not start.dtype for t in (start, stop, step)):
        raise ShapeError(f"arange: bad operands, got {start}, {stop}, {step}, expected numbers of one dtype")
    return TensorType(start.dtype, (None,))


@op(
    infer=_infer_arange,
    samples=[
        sample("a:i64>-9<0[] b:i64<9[] c:i64>1<4[]"),
        sample("a:i64<9[] b:i64>-9<0[] c:i64>-3<-1[]"),
        sample("a:i64>3<9[] b:i64<3[] c:i64>1<2[]"),
        sample("a>-2<0[] b>1<2[] c>0.1<0.4[]"),
    ],
)
def arange(start, stop, step):
    """start, start + step, ... below stop, or above it for a negative step; floats in float64, rounded once.

    A step of 0, and a length that is NaN or above 2**28, are errors.
    """
    first, last, each = (v.item() if v.dtype.kind in "iu" else float(v) for v in (start, stop, step))
    span = (last - first) / each if each else math.nan
    if not span <= MAX_RANGE:
        raise InputError(f"arange: bad range, got {first}:{last}:{each}, expected at most {MAX_RANGE} steps")
    if start.dtype.kind in "iu":
        return np.arange(len(range(first, last, each))).astype(start.dtype) * step + start
    return (np.arange(math.ceil(max(span, 0)), dtype=np.float64) * each + first).astype(start.dtype)


@op(
    infer=lambda *, shape, seed: TensorType(f64, tuple(shape)),
    samples=[sample("", shape=(2, 5), seed=0), sample("", shape=(), seed=2**32 - 1), sample("", shape=(0, 3), seed=7)],
)
def random_uniform(*, shape: Sizes, seed: int):
    """Uniform f64 numbers in 0 <= u < 1, in row-major order, determined by a seed in 0..2**32-1.

    53 bits each of the MT19937 stream, as drawn by numpy's RandomState. Matsumoto and Nishimura, "Mersenne Twister",
    1998.
    """
    return np.random.RandomState(seed).random_sample(shape)


def _infer_draw_uniform(draws, *, shape, stream):
    if draws.dtype is not i64 or draws.rank != 1 or not 0 <= stream < WORD:
        raise ShapeError(f"draw_uniform: bad operands, got {draws} and stream {stream}, expected i64[2], 0..{WORD - 1}")
    unify("draw_uniform: seed and run", draws.shape[0], 2)
    return TensorType(f64, tuple(shape))


@op(
    infer=_infer_draw_uniform,
    addresses={"draws": "numbers"},
    samples=[
        sample("d:i64>0<9[2]", shape=(3, 67), stream=5),
        sample("d:i64>-9<0[2]", shape=(), stream=2**32 - 1),
        sample("d:i64<9[2]", shape=(0, 3), stream=0),
    ],
)
def draw_uniform(draws, *, shape: Sizes, stream: int):
    """Uniform f64 numbers in 0 <= u < 1, in row-major order, from a seed and a run number, i64[2], and a stream in
    0..2**32-1.

    53 bits each: the elements 2i and 2i + 1 are the two halves of Philox4x32-10 of the counter i (two words), the run
    and the stream (the low 32 bits of each). Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
    """
    seed, run = (int(number) % 2**64 for number in draws)
    count = math.prod(shape)
    counters = np.arange(-(-count // 2), dtype=np.uint64)
    words = np.stack([counters % np.uint64(WORD), counters // np.uint64(WORD), counters, counters])
    words[2], words[3] = run % WORD, stream
    halves = philox(words, seed).reshape(2, 2, -1)
    numbers = (halves[:, 0] >> np.uint64(5)) * 2.0**26 + (halves[:, 1] >> np.uint64(6))
    return (numbers / 2.0**53).T.reshape(-1)[:count].reshape(shape)


def _infer_measure(sizes):
    if sizes.dtype is not i64 or sizes.rank != 1 or not isinstance(sizes.shape[0], int):
        raise ShapeError(f"measure: bad sizes, got {sizes}, expected i64 [n]")
    return TensorType(boolean, (None,) * sizes.shape[0])


@op(
    infer=_infer_measure,
    addresses={"sizes": Index(lambda sizes: range(MAX_MEASURED + 1), own=True)},
    samples=[sample("s:i64>2<5[3]"), sample("s:i64<1[2]"), sample("s:i64[0]")],
)
def measure(sizes):
    """False everywhere, in the given shape: converts data to dims. It occupies the memory of one element."""
    elements = math.prod(max(int(size), 1) for size in sizes)
    if (sizes < 0).any() or elements > MAX_MEASURED:
        raise InputError(
            f"sizes out of range, got {sizes.tolist()}, expected 0 or more and a product up to {MAX_MEASURED}"
        )
    return np.broadcast_to(np.False_, tuple(sizes.tolist()))

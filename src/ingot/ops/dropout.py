"""Ops for training: dropout with counter-based random numbers, and `detach`, which stops gradients."""

import math

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import f32, f64
from ingot.ops.define import op, sample

WORD = 1 << 32
_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def threshold(rate: float) -> int:
    """Return the smallest 32-bit random word that keeps an element."""
    return math.floor(rate * WORD)


def infer_dropout(x, step, part, *, rate, seed, stream):
    numbers = [each for each in (step, part) if each is not None]
    is_number = all(each.dtype is f64 and not each.rank for each in numbers)
    if x.dtype not in (f32, f64) or not is_number or not 0 <= rate < 1:
        got = f"{x}, {', '.join(map(str, numbers))} and rate {rate}"
        raise ShapeError(f"dropout: bad operands, got {got}, expected f32 or f64, numbers f64[], 0 <= rate < 1")
    return x


def philox(words, key):
    """Apply Philox4x32-10 to counters u64 [4, n] of 32-bit words."""
    mask = np.uint64(WORD - 1)
    low, high = key % WORD, key // WORD
    for _ in range(10):
        a, b = (words[i] * np.uint64(each) for i, each in zip((0, 2), _MULTIPLIERS, strict=True))
        words = np.stack(
            [
                (b >> np.uint64(32)) ^ words[1] ^ np.uint64(low),
                b & mask,
                (a >> np.uint64(32)) ^ words[3] ^ np.uint64(high),
                a & mask,
            ]
        )
        low, high = ((each + bump) % WORD for each, bump in zip((low, high), _WEYL, strict=True))
    return words


@op(
    infer=infer_dropout,
    inplace=(0,),
    samples=[
        sample("x[5,7] s:f64>0<9[] none", rate=0.3, seed=5, stream=2),
        sample("x[2,67] s:f64>0<9[] p:f64>1<5[]", rate=0.5, seed=2**40 + 3, stream=0),
        sample("x[300] s:f64>0<9[] none", rate=0.9, seed=0, stream=1),
        sample("x[3,4] none none", rate=0.5, seed=0, stream=0),
        sample("x[] s:f64>0<9[] none", rate=0.0, seed=1, stream=0),
        sample("x[0,3] s:f64>0<9[] none", rate=0.5, seed=1, stream=0),
    ],
)
def dropout(x, step=None, part=None, *, rate: float, seed: int = 0, stream: int = 0):
    """Elements of x over 1 - rate, with a share of `rate` set to zero; x itself outside of training, without a
    step.

    The zeros depend only on the seed, the integer parts of the numbers step and part, the stream, and the position of
    an element: x is part `part` of equal parts along the first axis, and has the same zeros as in the undivided tensor.
    Srivastava et al., "Dropout", 2014; Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
    """
    if step is None:
        return x
    positions = np.arange(x.size, dtype=np.uint64) + np.uint64(0 if part is None else int(part) * x.size)
    counters = positions // np.uint64(4)
    words = np.stack([counters % np.uint64(WORD), counters // np.uint64(WORD), counters, counters])
    words[2], words[3] = int(step) % WORD, stream
    drawn = np.take_along_axis(philox(words, seed), (positions % np.uint64(4)).astype(np.int64)[None], 0)[0]
    real = x.dtype.type
    return np.where(drawn.reshape(x.shape) >= threshold(rate), x * real(1 / (1 - rate)), real(0))


@op(
    infer=lambda x: x,
    expand=lambda g, x: g.reshape(x, shape=g.type(x).shape),
    acts_on="element",
    samples=[sample("x[2,5]"), sample("x[]"), sample("x[0,3]")],
)
def detach(x):
    """x, with no gradient flowing through it."""
    return x

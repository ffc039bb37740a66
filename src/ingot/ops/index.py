"""Ops that pick elements by position."""

from typing import Literal

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import boolean, i32, i64
from ingot.ir.graph import Index, TensorType
from ingot.ops.define import Size, expect_kind, expect_within, op, sample, unify


def _expect_axis(name: str, x: TensorType, axis: int) -> None:
    if not 0 <= axis < x.rank:
        raise ShapeError(f"{name}: axis out of range, got {axis} for {x}, expected 0..{x.rank - 1}")


def _expect_indices(name: str, indices: TensorType) -> None:
    if indices.dtype not in (i64, i32):
        raise ShapeError(f"{name}: wrong dtype of indices, got {indices}, expected i64 or i32")


def _along_axis(x, *_, axis, **__) -> range:
    return range(-x.shape[axis], x.shape[axis])


_INDICES = {"indices": Index(_along_axis)}


def _infer_gather(x, indices, *, axis):
    _expect_axis("gather", x, axis)
    _expect_indices("gather", indices)
    return TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@op(
    computes=False,
    infer=_infer_gather,
    addresses=_INDICES,
    samples=[
        sample("x[7,5] i:i64>-7<7[2,3]", axis=0),
        sample("x[3,7,2] i:i64>-7<7[4]", axis=1),
        sample("x[3,7] i:i64<7[]", axis=1),
        sample("x[9] i:i64<9[2,1,3]", axis=0),
        sample("x[2,1] i:i64<1[2]", axis=1),
        sample("x[4,33] i:i64<4[0]", axis=0),
        sample("x:i64[7,2] i:i64<7[3]", axis=0),
        sample("x[7,2] i:i32<7[3]", axis=0),
    ],
)
def gather(x, indices, *, axis: int):
    """The slices of x at `indices` along an axis, replacing that axis; negative indices count from the end.

    An index outside -dim..dim-1 is an error.
    """
    return np.take(x, indices, axis)


def _infer_checked(x, *, limit, wraps, what):
    _expect_indices("checked_index", x)
    if isinstance(limit, int) and limit < 0:
        raise ShapeError(f"checked_index: bad limit, got {limit}, expected 0 or more")
    return x


@op(
    infer=_infer_checked,
    computes=False,
    inplace=(0,),
    acts_on="element",
    addresses={"x": Index(lambda x, *, limit, wraps=False, **_: range(-limit if wraps else 0, limit))},
    samples=[
        sample("x:i64<7[2,3]", limit=7, what="indices"),
        sample("x:i64>-7<7[2,3]", limit=7, wraps=True, what="indices"),
        sample("x:i32>-7<7[40]", limit=7, wraps=True, what="indices"),
        sample("x:i32<1[]", limit=1, what="indices"),
        sample("x:i64[0]", limit=0, what="indices"),
    ],
)
def checked_index(x, *, limit: Size, wraps: bool = False, what: str):
    """x, whose elements are indices below a limit: 0..limit-1, and with wraps negative ones that count from the
    end.

    The result counts from the front. An index out of range is an error that names it `what`. The op guards integers of
    a model that address elements through arithmetic, which has a result for every index.
    """
    return np.where(x < 0, x + x.dtype.type(limit), x) if wraps else x.copy()


def inverse_order(indices: np.ndarray) -> np.ndarray | None:
    """Return the indices that undo a gather along an axis; None unless `indices` is a permutation."""
    if indices.ndim != 1 or not np.array_equal(np.sort(indices), np.arange(len(indices))):
        return None
    return np.argsort(indices).astype(indices.dtype)


def _infer_gather_elements(x, indices, *, axis):
    _expect_axis("gather_elements", x, axis)
    _expect_indices("gather_elements", indices)
    pairs = zip(x.shape, indices.shape, strict=False)
    larger = any(isinstance(a, int) and isinstance(b, int) and b > a for i, (a, b) in enumerate(pairs) if i != axis)
    if indices.rank != x.rank or larger:
        raise ShapeError(f"gather_elements: indices do not fit, got {indices} on axis {axis} of {x}")
    return TensorType(x.dtype, indices.shape)


@op(
    computes=False,
    infer=_infer_gather_elements,
    addresses=_INDICES,
    samples=[
        sample("x[3,7] i:i64>-7<7[3,4]", axis=1),
        sample("x[5,7] i:i64>-5<5[2,7]", axis=0),
        sample("x[5,7] i:i64<5[2,3]", axis=0),
        sample("x[2,3,4] i:i64<3[2,5,4]", axis=1),
        sample("x[4] i:i64<4[0]", axis=0),
        sample("x:i64[2,5] i:i64<5[2,2]", axis=1),
    ],
)
def gather_elements(x, indices, *, axis: int):
    """y[i][j] = x[i][indices[i][j]] for axis 1, and so on; other dims of indices may be shorter than x's.

    Negative indices count from the end; one outside -dim..dim-1 is an error.
    """
    part = x[tuple(slice(None if i == axis else n) for i, n in enumerate(indices.shape))]
    return np.take_along_axis(part, indices.astype(np.int64), axis)


def _infer_scatter_elements(x, indices, updates, *, axis, reduction):
    name = "scatter_elements"
    _expect_axis(name, x, axis)
    _expect_indices(name, indices)
    if reduction != "none":
        expect_kind(name, x, "fiu")
    sizes = zip(x.shape, indices.shape, strict=False)
    larger = any(isinstance(a, int) and isinstance(b, int) and b > a for i, (a, b) in enumerate(sizes) if i != axis)
    if indices.rank != x.rank or updates.rank != x.rank or larger:
        raise ShapeError(f"{name}: indices or updates do not fit, got {indices} and {updates} on axis {axis} of {x}")
    if updates.dtype is not x.dtype:
        raise ShapeError(f"{name}: operands differ in dtype, got {x} and {updates}")
    for a, b in zip(indices.shape, updates.shape, strict=True):
        unify(f"{name}: indices {indices} and updates {updates}", a, b)
    return x


@op(
    infer=_infer_scatter_elements,
    addresses=_INDICES,
    inplace=(0,),
    samples=[
        sample("x[3,7] i:i64<1[3,1] u[3,1]", axis=1, reduction="none"),
        sample("x[5,7] i:i64>-5<5[1,7] u[1,7]", axis=0, reduction="none"),
        sample("x[5,7] i:i64>-5<5[4,5] u[4,5]", axis=0, reduction="add"),
        sample("x[2,3,4] i:i32<3[2,5,4] u[2,5,4]", axis=1, reduction="mul"),
        sample("x[2,3,4] i:i64<3[1,5,2] u[1,5,2]", axis=1, reduction="max"),
        sample("x:i64[6] i:i64<6[9] u:i64[9]", axis=0, reduction="min"),
        sample("x[4] i:i64<4[0] u[0]", axis=0, reduction="none"),
        sample("x:bool[4,1] i:i64<4[1,1] u:bool[1,1]", axis=0, reduction="none"),
    ],
)
def scatter_elements(x, indices, updates, *, axis: int, reduction: Literal["none", "add", "mul", "max", "min"]):
    """x with y[i][indices[i][j]] = updates[i][j] for axis 1, and so on, or both combined by `reduction`.

    With several updates of one element, "none" keeps the last. Other dims of indices may be shorter than x's. Negative
    indices count from the end; one outside -dim..dim-1 is an error. Floats are added and multiplied in float64.
    """
    wide = reduction in ("add", "mul") and x.dtype.kind not in "iu"
    y = x.astype(np.float64) if wide else x.copy()
    positions = np.ix_(*map(np.arange, indices.shape))
    positions = (*positions[:axis], indices, *positions[axis + 1 :])
    if reduction == "none":
        y[positions] = updates
        return y
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    ufunc.at(y, positions, updates.astype(y.dtype))
    return y.astype(x.dtype)


def _infer_topk(x, *, k, axis, largest):
    _expect_axis("topk", x, axis)
    dim = x.shape[axis]
    if isinstance(k, int) and (k < 0 or (isinstance(dim, int) and k > dim)):
        raise ShapeError(f"topk: bad k, got {k}, expected 0..{dim}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(x.dtype, shape), TensorType(i64, shape)


@op(
    infer=_infer_topk,
    outputs=2,
    samples=[
        sample("x[3,17]", k=5, axis=1, largest=True),
        sample("x[3,17]", k=17, axis=1, largest=False),
        sample("x[7,3]", k=1, axis=0, largest=True),
        sample("x[2,5,2]", k=0, axis=1, largest=True),
        sample("x[0,3]", k=2, axis=1, largest=True),
        sample("x:i64<4[3,9]", k=6, axis=1, largest=True),
    ],
)
def topk(x, *, k: Size, axis: int, largest: bool):
    """The k largest (or smallest) along an axis in order, and their indices; equal ones by index; NaN is largest."""
    if largest:
        # Reversed before and after, so that a stable sort keeps equal elements in index order.
        order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    indices = np.take(order, range(k), axis).astype(np.int64)
    return np.take_along_axis(x, indices, axis), indices


def _infer_repeated_ngrams(tokens, *, size, vocab):
    _expect_indices("repeated_ngrams", tokens)
    if tokens.rank != 2 or size < 1 or (isinstance(vocab, int) and vocab < 0):
        raise ShapeError(f"repeated_ngrams: got {tokens}, size {size} and vocab {vocab}, expected [rows, length], 1, 0")
    return TensorType(boolean, (tokens.shape[0], vocab))


@op(
    infer=_infer_repeated_ngrams,
    computes=False,
    addresses={"tokens": Index(lambda tokens, *, vocab, **_: range(vocab), own=True)},
    samples=[
        sample("tokens:i64<3[2,12]", size=3, vocab=5),
        sample("tokens:i32<2[5,9]", size=4, vocab=2),
        sample("tokens:i64<6[3,4]", size=1, vocab=7),
        sample("tokens:i64<3[0,3]", size=2, vocab=5),
        sample("tokens:i64<3[2,0]", size=2, vocab=5),
    ],
)
def repeated_ngrams(tokens, *, size: int, vocab: Size):
    """Whether a token after a row of tokens completes `size` adjacent tokens that the row has already: bool[rows,
    vocab].

    A token that follows an earlier occurrence of the row's last size - 1 tokens must be in 0..vocab-1.
    """
    rows, length = tokens.shape
    y = np.zeros((rows, vocab), bool)
    for row, begin in np.ndindex(rows, max(length - size + 1, 0)):
        if np.array_equal(tokens[row, begin : begin + size - 1], tokens[row, length - size + 1 :]):
            token = tokens[row, begin + size - 1]
            expect_within("tokens", token[None], range(vocab))
            y[row, token] = True
    return y

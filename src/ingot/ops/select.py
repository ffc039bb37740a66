"""Ops whose result size depends on data: a dim is unknown until a run measures it."""

from __future__ import annotations

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import boolean, f32, f64, i64
from ingot.ir.graph import TensorType
from ingot.ops.define import op, sample


@op(
    infer=lambda x: TensorType(i64, (max(x.rank, 1), None)),
    computes=False,
    samples=[sample("x:bool[3,5]"), sample("x:i64<2[7]"), sample("x:i64<2[2,0,3]"), sample("x:bool[]")],
)
def nonzero(x):
    """The positions of elements that are not 0, in row-major order: i64[rank, n]; a scalar counts as a vector."""
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)


def _infer_compress(x, condition, *, axis):
    if condition.dtype is not boolean or condition.rank != 1 or not 0 <= axis < x.rank:
        raise ShapeError(f"compress: got {condition} for axis {axis} of {x}, expected bool [n]")
    dim, n = x.shape[axis], condition.shape[0]
    if isinstance(dim, int) and isinstance(n, int) and n > dim:
        raise ShapeError(f"compress: condition too long, got {condition} for axis {axis} of {x}")
    return TensorType(x.dtype, (*x.shape[:axis], None, *x.shape[axis + 1 :]))


@op(
    infer=_infer_compress,
    computes=False,
    samples=[
        sample("x[3,5] c:bool[3]", axis=0),
        sample("x[3,5] c:bool[4]", axis=1),
        sample("x:i64[0,2] c:bool[0]", axis=0),
    ],
)
def compress(x, condition, *, axis: int):
    """The slices of x along an axis where a condition is true; beyond its end it counts as false."""
    return np.compress(condition, x, axis)


def _infer_unique(x, *, axis, in_order):
    if not 0 <= axis < x.rank:
        raise ShapeError(f"unique: axis out of range, got {axis} for {x}")
    found = TensorType(i64, (None,))
    distinct = TensorType(x.dtype, (*x.shape[:axis], None, *x.shape[axis + 1 :]))
    return distinct, found, TensorType(i64, (x.shape[axis],)), found


@op(
    infer=_infer_unique,
    addresses={"x": "numbers"},
    outputs=4,
    computes=False,
    samples=[
        sample("x:i64<4[9]", axis=0, in_order=True),
        sample("x:i64<4[9]", axis=0, in_order=False),
        sample("x:i64<2[7,2]", axis=0, in_order=True),
        sample("x:i64<2[2,9]", axis=1, in_order=False),
    ],
)
def unique(x, *, axis: int, in_order: bool):
    """The distinct slices along an axis, the first index of each, the index of each slice's value, and the
    counts.

    They are sorted, or in the order of first occurrence (`in_order`).
    """
    # numpy cannot sort objects along an axis: their indices are sorted instead
    words, indices = np.unique(x, return_inverse=True) if x.dtype == object else (None, x)
    indices = indices.reshape(x.shape)
    distinct, first, inverse, counts = np.unique(
        indices, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if in_order:
        order = np.argsort(first, kind="stable")
        distinct, first, counts = np.take(distinct, order, axis), first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    distinct = distinct if words is None else words[distinct]
    return distinct, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def _infer_nms(boxes, scores, *limits, centered):
    has_corners = boxes.rank == 3 and (boxes.shape[2] == 4 or not isinstance(boxes.shape[2], int))
    floats = {boxes.dtype, scores.dtype, limits[1].dtype, limits[2].dtype}
    has_limits = limits[0].dtype is i64 and all(limit.rank == 0 for limit in limits)
    if not has_corners or scores.rank != 3 or not has_limits or len(floats) > 1 or not floats <= {f32, f64}:
        raise ShapeError(f"non_max_suppression: got {', '.join(map(str, (boxes, scores, *limits)))}")
    for a, b in ((boxes.shape[0], scores.shape[0]), (boxes.shape[1], scores.shape[2])):
        if isinstance(a, int) and isinstance(b, int) and a != b:
            raise ShapeError(f"non_max_suppression: boxes and scores differ, got {boxes} and {scores}")
    return TensorType(i64, (None, 3))


@op(
    infer=_infer_nms,
    addresses={"most": "a count: none are selected below 1"},
    samples=[
        sample("boxes>0<4[2,9,4] scores>0<1[2,3,9] n:i64>2<3[] iou>0.3<0.31[] least>0.2<0.21[]", centered=False),
        sample("boxes>1<4[1,9,4] scores>0<1[1,2,9] n:i64>9<10[] iou>0.1<0.11[] least>0<0.01[]", centered=True),
    ],
)
def non_max_suppression(boxes, scores, most, overlap, least, *, centered: bool):
    """Greedy selection of boxes [batch, n, 4] by scores [batch, classes, n]: i64[chosen, 3] of batch, class and
    box.

    For each class at most `most` boxes, best first, whose scores are above `least` and whose intersection over union
    with each better selected box is at most `overlap`. Boxes are two corners, y before x, or center and size with x
    first (`centered`).
    """
    chosen = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch], centered)
        for label in range(scores.shape[1]):
            selected: list[int] = []
            for box in np.argsort(-scores[batch, label], kind="stable").tolist():
                if len(selected) >= most or not scores[batch, label, box] > least:
                    break
                if not selected or (_overlaps(corners, box, selected) <= overlap).all():
                    selected.append(box)
            chosen += [(batch, label, box) for box in selected]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, centered: bool) -> np.ndarray:
    """Return the lowest and highest corners: [n, 4]."""
    if centered:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return np.concatenate([middle - half, middle + half], 1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def _overlaps(corners: np.ndarray, box: int, others: list[int]) -> np.ndarray:
    """Return the intersection over union of one box with others."""
    low, high = corners[:, :2], corners[:, 2:]
    sides = np.minimum(high[box], high[others]) - np.maximum(low[box], low[others])
    shared = np.prod(np.maximum(sides, 0), 1)
    total = np.prod(high[box] - low[box]) + np.prod(high[others] - low[others], 1) - shared
    return np.divide(shared, total, out=np.zeros_like(shared), where=total > 0)

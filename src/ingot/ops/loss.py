"""Losses of logits, row by row, and their gradients."""

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import f32, i64
from ingot.ir.graph import Index, TensorType
from ingot.ops.define import expect_kind, expect_within, op, sample, unify


def _infer_cross_entropy(logits, labels, *, ignored, smoothing):
    expect_kind("cross_entropy", logits, "f")
    if not logits.rank or labels.dtype is not i64 or labels.rank != logits.rank - 1 or logits.shape[-1] == 0:
        raise ShapeError(
            f"cross_entropy: bad operands, got {logits} and {labels}, expected [..., classes] and i64 [...]"
        )
    where = "cross_entropy of {} and {}"
    shape = tuple(unify(where, a, b, logits, labels) for a, b in zip(logits.shape[:-1], labels.shape, strict=True))
    return TensorType(logits.dtype, shape)


def _infer_gradient(logits, labels, d, *, ignored, smoothing):
    losses = _infer_cross_entropy(logits, labels, ignored=ignored, smoothing=smoothing)
    if d != losses:
        raise ShapeError(f"cross_entropy_gradient: bad operands, got {d}, expected {losses}")
    return logits


def _wide(g, value, logits):
    """Reshape a value per row so that it has a dim for the classes."""
    return g.reshape(value, shape=(*g.type(logits).shape[:-1], 1))


def _expand_cross_entropy(g, logits, labels, *, ignored, smoothing):
    axis = g.type(logits).rank - 1
    is_ignored = g.equal(labels, ignored)
    chances = g.log_softmax(logits, axis=axis)
    classes = _classes(g, logits, labels, is_ignored)
    picked = g.gather_elements(chances, _wide(g, classes, logits), axis=axis)
    losses = g.mul(g.reshape(picked, shape=g.type(labels).shape), smoothing - 1.0)
    if smoothing:
        losses = g.sub(losses, g.mul(g.reduce_mean(chances, axes=(axis,), keepdims=False), float(smoothing)))
    return g.where(is_ignored, 0.0, losses)


def _classes(g, logits, labels, is_ignored):
    """Return the class of each row, class 0 for an ignored one; any other label is an error."""
    return g.checked_index(g.where(is_ignored, 0, labels), limit=g.type(logits).shape[-1], what="labels")


def _expand_gradient(g, logits, labels, d, *, ignored, smoothing):
    rank, classes = g.type(logits).rank, g.type(logits).shape[-1]
    is_ignored = g.equal(labels, ignored)
    labels = _classes(g, logits, labels, is_ignored)
    numbers = g.iota(length=classes, start=0, step=1, dtype=i64)
    is_label = g.cast(g.equal(numbers, _wide(g, labels, logits)), dtype=g.type(logits).dtype)
    difference = g.sub(g.softmax(logits, axis=rank - 1), g.mul(is_label, 1.0 - smoothing))
    if smoothing:
        each = g.reduce_mean(is_label, axes=(rank - 1,), keepdims=True)  # one over the number of classes
        difference = g.sub(difference, g.mul(each, float(smoothing)))
    return g.mul(difference, _wide(g, g.where(is_ignored, 0.0, d), logits))


def _picked(logits, labels, ignored):
    """Return which rows count, and the class of each, class 0 for an ignored one. Raises InputError for any other
    label.
    """
    counts, classes = labels != ignored, logits.shape[-1]
    labels = np.where(counts, labels, 0)
    expect_within("labels", labels, range(classes))
    return counts, labels[..., None]


_LABELS = {"labels": Index(lambda logits, *_, **__: range(logits.shape[-1]), own=True)}
_ROWS = [
    sample("x[5,7] y:i64<7[5]{}"),
    sample("x[2,3,67] y:i64<67[2,3]{}", smoothing=0.1),
    sample("x[6,3] y:i64<3[6]{}", ignored=1),
    sample("x[4,33] y:i64<33[4]{}", ignored=2, smoothing=0.25),
    sample("x[16] y:i64<16[]{}"),
    sample("x[3,1] y:i64<1[3]{}", smoothing=0.5),
    sample("x[0,4] y:i64<4[0]{}"),
]


def _rows(gradient: bool):
    """Return the samples, with a gradient of each row's loss if `gradient`."""
    found = []
    for each in _ROWS:
        dims = each.operands.partition("y:")[2].partition("[")[2].partition("]")[0]
        found.append(sample(each.operands.format(f" d[{dims}]" if gradient else ""), **each.attributes))
    return found


@op(
    infer=_infer_cross_entropy,
    expand=_expand_cross_entropy,
    addresses=_LABELS,
    domain=(-10.0, 10.0),
    tolerance={f32: 1e-5},
    samples=_rows(False),
)
def cross_entropy(logits, labels, *, ignored: int = -100, smoothing: float = 0.0):
    """The loss of each row of logits [..., classes] for its label, i64 [...]: -log(softmax(logits)[label]).

    A row with label `ignored` has loss 0; any other label that is not a class is an error. smoothing: the share of the
    mean loss over all classes.
    """
    counts, picked = _picked(logits, labels, ignored)
    shifted = logits - np.max(logits, -1, keepdims=True)
    total = np.log(np.sum(np.exp(shifted), -1, np.float64)).astype(logits.dtype)
    label_logit = np.take_along_axis(shifted, picked, -1)[..., 0]
    real = logits.dtype.type
    losses = total - real(1 - smoothing) * label_logit - real(smoothing) * np.mean(shifted, -1, dtype=logits.dtype)
    return np.where(counts, losses, real(0))


@op(
    infer=_infer_gradient,
    inplace=(0,),
    expand=_expand_gradient,
    addresses=_LABELS,
    domain=(-10.0, 10.0),
    tolerance={f32: 1e-5},
    samples=_rows(True),
)
def cross_entropy_gradient(logits, labels, d, *, ignored: int = -100, smoothing: float = 0.0):
    """The gradient of logits from d [...], the gradient of the losses of `cross_entropy`."""
    counts, picked = _picked(logits, labels, ignored)
    power = np.exp(logits - np.max(logits, -1, keepdims=True))
    difference = power / np.sum(power, -1, np.float64, keepdims=True).astype(logits.dtype)
    real = logits.dtype.type
    np.put_along_axis(difference, picked, np.take_along_axis(difference, picked, -1) - real(1 - smoothing), -1)
    return (difference - real(smoothing / logits.shape[-1])) * np.where(counts, d, real(0))[..., None]

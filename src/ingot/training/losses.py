"""Losses and their metrics as graphs of plain ops, with the types of their targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingot.errors import InputError, KindError, ShapeError
from ingot.gradients.registry import Backward
from ingot.ir.dtype import f32, i64
from ingot.ir.graph import TensorType
from ingot.training.ranges import expect_integer, expect_range


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss. target: returns the type of the target for a type of predictions. write: adds the nodes of the loss and
    returns its value, f32[]; write_metric does the same for the metric. metric: the name of the metric.
    """

    target: Callable[[TensorType], TensorType]
    write: Callable[[Backward, str, str], str]
    metric: str
    write_metric: Callable[[Backward, str, str], str]


def _mean(g: Backward, x: str) -> str:
    return g.reduce_mean(x, axes=tuple(range(g.type(x).rank)), keepdims=False)


def _total(g: Backward, x: str) -> str:
    return g.reduce_sum(x, axes=tuple(range(g.type(x).rank)), keepdims=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy:
    """The mean cross entropy of logits [..., classes] and labels i64[...], as torch.nn.CrossEntropyLoss.

    ignore_index: the label of rows that are ignored. label_smoothing: the weight of the mean loss over all classes, 0
    to 1. Raises InputError for a value out of range, and KindError for a value that is not a number.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        expect_integer("ignore_index", self.ignore_index)
        expect_range("label_smoothing", self.label_smoothing)
        if self.label_smoothing > 1:
            raise InputError(f"label_smoothing: out of range, got {self.label_smoothing}, expected 0..1")

    def target(self, prediction: TensorType) -> TensorType:
        """Return the type of labels for a type of predictions. Raises ShapeError for a scalar."""
        if not prediction.rank:
            raise ShapeError(f"cross_entropy: bad predictions, got {prediction}, expected logits [..., classes]")
        return TensorType(i64, prediction.shape[:-1])

    def write(self, g: Backward, prediction: str, target: str) -> str:
        """Add the nodes of the loss; return its value, f32[]. It is NaN if all rows are ignored."""
        settings = {"ignored": self.ignore_index, "smoothing": float(self.label_smoothing)}
        losses = g.cross_entropy(prediction, target, **settings)
        return g.div(_total(g, losses), _total(g, self._counted(g, target)))

    metric = "accuracy"

    def write_metric(self, g: Backward, prediction: str, target: str) -> str:
        """Add the nodes of the accuracy, the share of labels with the largest logit; return its value, f32[]."""
        chosen = g.argmax(prediction, axis=g.type(prediction).rank - 1, keepdims=False)
        counted = self._counted(g, target)
        hit = g.mul(g.cast(g.equal(chosen, target), dtype=f32), counted)
        return g.div(_total(g, hit), _total(g, counted))

    def _counted(self, g: Backward, target: str) -> str:
        """Return 1 for each label that is not ignored, else 0."""
        return g.cast(g.not_equal(target, self.ignore_index), dtype=f32)


def _squared_error(g: Backward, prediction: str, target: str) -> str:
    difference = g.sub(prediction, target)
    return _mean(g, g.mul(difference, difference))


def _absolute_error(g: Backward, prediction: str, target: str) -> str:
    return _mean(g, g.abs(g.sub(prediction, target)))


def _hits(g: Backward, prediction: str, target: str) -> str:
    """Return the share of logits whose sign agrees with the target."""
    differs = g.logical_xor(g.greater(prediction, 0.0), g.greater(target, 0.5))
    return _mean(g, g.cast(g.logical_not(differs), dtype=f32))


def _binary_cross_entropy(g: Backward, prediction: str, target: str) -> str:
    """Return the binary cross entropy of logits without overflow: softplus(x) - x * target."""
    return _mean(g, g.sub(g.softplus(prediction), g.mul(prediction, target)))


LOSSES: dict[str, Loss | CrossEntropy] = {
    "cross_entropy": CrossEntropy(),
    "mse": Loss(lambda prediction: prediction, _squared_error, "mean_absolute_error", _absolute_error),
    "bce": Loss(lambda prediction: prediction, _binary_cross_entropy, "accuracy", _hits),
}


def loss_of(name: str | CrossEntropy) -> Loss | CrossEntropy:
    """Return the loss of a name, or the loss itself. Raises KindError for another value."""
    if isinstance(name, CrossEntropy):
        return name
    if not isinstance(name, str) or name not in LOSSES:
        raise KindError(f"loss: unknown, got {name!r}, expected one of {', '.join(LOSSES)}")
    return LOSSES[name]

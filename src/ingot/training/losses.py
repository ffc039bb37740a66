"""Losses: what is made small, as plain ops, and what targets a loss takes."""

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
    """A row of the table. target: its type for predictions of a type. write: adds the nodes; gives a number, f32[], as
    write_metric does. metric: what else says how good predictions are.
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
    """The mean loss of logits [..., classes] for labels i64 [...], as torch.nn.CrossEntropyLoss has it.

    ignore_index: the label of rows that do not count. label_smoothing: the share of a loss that is the mean over all
    classes. Raises InputError for a share out of range, and KindError for what is no number.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        expect_integer("ignore_index", self.ignore_index)
        expect_range("label_smoothing", self.label_smoothing)
        if self.label_smoothing > 1:
            raise InputError(f"label_smoothing: out of range, got {self.label_smoothing}, expected 0..1")

    def target(self, prediction: TensorType) -> TensorType:
        """The type of labels for predictions of a type. Raises ShapeError where these are no logits."""
        if not prediction.rank:
            raise ShapeError(f"cross_entropy: bad predictions, got {prediction}, expected logits [..., classes]")
        return TensorType(i64, prediction.shape[:-1])

    def write(self, g: Backward, prediction: str, target: str) -> str:
        """Adds the nodes of the loss; gives a number. Where no row counts it is NaN."""
        settings = {"ignored": self.ignore_index, "smoothing": float(self.label_smoothing)}
        losses = g.cross_entropy(prediction, target, **settings)
        return g.div(_total(g, losses), _total(g, self._counted(g, target)))

    metric = "accuracy"

    def write_metric(self, g: Backward, prediction: str, target: str) -> str:
        """Adds the nodes of the share of labels that have the largest logit; gives a number."""
        chosen = g.argmax(prediction, axis=g.type(prediction).rank - 1, keepdims=False)
        counted = self._counted(g, target)
        hit = g.mul(g.cast(g.equal(chosen, target), dtype=f32), counted)
        return g.div(_total(g, hit), _total(g, counted))

    def _counted(self, g: Backward, target: str) -> str:
        """1 for each label that counts, else 0."""
        return g.cast(g.not_equal(target, self.ignore_index), dtype=f32)


def _squared_error(g: Backward, prediction: str, target: str) -> str:
    difference = g.sub(prediction, target)
    return _mean(g, g.mul(difference, difference))


def _absolute_error(g: Backward, prediction: str, target: str) -> str:
    return _mean(g, g.abs(g.sub(prediction, target)))


def _hits(g: Backward, prediction: str, target: str) -> str:
    """The share of logits on the same side as their target."""
    apart = g.logical_xor(g.greater(prediction, 0.0), g.greater(target, 0.5))
    return _mean(g, g.cast(g.logical_not(apart), dtype=f32))


def _binary_cross_entropy(g: Backward, prediction: str, target: str) -> str:
    """Of logits, without overflow: softplus(x) - x * target."""
    return _mean(g, g.sub(g.softplus(prediction), g.mul(prediction, target)))


LOSSES: dict[str, Loss | CrossEntropy] = {
    "cross_entropy": CrossEntropy(),
    "mse": Loss(lambda prediction: prediction, _squared_error, "mean_absolute_error", _absolute_error),
    "bce": Loss(lambda prediction: prediction, _binary_cross_entropy, "accuracy", _hits),
}


def loss_of(name: str | CrossEntropy) -> Loss | CrossEntropy:
    """The row of a name, or the loss itself. Raises KindError for what is none."""
    if isinstance(name, CrossEntropy):
        return name
    if not isinstance(name, str) or name not in LOSSES:
        raise KindError(f"loss: unknown, got {name!r}, expected one of {', '.join(LOSSES)}")
    return LOSSES[name]

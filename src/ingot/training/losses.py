"""Losses: what is made small, as plain ops, and what targets a loss takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingot.dtype import i64
from ingot.errors import ShapeError
from ingot.gradients.registry import Backward
from ingot.ir import TensorType


@dataclass(frozen=True, slots=True)
class Loss:
    """A row of the table. target: its type for predictions of a type. write: adds the nodes; gives a number, f32[]."""

    target: Callable[[TensorType], TensorType]
    write: Callable[[Backward, str, str], str]


def _mean(g: Backward, x: str) -> str:
    return g.reduce_mean(x, axes=tuple(range(g.type(x).rank)), keepdims=False)


def _labels(prediction: TensorType) -> TensorType:
    if not prediction.rank:
        raise ShapeError(f"cross_entropy: bad predictions, got {prediction}, expected logits [..., classes]")
    return TensorType(i64, prediction.shape[:-1])


def _cross_entropy(g: Backward, prediction: str, target: str) -> str:
    shape = g.type(prediction).shape
    chances = g.log_softmax(prediction, axis=len(shape) - 1)
    picked = g.gather_elements(chances, g.reshape(target, shape=(*shape[:-1], 1)), axis=len(shape) - 1)
    return g.neg(_mean(g, picked))


def _squared_error(g: Backward, prediction: str, target: str) -> str:
    difference = g.sub(prediction, target)
    return _mean(g, g.mul(difference, difference))


def _binary_cross_entropy(g: Backward, prediction: str, target: str) -> str:
    """Of logits, without overflow: softplus(x) - x * target."""
    return _mean(g, g.sub(g.softplus(prediction), g.mul(prediction, target)))


LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(_labels, _cross_entropy),
    "mse": Loss(lambda prediction: prediction, _squared_error),
    "bce": Loss(lambda prediction: prediction, _binary_cross_entropy),
}

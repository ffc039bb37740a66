"""Learning rates that follow the number of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ingot.errors import InputError
from ingot.training.ranges import expect_integer, expect_range, expect_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """lr: the highest rate. steps: when the rate ends at `floor`. warmup: how many steps rise to lr, linearly."""

    lr: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Raises InputError for numbers out of range, and KindError for what is none."""
        name = type(self).__name__
        expect_range(f"{name} lr", self.lr)
        expect_range(f"{name} floor", self.floor)
        expect_whole(f"{name} steps", self.steps, 1)
        expect_integer(f"{name} warmup", self.warmup)
        if not 0 <= self.warmup < self.steps:
            raise InputError(f"{name} warmup: out of range, got {self.warmup}, expected 0..{self.steps - 1} steps")

    def __call__(self, step: int) -> float:
        """The rate of a step; the first is 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        share = min((step - self.warmup) / (self.steps - self.warmup), 1.0)
        return self.floor + (self.lr - self.floor) * self._left(share)

    def _left(self, share: float) -> float:
        """How much of the way from lr to floor is left, when so much of the steps after the warm-up is over."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(_Schedule):
    """A rate that falls linearly from lr to floor.

    lr: the highest rate. steps: when it is at `floor`. warmup: how many steps rise to lr first. Raises InputError for
    numbers out of range.
    """

    def _left(self, share: float) -> float:
        return 1 - share


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine(_Schedule):
    """A rate that falls from lr to floor along half a cosine; fields as those of `Linear`.

    Loshchilov and Hutter, "SGDR", 2017. Raises InputError for numbers out of range.
    """

    def _left(self, share: float) -> float:
        return (1 + math.cos(math.pi * share)) / 2


Schedule = Callable[[int], float]  # of the step; the first is 0


def rate_at(lr: float | Schedule, step: int, what: str = "rate") -> float:
    """The learning rate of a step; the first is 0. what: errors begin with it.

    Raises InputError for one out of range, and KindError for what is no number.
    """
    rate = lr(step) if callable(lr) else lr
    expect_range(what, rate)
    return float(rate)

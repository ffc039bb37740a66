"""Learning rates that follow the number of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ingot.errors import InputError


def expect_range(what: str, value: float, high: float = math.inf) -> None:
    """Raises InputError for a number that is negative, `high` or more, or none."""
    if not 0 <= value < high:
        raise InputError(f"{what}: out of range, got {value}, expected 0 or more and less than {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """lr: the highest rate. steps: when the rate ends at `floor`. warmup: how many steps rise to lr, linearly."""

    lr: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Raises InputError for numbers out of range."""
        name = type(self).__name__
        expect_range(f"{name} lr", self.lr)
        expect_range(f"{name} floor", self.floor)
        if self.steps < 1:
            raise InputError(f"{name} steps: out of range, got {self.steps}, expected 1 or more")
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


Schedule = Linear | Cosine


def rate_at(lr: float | Schedule, step: int) -> float:
    """The learning rate of a step; the first is 0."""
    return lr if isinstance(lr, int | float) else lr(step)

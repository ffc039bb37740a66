"""Learning rate schedules: functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ingot.errors import InputError
from ingot.training.ranges import expect_integer, expect_range, expect_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """lr: the peak rate. steps: the step at which the rate reaches `floor`. warmup: steps of a linear rise to lr."""

    lr: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Raise InputError for numbers out of range, and KindError for values that are not numbers."""
        name = type(self).__name__
        expect_range(f"{name} lr", self.lr)
        expect_range(f"{name} floor", self.floor)
        expect_whole(f"{name} steps", self.steps, 1)
        expect_integer(f"{name} warmup", self.warmup)
        if not 0 <= self.warmup < self.steps:
            raise InputError(f"{name} warmup: out of range, got {self.warmup}, expected 0..{self.steps - 1} steps")

    def __call__(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        share = min((step - self.warmup) / (self.steps - self.warmup), 1.0)
        return self.floor + (self.lr - self.floor) * self._left(share)

    def _left(self, share: float) -> float:
        """Return the remaining part of lr - floor after a share of the steps after the warm-up."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(_Schedule):
    """A learning rate that falls linearly from lr to floor.

    lr: the peak rate. steps: the step at which the rate reaches `floor`. warmup: the number of first steps, in which
    the rate rises linearly to lr. Raises InputError for numbers out of range.
    """

    def _left(self, share: float) -> float:
        return 1 - share


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine(_Schedule):
    """A learning rate that falls from lr to floor along half a cosine; the fields are those of `Linear`.

    Loshchilov and Hutter, "SGDR", 2017. Raises InputError for numbers out of range.
    """

    def _left(self, share: float) -> float:
        return (1 + math.cos(math.pi * share)) / 2


Schedule = Callable[[int], float]  # step, counted from 0 -> rate


def rate_at(lr: float | Schedule, step: int, what: str = "rate") -> float:
    """Return the learning rate of a step, counted from 0. what: the beginning of error messages.

    Raises InputError for a rate out of range, and KindError for a value that is not a number.
    """
    rate = lr(step) if callable(lr) else lr
    expect_range(what, rate)
    return float(rate)

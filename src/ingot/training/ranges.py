"""Checks of the type and range of numeric options."""

from __future__ import annotations

import math
import sys
from numbers import Integral, Real
from reprlib import repr as shortened
from typing import Any

from ingot.errors import InputError, KindError


def expect_integer(what: str, value: Any) -> None:
    """Raise KindError for a value that is not an integer; True and 2.0 are none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise KindError(f"{what}: not a whole number, got {shortened(value)}, expected a whole number")


def expect_whole(what: str, value: Any, low: int, high: int | None = None) -> None:
    """Raise KindError for a value that is not an integer, and InputError for one below `low` or above `high`."""
    expect_integer(what, value)
    if value < low or (high is not None and value > high):
        expected = f"{low} or more" if high is None else f"{low}..{high}"
        raise InputError(f"{what}: out of range, got {value}, expected {expected}")


def expect_range(what: str, value: Any, high: float = math.inf) -> None:
    """Raise KindError for a value that is not a number; InputError for a negative one, NaN, and `high` or more."""
    _expect_number(what, value)
    if not 0 <= value <= sys.float_info.max or value >= high:
        raise InputError(f"{what}: out of range, got {value}, expected 0 or more and less than {high}")


def expect_positive(what: str, value: Any) -> None:
    """Raise KindError for a value that is not a number, and InputError unless it is finite and above 0."""
    _expect_number(what, value)
    if not 0 < value <= sys.float_info.max:
        raise InputError(f"{what}: out of range, got {value}, expected more than 0")


def _expect_number(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise KindError(f"{what}: not a number, got {shortened(value)}, expected a number")

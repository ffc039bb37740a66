"""Options that are numbers: of what kind they are, and how large they may be."""

from __future__ import annotations

import math
import sys
from numbers import Integral, Real
from reprlib import repr as shortened
from typing import Any

from ingot.errors import InputError, KindError


def expect_integer(what: str, value: Any) -> None:
    """Raises KindError for what is no whole number, as True and 2.0 are none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise KindError(f"{what}: no whole number, got {shortened(value)}, expected one")


def expect_whole(what: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises KindError for what is no whole number, and InputError for one below `low` or above `high`."""
    expect_integer(what, value)
    if value < low or (high is not None and value > high):
        expected = f"{low} or more" if high is None else f"{low}..{high}"
        raise InputError(f"{what}: out of range, got {value}, expected {expected}")


def expect_range(what: str, value: Any, high: float = math.inf) -> None:
    """Raises KindError for what is no number, and InputError for one that is negative, `high` or more, or NaN."""
    _expect_number(what, value)
    if not 0 <= value <= sys.float_info.max or value >= high:
        raise InputError(f"{what}: out of range, got {value}, expected 0 or more and less than {high}")


def expect_positive(what: str, value: Any) -> None:
    """Raises KindError for what is no number, and InputError for one that is not above 0, infinite, or NaN."""
    _expect_number(what, value)
    if not 0 < value <= sys.float_info.max:
        raise InputError(f"{what}: out of range, got {value}, expected more than 0")


def _expect_number(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise KindError(f"{what}: no number, got {shortened(value)}, expected one")

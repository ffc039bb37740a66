"""The metadata of a GGUF file; the type of each value is checked when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.errors import LoadError
from ingot.load.hf.strict_json import shown

STRING = 8
# The dtypes of values, by type number.
SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"), 1: np.dtype("<i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A value. type: "string", or a dtype's name; value: bytes or a number, or a list of bytes or an array of
    numbers.
    """

    type: str
    value: Any

    @property
    def is_array(self) -> bool:
        """Whether it holds several values."""
        return isinstance(self.value, (list, np.ndarray))

    @property
    def described(self) -> str:
        """Its type in words, such as `array of int32`."""
        return f"array of {self.type}" if self.is_array else self.type


@dataclass(frozen=True, slots=True, eq=False)
class Metadata:
    """Values by key. A getter returns None for a missing key, and raises LoadError for a value of another type."""

    path: str
    entries: Mapping[str, Entry]

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def where(self, key: str) -> str:
        """Return the name of a key for errors."""
        return f"{self.path}: key {shown(key)}"

    def text(self, key: str) -> str | None:
        """Return a string in UTF-8."""
        value = self._value(key, ("string",), "a string")
        return None if value is None else self._decoded(key, value)

    def texts(self, key: str) -> list[str] | None:
        """Return an array of strings in UTF-8."""
        values = self._value(key, ("string",), "an array of strings", array=True)
        return None if values is None else [self._decoded(key, value) for value in values]

    def integer(self, key: str) -> int | None:
        """Return an integer of any width."""
        return self._value(key, _INTEGERS, "an integer")

    def integers(self, key: str) -> np.ndarray | None:
        """Return an array of integers of any width."""
        return self._value(key, _INTEGERS, "an array of integers", array=True)

    def number(self, key: str) -> float | None:
        """Return a float or an integer, finite."""
        value = self._value(key, (*_FLOATS, *_INTEGERS), "a number")
        if value is not None and not math.isfinite(value):
            raise LoadError(f"{self.where(key)}: not finite, got {value}, expected a number")
        return None if value is None else float(value)

    def numbers(self, key: str) -> np.ndarray | None:
        """Return an array of floats or integers."""
        return self._value(key, (*_FLOATS, *_INTEGERS), "an array of numbers", array=True)

    def flag(self, key: str) -> bool | None:
        """Return a truth value."""
        return self._value(key, ("bool",), "a truth value")

    def _value(self, key: str, types: tuple[str, ...], expected: str, array: bool = False) -> Any:
        entry = self.entries.get(key)
        if entry is None:
            return None
        if entry.type not in types or entry.is_array != array:
            raise LoadError(f"{self.where(key)}: wrong type, got {entry.described}, expected {expected}")
        return entry.value

    def _decoded(self, key: str, value: bytes) -> str:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise LoadError(f"{self.where(key)}: not UTF-8, {error.reason} at byte {error.start}") from error


_INTEGERS = tuple(dtype.name for dtype in SCALARS.values() if dtype.kind in "iu")
_FLOATS = tuple(dtype.name for dtype in SCALARS.values() if dtype.kind == "f")

"""Strict JSON: a document that parsers may interpret differently is rejected.

Python's parser keeps the last of two equal keys, accepts NaN and numbers of any length, and guesses the encoding. Here
a document is UTF-8 without a byte-order mark; keys are unique; numbers are finite and short; strings contain no half of
a surrogate pair.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Iterable
from itertools import chain
from typing import Any

from ingot.errors import LimitError, LoadError

MAX_DEPTH = 64  # of nested values
_MAX_NUMBER_CHARACTERS = 64
# The escape of a surrogate; unescaped, UTF-8 cannot encode half a character.
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring = 2, 80


def parse_json(content: bytes, where: str, *, infinite: Any = None) -> Any:
    """Return the value of a JSON document. infinite: the value of the word Infinity, which is refused by default.

    Raises LoadError for anything but strict JSON, LimitError beyond MAX_DEPTH.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LoadError(f"{where}: not UTF-8, {error.reason} at byte {error.start}") from error
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=lambda word: _constant(word, infinite),
        )
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        raise LoadError(f"{where}: not JSON, {error}") from error
    _check_depth(value, where)
    if _HALF_CHARACTER.search(text):
        _check_strings(value, where)
    return value


def parse_object(content: bytes, where: str, *, infinite: Any = None) -> dict[str, Any]:
    """Return the object of a JSON document. Raises as `parse_json`, and LoadError for any other value."""
    value = parse_json(content, where, infinite=infinite)
    if not isinstance(value, dict):
        raise LoadError(f"{where}: got {shown(value)}, expected a JSON object")
    return value


def shown(value: object) -> str:
    """Format a value from a file for an error: escaped, and short."""
    return _SHORT.repr(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {shown(repeated)} appears twice in one object")
    return result


def _integer(text: str) -> int:
    if len(text) > _MAX_NUMBER_CHARACTERS or text == "-0":
        raise ValueError(f"number {shown(text)} is not an integer of at most {_MAX_NUMBER_CHARACTERS} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text) if len(text) <= _MAX_NUMBER_CHARACTERS else math.inf
    if not math.isfinite(value):
        raise ValueError(f"number {shown(text)} is too large or too long")
    return value


def _constant(text: str, infinite: Any) -> Any:
    if text != "Infinity" or infinite is None:
        raise ValueError(f"{text} is no JSON number")
    return infinite


def _check_depth(root: Any, where: str) -> None:
    level = _containers([root])
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = _containers(chain.from_iterable(each.values() if type(each) is dict else each for each in level))
    if level:
        raise _too_deep(where)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) is dict or type(value) is list]


def _check_strings(root: Any, where: str) -> None:
    """Check that UTF-8 can encode the strings: an escaped surrogate without its second half is an error."""
    pending = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, str) and not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise LoadError(f"{where}: {shown(value)} holds half a surrogate pair") from None


def _too_deep(where: str) -> LimitError:
    return LimitError(f"{where}: nested too deep, expected at most {MAX_DEPTH} levels")

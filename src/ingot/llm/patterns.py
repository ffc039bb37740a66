"""Which regular expressions of a tokenizer take time that grows as the text does.

The engine of `tokenizers` backtracks, so an expression may need quadratic or exponential time. Accepted are
alternations in which a scan over many characters is never in vain:

- In most branches nothing after the first unbounded repetition is required, and what comes before it is short. From
  a place in the text such a branch either stops after a few characters or takes all that it has read.
- White space may be asked to end in a line break, or not to be followed by other text, if the next branches, the
  last of which is `\\s+`, take the same run where that fails.
- Words may be upper-case letters and then required lower-case ones, if the next branch is the same with the upper-case
  ones required instead.

The published families (GPT-2, GPT-4, o200k, Llama 3, Qwen, DeepSeek, Mistral, BLOOM, CLIP) are of this form.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.hf.strict_json import shown

MAX_PATTERN_CHARACTERS = 4096  # of a pattern
MAX_BRANCHES = 64  # alternatives of a pattern
_MAX_REPEAT = 16
_MAX_WAYS = 1024
_MAX_CLASS_DEPTH = 8

_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9A-Fa-f]{1,6}\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[sSdDwWrntfv]|[^\w\s])"
)
_REPEAT = re.compile(r"\{(\d{1,3})(,?)(\d{0,3})\}")
_GROUP = re.compile(r"\((?:\?i?:)?")
_SPACE_TAILS = {r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+$"}
_SPACE = r"\s+"


class _Item(NamedTuple):
    atom: str
    least: int
    most: int | None


def check_linear(pattern: object, where: str) -> None:
    """Raises UnsupportedError for an expression that is not of a form with linear time, LimitError for a long one."""
    if not isinstance(pattern, str) or not pattern:
        raise LoadError(f"{where}: pattern: got {shown(pattern)}, expected a regular expression")
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise LimitError(f"{where}: pattern: got {len(pattern)} characters, expected at most {MAX_PATTERN_CHARACTERS}")
    branches = _branches(pattern, where)
    if len(branches) > MAX_BRANCHES:
        raise LimitError(f"{where}: pattern: got {len(branches)} branches, expected at most {MAX_BRANCHES}")
    for place, branch in enumerate(branches):
        if branch in _SPACE_TAILS:
            rest = iter(branches[place + 1 :])
            if next((b for b in rest if b not in _SPACE_TAILS), None) == _SPACE:
                continue
            raise _refusal(branch, where, f"expected {_SPACE} after it")
        items = _items(branch, where)
        if _is_settled(items) or _is_word_of_two_cases(items, branches[place + 1 : place + 2], where):
            continue
        raise _refusal(branch, where, "expected nothing required after an unbounded repetition")


def _refusal(part: str, where: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"{where}: pattern: {shown(part)} may take more than linear time, {why}")


def _is_settled(items: list[_Item]) -> bool:
    """Nothing is required after the first unbounded repetition, and few ways lead to it."""
    ways, unbounded = 1, False
    for item in items:
        if unbounded and item.least:
            return False
        if item.most is None:
            unbounded = True
        else:
            ways *= item.most - item.least + 1
    return ways <= _MAX_WAYS


def _is_word_of_two_cases(items: list[_Item], following: list[str], where: str) -> bool:
    """`P? U* l+ rest` before `P? U+ l* rest`: where the first finds no `l`, the second takes every `U`."""
    for place in range(len(items) - 1):
        upper, lower = items[place : place + 2]
        if upper[1:] == (0, None) and lower[1:] == (1, None):
            twin = [*items[:place], upper._replace(least=1), lower._replace(least=0), *items[place + 2 :]]
            settled = _is_settled([*items[:place], *items[place + 2 :]])
            optional = all(item.least == 0 for item in items[place + 2 :])
            return settled and optional and bool(following) and _items(following[0], where) == twin
    return False


def _branches(pattern: str, where: str) -> list[str]:
    """What `|` separates outside of groups and classes."""
    branches, start, place, depth = [], 0, 0, 0
    while place < len(pattern):
        character = pattern[place]
        if character == "|" and depth == 0:
            branches.append(pattern[start:place])
            start = place + 1
        depth += (character == "(") - (character == ")")
        place = _atom_end(pattern, place, where) if character in "\\[" else place + 1
    return [*branches, pattern[start:]]


def _items(branch: str, where: str) -> list[_Item]:
    """The atoms of a branch, each with how often it is repeated."""
    items, place = [], 0
    while place < len(branch):
        if branch[place] == "(":
            end = _group_end(branch, place, where)
            atom = branch[place:end]
            least, most, place = _repeat(branch, end, where)
            if most != 1:
                raise _refusal(atom, where, "expected no repeated group")
            _check_group(atom, where)
        else:
            if branch[place] in "?*+{)^$":
                raise _refusal(branch, where, f"{branch[place]!r} at {place} is not known")
            end = _atom_end(branch, place, where)
            atom = branch[place:end]
            least, most, place = _repeat(branch, end, where)
        items.append(_Item(atom, least, most))
    return items


def _atom_end(text: str, place: int, where: str) -> int:
    """Behind one character, escape or class."""
    if text[place] == "\\":
        escape = _ESCAPE.match(text, place)
        if escape is None:
            raise _refusal(text[place : place + 8], where, "the escape is not known")
        return escape.end()
    if text[place] != "[":
        return place + 1
    depth = 0
    while place < len(text):
        if text[place] == "\\":
            place = _atom_end(text, place, where)
            continue
        depth += (text[place] == "[") - (text[place] == "]")
        place += 1
        if depth == 0:
            return place
        if depth > _MAX_CLASS_DEPTH:
            break
    raise LoadError(f"{where}: pattern: a class has no end")


def _group_end(text: str, place: int, where: str) -> int:
    depth = 0
    while place < len(text):
        character = text[place]
        depth += (character == "(") - (character == ")")
        place = _atom_end(text, place, where) if character in "\\[" else place + 1
        if depth == 0:
            return place
    raise LoadError(f"{where}: pattern: a group has no end")


def _check_group(group: str, where: str) -> None:
    """A group is a choice between short texts."""
    opened = _GROUP.match(group)
    assert opened is not None
    if group.startswith("(?") and opened.end() < 3:
        raise _refusal(group, where, "the group is not known")
    for branch in _branches(group[opened.end() : -1], where):
        if any(item.most != 1 or "(" in item.atom[:1] for item in _items(branch, where)):
            raise _refusal(group, where, "expected a choice between short texts")


def _repeat(text: str, place: int, where: str) -> tuple[int, int | None, int]:
    """(least, most, place behind) of the repetition at a place."""
    sign = text[place : place + 1]
    counted = _REPEAT.match(text, place)
    if counted:
        least = int(counted[1])
        most = (int(counted[3]) if counted[3] else None) if counted[2] else least
        if least > _MAX_REPEAT or (most is not None and not least <= most <= _MAX_REPEAT):
            raise _refusal(counted[0], where, f"expected at most {_MAX_REPEAT} repetitions")
        return least, most, counted.end()
    if not sign or sign not in "?*+":
        return 1, 1, place
    least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}[sign]
    possessive = text[place + 1 : place + 2]
    if possessive == "?":
        raise _refusal(text[: place + 2], where, "lazy repetitions are not known")
    return least, most, place + 1 + (possessive == "+")

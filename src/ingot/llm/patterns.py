"""Check that the regular expressions of a tokenizer match in linear time.

The engine of `tokenizers` backtracks, so an expression may need quadratic or exponential time. Accepted are
alternations whose branches never scan many characters and then fail:

- In most branches no item after the first unbounded repetition is required, and the items before it are short. At
  any position, such a branch either fails after a few characters or matches all that it has read.
- A branch of white space may require a final line break, or that no other text follows, if the next branches, the last
  of which is `\\s+`, match the same run when the branch fails.
- A branch may require lower-case letters after optional upper-case letters, if the next branch is the same with the
  upper-case letters required and the lower-case letters optional.

The published families (GPT-2, GPT-4, o200k, Llama 3, Qwen, DeepSeek, Mistral, BLOOM, CLIP) have this form.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.hf.strict_json import shown

MAX_PATTERN_CHARACTERS = 4096  # of a pattern
MAX_BRANCHES = 64  # alternatives of a pattern
_MAX_REPEAT = 16
_MAX_PATHS = 1024
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
    """Raise UnsupportedError for an expression without a known linear-time form, LimitError for a too long one."""
    if not isinstance(pattern, str) or not pattern:
        raise LoadError(f"{where}: pattern: got {shown(pattern)}, expected a regular expression")
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise LimitError(f"{where}: pattern: got {len(pattern)} characters, expected at most {MAX_PATTERN_CHARACTERS}")
    branches = _branches(pattern, where)
    if len(branches) > MAX_BRANCHES:
        raise LimitError(f"{where}: pattern: got {len(branches)} branches, expected at most {MAX_BRANCHES}")
    for index, branch in enumerate(branches):
        if branch in _SPACE_TAILS:
            rest = iter(branches[index + 1 :])
            if next((b for b in rest if b not in _SPACE_TAILS), None) == _SPACE:
                continue
            raise _refusal(branch, where, f"expected {_SPACE} after it")
        items = _items(branch, where)
        if _is_settled(items) or _is_word_of_two_cases(items, branches[index + 1 : index + 2], where):
            continue
        raise _refusal(branch, where, "expected nothing required after an unbounded repetition")


def _refusal(part: str, where: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"{where}: pattern: {shown(part)} may take more than linear time, {why}")


def _is_settled(items: list[_Item]) -> bool:
    """Return whether no item after the first unbounded repetition is required, and few match paths lead to it."""
    paths, unbounded = 1, False
    for item in items:
        if unbounded and item.least:
            return False
        if item.most is None:
            unbounded = True
        else:
            paths *= item.most - item.least + 1
    return paths <= _MAX_PATHS


def _is_word_of_two_cases(items: list[_Item], following: list[str], where: str) -> bool:
    """Return whether `P? U* l+ rest` is followed by `P? U+ l* rest`, which matches the `U` if there is no `l`."""
    for index in range(len(items) - 1):
        upper, lower = items[index : index + 2]
        if upper[1:] == (0, None) and lower[1:] == (1, None):
            twin = [*items[:index], upper._replace(least=1), lower._replace(least=0), *items[index + 2 :]]
            settled = _is_settled([*items[:index], *items[index + 2 :]])
            optional = all(item.least == 0 for item in items[index + 2 :])
            return settled and optional and bool(following) and _items(following[0], where) == twin
    return False


def _branches(pattern: str, where: str) -> list[str]:
    """Split at each `|` outside of groups and classes."""
    branches, start, index, depth = [], 0, 0, 0
    while index < len(pattern):
        character = pattern[index]
        if character == "|" and depth == 0:
            branches.append(pattern[start:index])
            start = index + 1
        depth += (character == "(") - (character == ")")
        index = _atom_end(pattern, index, where) if character in "\\[" else index + 1
    return [*branches, pattern[start:]]


def _items(branch: str, where: str) -> list[_Item]:
    """Return the atoms of a branch with their repetition counts."""
    items, index = [], 0
    while index < len(branch):
        if branch[index] == "(":
            end = _group_end(branch, index, where)
            atom = branch[index:end]
            least, most, index = _repeat(branch, end, where)
            if most != 1:
                raise _refusal(atom, where, "expected no repeated group")
            _check_group(atom, where)
        else:
            if branch[index] in "?*+{)^$":
                raise _refusal(branch, where, f"{branch[index]!r} at {index} is not known")
            end = _atom_end(branch, index, where)
            atom = branch[index:end]
            least, most, index = _repeat(branch, end, where)
        items.append(_Item(atom, least, most))
    return items


def _atom_end(text: str, index: int, where: str) -> int:
    """Return the index after a character, escape or class."""
    if text[index] == "\\":
        escape = _ESCAPE.match(text, index)
        if escape is None:
            raise _refusal(text[index : index + 8], where, "the escape is not known")
        return escape.end()
    if text[index] != "[":
        return index + 1
    depth = 0
    while index < len(text):
        if text[index] == "\\":
            index = _atom_end(text, index, where)
            continue
        depth += (text[index] == "[") - (text[index] == "]")
        index += 1
        if depth == 0:
            return index
        if depth > _MAX_CLASS_DEPTH:
            break
    raise LoadError(f"{where}: pattern: a class has no end")


def _group_end(text: str, index: int, where: str) -> int:
    depth = 0
    while index < len(text):
        character = text[index]
        depth += (character == "(") - (character == ")")
        index = _atom_end(text, index, where) if character in "\\[" else index + 1
        if depth == 0:
            return index
    raise LoadError(f"{where}: pattern: a group has no end")


def _check_group(group: str, where: str) -> None:
    """Raise UnsupportedError unless a group is a choice between short texts."""
    opened = _GROUP.match(group)
    assert opened is not None
    if group.startswith("(?") and opened.end() < 3:
        raise _refusal(group, where, "the group is not known")
    for branch in _branches(group[opened.end() : -1], where):
        if any(item.most != 1 or "(" in item.atom[:1] for item in _items(branch, where)):
            raise _refusal(group, where, "expected a choice between short texts")


def _repeat(text: str, index: int, where: str) -> tuple[int, int | None, int]:
    """Return (least, most, index after it) of the repetition at an index."""
    sign = text[index : index + 1]
    counted = _REPEAT.match(text, index)
    if counted:
        least = int(counted[1])
        most = (int(counted[3]) if counted[3] else None) if counted[2] else least
        if least > _MAX_REPEAT or (most is not None and not least <= most <= _MAX_REPEAT):
            raise _refusal(counted[0], where, f"expected at most {_MAX_REPEAT} repetitions")
        return least, most, counted.end()
    if not sign or sign not in "?*+":
        return 1, 1, index
    least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}[sign]
    possessive = text[index + 1 : index + 2]
    if possessive == "?":
        raise _refusal(text[: index + 2], where, "lazy repetitions are not known")
    return least, most, index + 1 + (possessive == "+")

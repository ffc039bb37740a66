"""Compile the regular expression that splits words in a tokenizer to a deterministic automaton.

A match is that of a backtracking engine: the first branch that matches, with greedy repetitions. So a state is a list
of positions in the expression, by priority, and a match drops all positions of lower priority (Cox, "Regular Expression
Matching: the Virtual Machine Approach", 2009). A transition records whether a match ended before its character, which
supports negative lookahead of one character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ingot.errors import UnsupportedError

MAX_STATES = 4096  # of a tokenizer's automaton
_CODE_POINTS = 0x110000

# The first and last code point of each run of characters that an atom matches.
Ranges = tuple[tuple[int, int], ...]

_ESCAPE = re.compile(r"\\(?:[pP]\{\^?\w+\}|x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[sSdDwWrntfv]|[^\w\s])")
_REPEAT = re.compile(r"\{(\d+)(,?)(\d*)\}")
_GROUP = re.compile(r"\((\?i?:)?")
_LOOK = re.compile(r"\(\?!(\\[pP]\{\^?\w+\}|\\[sSdDwW])\)")


@dataclass(frozen=True, slots=True)
class Automaton:
    """The tables of an automaton.

    starts, classes: characters from code point starts[i] on have the class classes[i]. width: the number of classes,
    and one more for the end of the text. transitions: for state s and class c at s * width + c, twice the next state,
    plus 1 if a match ended before; state 0 is dead, state 1 is the start.
    """

    starts: tuple[int, ...]
    classes: tuple[int, ...]
    width: int
    transitions: tuple[int, ...]


def automaton(pattern: str, members: Callable[[str], Ranges], where: str) -> Automaton:
    """Return the automaton of an expression. members: the characters that an atom matches.

    Raises UnsupportedError for unsupported syntax.
    """
    program = _Parser(pattern, where).program()
    atoms = dict.fromkeys(part[1] for part in program if part[0] in ("take", "not"))
    starts, classes, kinds = _classes([members(str(atom)) for atom in atoms])
    holds = {atom: [bits >> index & 1 == 1 for bits in kinds] for index, atom in enumerate(atoms)}
    width = len(kinds) + 1
    states = {(): 0, tuple(_closure(program, [0])): 1}
    rows: list[int] = []
    for state in (reached := list(states)):
        for kind in range(width):
            state_after, matched = _after(program, holds, state, kind, width - 1)
            if state_after not in states:
                states[state_after] = len(states)
                reached.append(state_after)
            rows.append(2 * states[state_after] + matched)
        if len(states) > MAX_STATES:
            raise UnsupportedError(f"{where}: pattern: more than {MAX_STATES} states, got {pattern!r}")
    if any(row & 1 for row in rows[width : 2 * width]):
        raise UnsupportedError(f"{where}: pattern: matches nothing at all, got {pattern!r}, expected characters")
    return Automaton(starts, classes, width, tuple(rows))


def _classes(sets: list[Ranges]) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Divide characters into classes by the sets that have them; return run starts, their classes, sets by class."""
    flips: dict[int, int] = {0: 0}
    for index, ranges in enumerate(sets):
        for first, last in ranges:
            for edge in (first, last + 1):
                flips[edge] = flips.get(edge, 0) ^ 1 << index
    kinds: dict[int, int] = {}
    starts, classes, bits = [], [], 0
    for edge in sorted(edge for edge in flips if edge < _CODE_POINTS):
        bits ^= flips[edge]
        starts.append(edge)
        classes.append(kinds.setdefault(bits, len(kinds)))
    return tuple(starts), tuple(classes), list(kinds)


# ("take", atom), ("not", atom), ("split", here first, then here), ("go", there), ("match",)
_Part = tuple[str | int, ...]


def _closure(program: list[_Part], positions: list[int], seen: set[int] | None = None) -> Iterator[int]:
    """Yield the positions that are reached without a character, by priority."""
    seen = set() if seen is None else seen
    for position in positions:
        if position in seen:
            continue
        seen.add(position)
        part = program[position]
        if part[0] in ("split", "go"):
            yield from _closure(program, [int(to) for to in part[1:]], seen)
        else:
            yield position


def _after(
    program: list[_Part], holds: dict[str | int, list[bool]], state: tuple[int, ...], kind: int, end: int
) -> tuple[tuple[int, ...], bool]:
    """Return the state after a character of a class, and whether a match ended before it. end: the class of the end."""
    found: dict[int, None] = {}
    seen: set[int] = set()
    waiting = list(reversed(state))
    while waiting:
        position = waiting.pop()
        part = program[position]
        if part[0] == "match":
            return tuple(found), True
        is_in = kind != end and holds[part[1]][kind]
        if part[0] == "not" and not is_in:
            waiting += reversed(list(_closure(program, [position + 1])))
        elif part[0] == "take" and is_in:
            found |= dict.fromkeys(_closure(program, [position + 1], seen))
    return tuple(found), False


class _Parser:
    """Parse an expression to a program of instructions, which starts at 0."""

    def __init__(self, pattern: str, where: str):
        self._pattern, self._where, self._at = pattern, where, 0
        self._parts: list[_Part] = []

    def program(self) -> list[_Part]:
        self._branches(folds=False)
        if self._at < len(self._pattern):
            raise self._refused("a bracket without its partner")
        return [*self._parts, ("match",)]

    def _refused(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self._where}: pattern: {what} at {self._at}, got {self._pattern!r}")

    def _branches(self, folds: bool) -> None:
        ends = []
        while True:
            split = len(self._parts)
            self._parts.append(("go", split + 1))
            self._branch(folds)
            if self._pattern[self._at : self._at + 1] != "|":
                break
            self._at += 1
            ends.append(len(self._parts))
            self._parts.append(("go", 0))
            self._parts[split] = ("split", split + 1, len(self._parts))
        for end in ends:
            self._parts[end] = ("go", len(self._parts))

    def _branch(self, folds: bool) -> None:
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            begin = len(self._parts)
            if look := _LOOK.match(self._pattern, self._at):
                self._at = look.end()
                self._parts.append(("not", look[1]))
            elif self._pattern[self._at] == "(":
                self._group(folds)
            else:
                atom = self._atom()
                self._parts.append(("take", f"(?i:{atom})" if folds else atom))
            self._repeat(begin)

    def _group(self, folds: bool) -> None:
        opened = _GROUP.match(self._pattern, self._at)
        assert opened is not None
        self._at = opened.end()
        if self._pattern[self._at : self._at + 1] == "?":
            raise self._refused("a group of a kind that is not known")
        self._branches(folds or opened[1] == "?i:")
        if self._pattern[self._at : self._at + 1] != ")":
            raise self._refused("a group without an end")
        self._at += 1

    def _atom(self) -> str:
        """Return the text of one character, escape or class."""
        begin, character = self._at, self._pattern[self._at]
        if character == "\\":
            escape = _ESCAPE.match(self._pattern, self._at)
            if escape is None:
                raise self._refused("an escape that is not known")
            self._at = escape.end()
        elif character == "[":
            self._class()
        elif character in "?*+{^$":
            raise self._refused(f"{character!r}, which is not known,")
        else:
            self._at += 1
        return self._pattern[begin : self._at]

    def _class(self) -> None:
        depth = 0
        while self._at < len(self._pattern):
            character = self._pattern[self._at]
            self._at += 2 if character == "\\" else 1
            depth += (character == "[") - (character == "]")
            if depth == 0:
                return
        raise self._refused("a class without an end")

    def _repeat(self, begin: int) -> None:
        """Repeat the instructions from `begin` on as the following quantifier specifies."""
        least, most = 1, 1
        counted = _REPEAT.match(self._pattern, self._at)
        sign = self._pattern[self._at : self._at + 1]
        if counted:
            least = int(counted[1])
            most = (int(counted[3]) if counted[3] else -1) if counted[2] else least
            self._at = counted.end()
        elif sign and sign in "?*+":
            least, most = {"?": (0, 1), "*": (0, -1), "+": (1, -1)}[sign]
            self._at += 1
        else:
            return
        if self._pattern[self._at : self._at + 1] in ("?", "+", "*"):
            raise self._refused("a lazy or possessive repetition")
        body = self._parts[begin:]
        del self._parts[begin:]
        for _ in range(least):
            self._append(body, begin)
        if most < 0:
            split = len(self._parts)
            self._parts.append(("split", split + 1, split + len(body) + 2))
            self._append(body, begin)
            self._parts.append(("go", split))
        for left in range(most - least, 0, -1):
            split = len(self._parts)
            self._parts.append(("split", split + 1, split + left * (len(body) + 1)))
            self._append(body, begin)

    def _append(self, body: list[_Part], begin: int) -> None:
        """Append a copy of instructions that began at a position."""
        shift = len(self._parts) - begin
        for part in body:
            goes = part[0] in ("split", "go")
            self._parts.append((part[0], *(int(to) + shift for to in part[1:])) if goes else part)

"""Regular expressions of RE2's syntax, matched in time linear in the text.

A pattern is compiled to a program; all its threads advance together, character by character. Thompson, "Regular
Expression Search Algorithm", 1968; Cox, "Regular Expression Matching: the Virtual Machine Approach", 2009.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from ingot.errors import LimitError, LoadError, UnsupportedError

MAX_PATTERN_CHARACTERS = 4096  # of a regular expression
MAX_REPEAT = 1000  # repetitions of a subexpression
MAX_STEPS = 10_000  # instructions of a compiled expression
_MAX_DEPTH = 100

Test = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction. test: a condition on the next character; assertion: a condition on the position in the text;
    jumps: relative targets of a jump, instead of the next instruction.
    """

    test: Test | None = None
    assertion: Callable[[str, int], bool] | None = None
    jumps: tuple[int, ...] = ()


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


def _is_of(category: str, character: str) -> bool:
    return unicodedata.category(character).startswith(category)


def _negated(test: Test) -> Test:
    return lambda c: not test(c)


def _is_boundary(text: str, at: int) -> bool:
    return (at > 0 and _is_word(text[at - 1])) != (at < len(text) and _is_word(text[at]))


_CLASSES: dict[str, Test] = {
    "d": lambda c: "0" <= c <= "9",
    "s": lambda c: c in "\t\n\f\r ",
    "w": _is_word,
}
_POSIX: dict[str, Test] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": str.isascii,
    "blank": lambda c: c in "\t ",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": _CLASSES["d"],
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: "a" <= c <= "z",
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in "\t\n\v\f\r ",
    "upper": lambda c: "A" <= c <= "Z",
    "word": _is_word,
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_CHARACTERS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_REPEAT = re.compile(r"\{(\d{1,9})(?:(,)(\d{0,9}))?\}", re.ASCII)
_HEX = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,8})\})")
_OCTAL = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")
_CATEGORY = re.compile(r"[pP](?:([A-Z])|\{(\^?)(\w+)\})", re.ASCII)
_GROUP = re.compile(r"\?(?:P?<\w+>|([imsU]*)(?:-([imsU]+))?([:)]))", re.ASCII)
_POSIX_CLASS = re.compile(r"\[:(\^?)([a-z]+):\]")


@functools.lru_cache(maxsize=64)
def compile_pattern(pattern: str) -> tuple[_Step, ...]:
    """Compile a pattern to a program.

    Raises LoadError for syntax that RE2 rejects, UnsupportedError for unknown character classes, LimitError for a
    pattern, a repetition or a program that is too long.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise LimitError(f"regex: too long, got {len(pattern)} characters, expected at most {MAX_PATTERN_CHARACTERS}")
    return tuple(_Parser(pattern).program())


def full_match(program: tuple[_Step, ...], text: str) -> bool:
    """Return whether a whole text matches."""
    threads = _reached(program, [0], text, 0)
    for at, character in enumerate(text, 1):
        if not threads:
            return False
        tests = [(step, program[step].test) for step in threads if step < len(program)]
        threads = _reached(program, [s + 1 for s, test in tests if test is not None and test(character)], text, at)
    return len(program) in threads


def _reached(program: tuple[_Step, ...], starts: list[int], text: str, at: int) -> set[int]:
    """Return the instructions that are reachable without reading another character."""
    reached: set[int] = set()
    pending = starts
    while pending:
        index = pending.pop()
        if index in reached:
            continue
        reached.add(index)
        step = program[index] if index < len(program) else _Step(test=bool)
        if step.jumps:
            pending.extend(index + jump for jump in step.jumps)
        elif step.assertion is not None and step.assertion(text, at):
            pending.append(index + 1)
    return reached


class _Parser:
    """A recursive descent parser: each method parses a subexpression and returns its program."""

    def __init__(self, pattern: str):
        self.pattern, self.at, self.depth = pattern, 0, 0
        self.flags: frozenset[str] = frozenset()

    def program(self) -> list[_Step]:
        steps = self.choice()
        if self.at < len(self.pattern):
            raise self.syntax_error("a closing bracket without an opening one")
        return steps

    def syntax_error(self, why: str) -> LoadError:
        return LoadError(f"regex {self.pattern[:100]!r}: {why}, at {self.at}")

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        if self.at >= len(self.pattern):
            raise self.syntax_error("the pattern ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def match(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self.pattern, self.at)
        self.at = found.end() if found else self.at
        return found

    def limited(self, steps: list[_Step]) -> list[_Step]:
        if len(steps) > MAX_STEPS:
            raise LimitError(f"regex: program too long, got {len(steps)} steps, expected at most {MAX_STEPS}")
        return steps

    def choice(self) -> list[_Step]:
        flags = self.flags
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise LimitError(f"regex: nested too deep, expected at most {_MAX_DEPTH} levels")
        steps = self.sequence()
        while self.peek() == "|":
            self.at += 1
            other = self.sequence()
            steps = [_Step(jumps=(1, len(steps) + 2)), *steps, _Step(jumps=(len(other) + 1,)), *other]
        self.flags = flags
        self.depth -= 1
        return self.limited(steps)

    def sequence(self) -> list[_Step]:
        steps: list[_Step] = []
        while self.at < len(self.pattern) and self.peek() not in "|)":
            steps = self.limited(steps + self.repeated())
        return steps

    def repeated(self) -> list[_Step]:
        if self.peek() in "*+?":
            raise self.syntax_error("nothing to repeat")
        steps, repeats = self.atom(), 0
        while self.at < len(self.pattern):
            sign, counted = self.peek(), None
            if sign == "{":
                counted = self.match(_REPEAT)
            if counted is None and sign not in ("*", "+", "?"):
                break
            self.at += counted is None
            if repeats:
                raise self.syntax_error("a repetition of a repetition")
            if counted is None:
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            else:
                low = int(counted[1])
                high = low if not counted[2] else int(counted[3]) if counted[3] else None
            steps = self.limited(self.times(steps, low, high))
            repeats += 1
            self.at += self.peek() == "?"  # a lazy repetition matches the same whole texts
        return steps

    def times(self, steps: list[_Step], low: int, high: int | None) -> list[_Step]:
        if max(low, high or 0) > MAX_REPEAT or (high is not None and high < low):
            raise self.syntax_error(f"a bad repetition, expected at most {MAX_REPEAT}")
        count = max(low, high or 0) + 2
        if len(steps) * count > 2 * MAX_STEPS:
            raise LimitError(f"regex: program too long, expected at most {MAX_STEPS} steps")
        if high is None:
            return [*steps * low, _Step(jumps=(1, len(steps) + 2)), *steps, _Step(jumps=(-len(steps) - 1,))]
        optional: list[_Step] = []
        for _ in range(high - low):
            optional = [_Step(jumps=(1, len(steps) + len(optional) + 1)), *steps, *optional]
        return [*steps * low, *optional]

    def atom(self) -> list[_Step]:
        character = self.take()
        if character == "(":
            return self.group()
        if character == "[":
            return [_Step(test=self.bracket())]
        if character == ".":
            return [_Step(test=bool if "s" in self.flags else lambda c: c != "\n")]
        if character in "^$":
            return [_Step(assertion=self.anchor(character))]
        if character == "\\":
            return self.escaped()
        return [_Step(test=self.folded(character.__eq__))]

    def anchor(self, sign: str) -> Callable[[str, int], bool]:
        lines = "m" in self.flags
        if sign == "^":
            return lambda text, at: at == 0 or (lines and text[at - 1] == "\n")
        return lambda text, at: at == len(text) or (lines and text[at] == "\n")

    def folded(self, test: Test) -> Test:
        if "i" not in self.flags:
            return test
        return lambda c: test(c) or any(len(o) == 1 and test(o) for o in (c.lower(), c.upper()))

    def group(self) -> list[_Step]:
        flags = self.flags
        if self.peek() == "?":
            found = self.match(_GROUP)
            if found is None:
                raise self.syntax_error("a group that RE2 does not have")
            if found[3]:
                self.flags = (flags | set(found[1])) - set(found[2] or "")
                if found[3] == ")":
                    return []
        steps = self.choice()
        if self.at >= len(self.pattern):
            raise self.syntax_error("a bracket without an end")
        self.at += 1
        self.flags = flags
        return steps

    def escaped(self) -> list[_Step]:
        assertions = {"A": lambda text, at: at == 0, "z": lambda text, at: at == len(text), "b": _is_boundary}
        sign = self.peek()
        if sign in assertions:
            self.at += 1
            return [_Step(assertion=assertions[sign])]
        if sign == "B":
            self.at += 1
            return [_Step(assertion=lambda text, at: not _is_boundary(text, at))]
        if sign == "Q":
            end = self.pattern.find("\\E", self.at)
            words = self.pattern[self.at + 1 : end if end >= 0 else None]
            self.at = end + 2 if end >= 0 else len(self.pattern)
            return [_Step(test=self.folded(character.__eq__)) for character in words]
        kind, character = self.escape()
        return [_Step(test=self.folded(kind or character.__eq__))]

    def escape(self) -> tuple[Test | None, str]:
        """Parse the text after a backslash: a character class, or one character."""
        if found := self.match(_HEX):
            number = int(found[1] or found[2], 16)
            if number > 0x10FFFF:
                raise self.syntax_error("no such character")
            return None, chr(number)
        if found := self.match(_OCTAL):
            return None, chr(int(found[0], 8))
        if found := self.match(_CATEGORY):
            return self.category(found), ""
        character = self.take()
        if character.lower() in _CLASSES:
            test = _CLASSES[character.lower()]
            return (test if character.islower() else _negated(test)), ""
        if character in _CHARACTERS:
            return None, _CHARACTERS[character]
        if character.isascii() and (character.isalnum() or character == "_"):
            raise self.syntax_error(f"an escape that RE2 does not have, got {character!r}")
        return None, character

    def category(self, found: re.Match[str]) -> Test:
        name = found[1] or found[3]
        if name == "Any":
            categories: Test = bool
        elif not re.fullmatch(r"L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|C[cfos]?", name):
            raise UnsupportedError(f"regex {self.pattern[:100]!r}: the class of {name!r} is not supported")
        else:
            categories = functools.partial(_is_of, name)
        return categories if (found[0][0] == "p") != (found[2] == "^") else _negated(categories)

    def bracket(self) -> Test:
        """Parse a class in brackets."""
        negated = self.peek() == "^"
        self.at += negated
        tests: list[Test] = []
        first = True
        while first or self.peek() != "]":
            first = False
            if found := self.match(_POSIX_CLASS):
                if found[2] not in _POSIX:
                    raise self.syntax_error(f"no such class, got {found[2]!r}")
                tests.append(_negated(_POSIX[found[2]]) if found[1] else _POSIX[found[2]])
                continue
            tests.append(self.range())
        self.at += 1
        folded = [self.folded(test) for test in tests]
        return lambda c: any(test(c) for test in folded) != negated

    def range(self) -> Test:
        """Parse a class, a character, or a range of characters."""
        test, low = self.member()
        if test is not None:
            return test
        if self.peek() != "-" or self.pattern[self.at + 1 : self.at + 2] in ("]", ""):
            return low.__eq__
        self.at += 1
        test, high = self.member()
        if test is not None or high < low:
            raise self.syntax_error("a bad range")
        return lambda c: low <= c <= high

    def member(self) -> tuple[Test | None, str]:
        character = self.take()
        return self.escape() if character == "\\" else (None, character)

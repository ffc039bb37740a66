"""The option --assert: a condition on the numbers of a document, for scripts and CI."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import click

from ingot.errors import IngotError

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|==|!=|<|>)\s*([-+\w.]+)\s*")


class ConditionError(IngotError):
    """A condition of --assert does not hold, or two sides of a comparison do or do not differ."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the number `name`, as it was given."""

    text: str
    name: str
    sign: str
    number: float

    @staticmethod
    def of(text: str, names: Collection[str]) -> Condition:
        """Parse a condition. Raises UsageError for another form, and for a name that is not one of `names`."""
        match = _FORM.fullmatch(text)
        try:
            name, sign, number = match.groups() if match else ("", "", "")
            wanted = float(number)
        except ValueError:
            raise click.UsageError(f"--assert: got {text!r}, expected a form such as 'NAME<1e-5'") from None
        if name not in names:
            raise click.UsageError(f"--assert: no such name, got {name!r}, expected one of {', '.join(names)}")
        return Condition(text, name, sign, wanted)


def asserted(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add --assert to a command. names: those that a condition may use; it is checked before the command runs."""
    return click.option(
        "--assert", "conditions", multiple=True, metavar="'NAME<NUMBER'",
        help="Exit with code 1 unless this holds; operators: < <= > >= == !=. Repeatable.",
        callback=lambda context, parameter, texts: tuple(Condition.of(text, names) for text in texts),
    )  # fmt: skip


def expect(conditions: Sequence[Condition], numbers: Mapping[str, float | None]) -> None:
    """Raise ConditionError for the first condition that does not hold.

    numbers: the values by name; a condition on None, or on a number that another option asks for, does not hold.
    """
    for condition in conditions:
        got = numbers.get(condition.name)
        if got is None or not _OPERATORS[condition.sign](got, condition.number):
            shown = "none" if got is None else f"{got:.6g}"
            raise ConditionError(f"--assert {condition.text!r}: does not hold, got {condition.name} = {shown}")

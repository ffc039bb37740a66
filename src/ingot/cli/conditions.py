"""The option --assert: a condition on the numbers of a document, for scripts and CI."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

import click

from ingot.errors import IngotError

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|==|!=|<|>)\s*([-+\w.]+)\s*")

asserted = click.option(
    "--assert", "conditions", multiple=True, metavar="'NAME<NUMBER'",
    help="Exit with code 1 unless this holds; operators: < <= > >= == !=. Repeatable.",
)  # fmt: skip


class ConditionError(IngotError):
    """A condition of --assert does not hold, or two sides of a comparison differ."""

    exit_code = 1


def expect(conditions: Sequence[str], numbers: Mapping[str, float | None]) -> None:
    """Raise ConditionError for the first condition that does not hold, UsageError for one that cannot be read.

    numbers: the values by the names that a condition may use; a condition on None does not hold.
    """
    for text in conditions:
        match = _FORM.fullmatch(text)
        try:
            name, sign, number = match.groups() if match else ("", "", "")
            wanted = float(number)
        except ValueError:
            raise click.UsageError(f"--assert: got {text!r}, expected a form such as 'NAME<1e-5'") from None
        if name not in numbers:
            raise click.UsageError(f"--assert: no such name, got {name!r}, expected one of {', '.join(numbers)}")
        got = numbers[name]
        if got is None or not _OPERATORS[sign](got, wanted):
            raise ConditionError(
                f"--assert {text!r}: does not hold, got {name} = {'none' if got is None else f'{got:.6g}'}"
            )

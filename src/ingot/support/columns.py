"""Tables as text, for what objects print of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(title: str, rows: Iterable[Sequence[str]]) -> str:
    """A line, and indented below it one line for each row, whose cells are aligned in columns; all rows are equally
    long.
    """
    cells = [[in_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return "\n".join([title, *(f"  {line}" for line in lines)])


def in_one_line(text: str) -> str:
    """A text of a model for a line: as it is, or with quotes and escapes where it would break the line."""
    return text if text.isprintable() else repr(text)


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: "1 node", "2 nodes". plural: where it is not the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"

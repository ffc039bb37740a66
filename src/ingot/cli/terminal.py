"""Output of commands: tables, JSON, progress bars."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

_PICTURE_COLUMNS = 100  # width of a drawing written to a pipe
_TABLE_COLUMNS = 1 << 16  # width of a table written to a pipe: its lines are never folded
_LEAST_COLUMNS = 20  # least width of the text after a label


def printable(text: str) -> str:
    """Escape control and direction characters in `text`, so that a name from a model cannot control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def console(columns: int = _PICTURE_COLUMNS) -> Console:
    """Return a rich console on stdout; a pipe has COLUMNS columns if that variable is set, else `columns`.

    Markup is off, because names may contain square brackets.
    """
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, soft_wrap=False, width=columns_or(columns))


def columns_or(columns: int) -> int:
    """Return the width of the terminal on stdout; for a pipe, COLUMNS if set, else `columns`."""
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size().columns if is_known else columns


def print_json(document: Any) -> None:
    """Print a JSON document in ASCII."""
    click.echo(json_text(document))


def json_text(document: Any) -> str:
    """Return a document as JSON text in ASCII."""
    return json.dumps(document, indent=2, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def print_text(text: str) -> None:
    """Print text that may contain names from a model."""
    click.echo(printable(text))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), whole: Sequence[str] = ()
) -> None:
    """Print a table with a header; columns in `right` are right-aligned, columns in `whole` are never folded."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if any("\n" in cell or "\t" in cell for row in cells for cell in row):
        _print_folded_table(columns, cells, right, whole)
        return
    widths = [max(map(_width, column)) for column in zip(columns, *cells, strict=True)]
    total = sum(widths) + 2 * len(widths)
    if not fits(total):
        _print_folded_table(columns, cells, right, whole)
        return
    sides = [name in right for name in columns]
    head, *body = (_line(row, widths, sides) for row in (columns, *cells))
    head = click.style(head, bold=True) if sys.stdout.isatty() else head
    click.echo("\n".join(["", head, " " + "─" * (total - 2), *body, ""]))


def print_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with exactly one line per row, for programs that read lines; the last column is not padded."""
    cells = [list(columns), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    widths[-1] = 0
    click.echo("\n".join(_line(row, widths, [False] * len(columns)) for row in cells))


def _line(cells: Sequence[str], widths: Sequence[int], sides: Sequence[bool]) -> str:
    """Join the padded cells of a row; sides: whether each cell is right-aligned."""
    gaps = (" " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True))
    padded = (gap + cell if side else cell + gap for cell, gap, side in zip(cells, gaps, sides, strict=True))
    return f" {'  '.join(padded)}".rstrip()


def _width(text: str) -> int:
    """Return the number of terminal columns that text occupies."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _print_folded_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str], whole: Sequence[str]
) -> None:
    """Print a table whose cells have several lines or are too wide together; slower than `print_table`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)
    for row in cells:
        table.add_row(*row)
    console(_TABLE_COLUMNS).print(table)


def print_facts(rows: Sequence[tuple[str, str]]) -> None:
    """Print (label, text) rows, with the text folded to the terminal's width or COLUMNS.

    A row without a label continues the row above.
    """
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        for number, line in enumerate(_folded(text, width + 4)):
            print_text(f"  {label if number == 0 else '':<{width}}  {line}".rstrip())


def print_folded(text: str) -> None:
    """Print lines, folded to the terminal's width or COLUMNS; continuation lines are indented further."""
    for line in printable(text).splitlines():
        words = line.lstrip(" ")
        indent = len(line) - len(words)
        columns = max(columns_or(_TABLE_COLUMNS), indent + _LEAST_COLUMNS)
        first_indent, next_indent = " " * indent, " " * (indent + 4)
        is_short = len(line) <= columns
        # Paths are not broken, so that they can be copied.
        folded = textwrap.wrap(
            words,
            columns,
            initial_indent=first_indent,
            subsequent_indent=next_indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        click.echo(line if is_short else "\n".join(folded))


def fits(width: int) -> bool:
    """Return whether a table of this width fits on the output."""
    return width <= columns_or(_TABLE_COLUMNS)


def _folded(text: str, indent: int) -> list[str]:
    columns, shown = max(columns_or(_TABLE_COLUMNS) - indent, _LEAST_COLUMNS), printable(text)
    if len(shown) <= columns and shown.isprintable():
        return [shown]
    return textwrap.wrap(shown, columns, break_on_hyphens=False) or [""]


@contextlib.contextmanager
def progress(label: str) -> Iterator[None]:
    """Show a spinner and `label` on stderr while the block runs, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False, emoji=False).status(printable(label)):
        yield


@contextlib.contextmanager
def stages(label: str) -> Iterator[Callable[[str], None]]:
    """Yield a callback that shows what is done next, after `label`, with a spinner on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True, markup=False, emoji=False).status(printable(label)) as status:
        yield lambda text: status.update(printable(f"{label}: {text}"))


def track(items: Sequence[Any], label: str) -> Iterable[Any]:
    """Iterate with a progress bar on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track as bar

    return bar(items, label, console=Console(stderr=True, markup=False), transient=True)


@contextlib.contextmanager
def counting(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback (done, total) that draws a progress bar on stderr; None unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    # The bar runs only while work is in progress: it would delay or overwrite other output.
    bar = Progress(console=Console(stderr=True, markup=False), transient=True, redirect_stdout=False)
    task = bar.add_task(label)

    def show(done: int, total: int) -> None:
        if done < total:
            bar.start()
            bar.update(task, completed=done, total=total)
        else:
            bar.stop()

    try:
        yield show
    finally:
        bar.stop()


def human_bytes(count: int) -> str:
    """Format a number of bytes with three significant digits and a binary unit."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        del units[0]
    return f"{count} B" if units[0] == "B" else f"{amount:.{1 if amount < 100 else 0}f} {units[0]}"


def human_time(seconds: float) -> str:
    """Format seconds as us, ms or s with three significant digits."""
    for limit, scale, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"

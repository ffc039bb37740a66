"""HTML of objects in notebooks: tables and drawings.

They are self-contained fragments without scripts, in the colours of the page around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ingot.support.columns import counted

ROWS = 40  # of a table; the rest is counted
WIDTH = 720  # of a drawing, in pixels
_LETTER_WIDTH, _LINE_HEIGHT, _LEAST_LETTERS = 6.4, 13, 4  # of text in a drawing, in pixels
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#e15759")


def title(text: str) -> str:
    """Return a title in bold."""
    return f"<p><b>{escape(text)}</b></p>"


def table(head: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with a title: at most 40 rows, and the number of those that are left out."""
    names = "".join(f"<th style='text-align:left'>{escape(each)}</th>" for each in columns)
    body = "".join(_row(row) for row in rows[:ROWS])
    rest = f"<p>and {counted(len(rows) - ROWS, 'row')} more</p>" if len(rows) > ROWS else ""
    return f"{title(head)}<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _row(cells: Sequence[object]) -> str:
    return "<tr>" + "".join(f"<td style='text-align:left'>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


def drawing(head: str, parts: Iterable[str], height: int) -> str:
    """Return an SVG with a title. height: in pixels."""
    box = f"viewBox='0 0 {WIDTH} {height}' style='max-width:{WIDTH}px;width:100%;font:11px sans-serif'"
    return f"{title(head)}<svg role='img' aria-label='{escape(head)}' {box}>{''.join(parts)}</svg>"


def rectangle(x: float, y: float, width: float, height: float, number: int, tip: str, label: str) -> str:
    """Return a rectangle of an SVG. number: selects its colour. tip: the text under the mouse. label: the text in it,
    cut to its width, if it has room for some letters.
    """
    colour = _COLOURS[number % len(_COLOURS)]
    box = f"x='{x:.2f}' y='{y:.2f}' width='{max(width, 0.5):.2f}' height='{max(height, 0.5):.2f}'"
    drawn = f"<rect {box} fill='{colour}' stroke='currentColor' stroke-width='.3'><title>{escape(tip)}</title></rect>"
    letters = int((width - 6) / _LETTER_WIDTH)
    if letters < _LEAST_LETTERS or height < _LINE_HEIGHT:
        return drawn
    shown = label if len(label) <= letters else f"{label[: letters - 1]}\u2026"
    return f"{drawn}<text x='{x + 3:.1f}' y='{y + 11:.1f}' fill='#000' pointer-events='none'>{escape(shown)}</text>"


def text(x: float, y: float, words: str) -> str:
    """Return a line of text of an SVG."""
    return f"<text x='{x:.1f}' y='{y:.1f}' fill='currentColor'>{escape(words)}</text>"


def curve(head: str, values: Sequence[float], caption: str, height: int = 240) -> str:
    """Return a curve of at least one value, scaled to the drawing."""
    low, high = min(values), max(values)
    x, y = WIDTH / max(1, len(values) - 1), (height - 24) / ((high - low) or 1)
    points = " ".join(f"{i * x:.1f},{(high - value) * y + 2:.1f}" for i, value in enumerate(values))
    line = f"<polyline points='{points}' fill='none' stroke='{_COLOURS[0]}' stroke-width='1.5'/>"
    return drawing(head, [line, text(0, height - 5, caption)], height)

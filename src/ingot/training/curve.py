"""The curve of losses over steps: read from a file, drawn for a terminal and as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ingot.errors import LoadError
from ingot.load.hf.strict_json import parse_json, shown

_WIDTH, _HEIGHT, _MARGIN = 720, 360, 48  # of the SVG, in its units
_TICKS = 5
_LARGEST = float(np.finfo(np.float32).max)  # the largest number of a point
_NAMESPACE = "http:" + "//www.w3.org/2000/svg"  # a name that is not fetched
_SERIES = (("training", "loss", "#4878a8"), ("held out", "held_out", "#c8502d"))


@dataclass(frozen=True, slots=True)
class Point:
    """The record of a step. loss: of its batch, before the update; held_out: after the update, None if not measured.

    rate: its learning rate. seconds: since the first step of this run.
    """

    step: int
    loss: float
    held_out: float | None
    rate: float
    seconds: float


def read_points(content: bytes, where: str) -> list[Point]:
    """Parse the points of a file. Raises LoadError for invalid content, and LimitError for too deep nesting."""
    rows = parse_json(content, where)
    if not isinstance(rows, list):
        raise LoadError(f"{where}: no curve of losses, got {shown(rows)}, expected a list")
    points = [_point(row, where) for row in rows]
    for before, point in pairwise(points):
        if point.step <= before.step:
            raise LoadError(f"{where}: no curve of losses, got step {point.step} after {before.step}, expected more")
    return points


def _point(row: Any, where: str) -> Point:
    fits = isinstance(row, dict) and row.keys() == set(Point.__slots__)
    if fits:
        fits = type(row["step"]) is int and row["step"] >= 0
        losses = [row["loss"], *([] if row["held_out"] is None else [row["held_out"]])]
        numbers = [*losses, row["rate"], row["seconds"]]
        fits &= all(type(number) in (int, float) and abs(number) <= _LARGEST for number in numbers)
    if not fits:
        raise LoadError(f"{where}: no curve of losses, got {shown(row)}, expected numbers for {list(Point.__slots__)}")
    return Point(**row)


def drawn(points: Sequence[Point], columns: int = 64, rows: int = 12) -> list[str]:
    """Draw as lines of text: dots for the mean training loss of the steps of a column, rings for held-out losses."""
    if not points:
        return []
    first, last = points[0].step, points[-1].step
    low, high = _range(points)
    cells = [[" "] * columns for _ in range(rows)]

    def draw(step: int, value: float, mark: str) -> None:
        row = round((high - value) / (high - low) * (rows - 1))
        cells[row][(step - first) * (columns - 1) // max(last - first, 1)] = mark

    stretches: dict[int, list[Point]] = {}
    for point in points:
        stretches.setdefault((point.step - first) * (columns - 1) // max(last - first, 1), []).append(point)
    for stretch in stretches.values():
        draw(stretch[0].step, math.fsum(point.loss for point in stretch) / len(stretch), "•")
    for point in points:
        if point.held_out is not None:
            draw(point.step, point.held_out, "○")
    labels = [f"{high - (high - low) * row / (rows - 1):7.3f}" if row % 3 == 0 else " " * 7 for row in range(rows)]
    lines = [f"{label} │{''.join(row).rstrip()}" for label, row in zip(labels, cells, strict=True)]
    ends = f"{first + 1}{last + 1:>{columns - len(str(first + 1))}}"
    return [*lines, " " * 8 + "└" + "─" * columns, " " * 9 + ends, " " * 9 + "• training  ○ held out"]


def svg(points: Sequence[Point], title: str) -> str:
    """Draw the losses as a self-contained SVG. title: any text."""
    first, last = points[0].step, points[-1].step
    low, high = _range(points)

    def x(step: int) -> float:
        return _MARGIN + (step - first) / max(last - first, 1) * (_WIDTH - 2 * _MARGIN)

    def y(value: float) -> float:
        return _MARGIN + (high - value) / (high - low) * (_HEIGHT - 2 * _MARGIN)

    parts = [
        f'<svg xmlns="{_NAMESPACE}" viewBox="0 0 {_WIDTH} {_HEIGHT}"',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_MARGIN}" y="24" font-size="14">{_escaped(title)}</text>',
    ]
    shares = [tick / (_TICKS - 1) for tick in range(_TICKS)]
    for value in [low + (high - low) * share for share in shares]:
        parts += [
            f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>',
            f'<text x="{_MARGIN - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>',
        ]
    for step in sorted({first + round((last - first) * share) for share in shares}):
        parts.append(f'<text x="{x(step):.1f}" y="{_HEIGHT - _MARGIN + 18}" text-anchor="middle">{step + 1}</text>')
    for i, (name, field, color) in enumerate(_SERIES):
        known = [(point.step, value) for point in points if (value := getattr(point, field)) is not None]
        coordinates = [(f"{x(step):.1f}", f"{y(value):.1f}") for step, value in known]
        path = " ".join(map(",".join, coordinates))
        marked = coordinates if field == "held_out" or len(coordinates) == 1 else []  # a line of one point is invisible
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>',
            *(f'<circle cx="{cx}" cy="{cy}" r="3" fill="{color}"/>' for cx, cy in marked),
            f'<text x="{_WIDTH - _MARGIN}" y="{20 + 16 * i}" text-anchor="end" fill="{color}">{name}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def _range(points: Sequence[Point]) -> tuple[float, float]:
    values = [point.loss for point in points] + [p.held_out for p in points if p.held_out is not None]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _escaped(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

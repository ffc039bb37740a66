"""Positions of the nodes of a view: layers from top to bottom, grouped by module path. Linear in nodes and edges.

Positions are computed here, so that a page only draws. A group is a box around its nodes and inner groups; inside of a
group, an element is one row below the last element that it reads (longest path), and a row is ordered by the mean
position of what its elements read (Sugiyama et al. 1981).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

WIDTH, HEIGHT = 150.0, 34.0  # of a node
GAP_X, GAP_Y = 18.0, 30.0  # between elements of a row, and between rows
MARGIN, TITLE = 12.0, 22.0  # of a group
COLUMN_GAP, LEAST_COLUMN = 70.0, 2400.0  # between columns of a long group, and the least height of one
FLAT = 0.6  # height of a long group relative to its width
MOST_IN_ROW = 24  # further elements are in the next row: a fan-out of thousands stays readable

Path = tuple[str, ...]


@dataclass(slots=True)
class Box:
    """A group: its path and depth, and its rectangle."""

    path: Path
    x: float
    y: float
    width: float
    height: float


@dataclass(slots=True)
class Layout:
    """Positions: the upper left corner of each node, and the boxes of groups, outer ones first."""

    nodes: list[tuple[float, float]]
    boxes: list[Box]
    width: float
    height: float


@dataclass(slots=True)
class _Group:
    """A group during the layout. children: nodes by number, and inner groups by path, in order of appearance."""

    path: Path
    children: dict[int | Path, None] = field(default_factory=dict)
    positions: dict[int | Path, tuple[float, float]] = field(default_factory=dict)
    width: float = 0.0
    height: float = 0.0


def layout(paths: list[Path], edges: list[tuple[int, int]]) -> Layout:
    """Return the layout of nodes in topological order. paths: their groups. edges: pairs of numbers of nodes."""
    groups: dict[Path, _Group] = {(): _Group(())}
    for number, path in enumerate(paths):
        child: int | Path = number
        for length in range(len(path), -1, -1):
            group = groups.setdefault(path[:length], _Group(path[:length]))
            is_new = child not in group.children
            group.children[child] = None
            child = path[:length]
            if not is_new:
                break
    within = _edges_within(paths, edges)
    for path in sorted(groups, key=len, reverse=True):
        _arrange(groups[path], groups, within.get(path, {}))
    nodes, boxes = [(0.0, 0.0)] * len(paths), []
    waiting: list[tuple[Path, float, float]] = [((), 0.0, 0.0)]
    for path, x, y in waiting:
        group = groups[path]
        if path:
            boxes.append(Box(path, x, y, group.width, group.height))
        for child, (dx, dy) in group.positions.items():
            if isinstance(child, int):
                nodes[child] = (x + dx, y + dy)
            else:
                waiting.append((child, x + dx, y + dy))
    return Layout(nodes, boxes, groups[()].width, groups[()].height)


def _edges_within(
    paths: list[Path], edges: list[tuple[int, int]]
) -> dict[Path, dict[int | Path, dict[int | Path, None]]]:
    """Return the edges of each group, between its children: by group, what each child reads."""
    found: dict[Path, dict[int | Path, dict[int | Path, None]]] = defaultdict(lambda: defaultdict(dict))
    for source, target in edges:
        a, b = paths[source], paths[target]
        common = 0
        while common < min(len(a), len(b)) and a[common] == b[common]:
            common += 1
        first: int | Path = source if len(a) == common else a[: common + 1]
        second: int | Path = target if len(b) == common else b[: common + 1]
        if first != second:
            found[a[:common]][second][first] = None
    return found


def _arrange(group: _Group, groups: dict[Path, _Group], reads: dict[int | Path, dict[int | Path, None]]) -> None:
    """Set the positions of a group's children, and its size."""
    rank: dict[int | Path, int] = {}
    rows: dict[int, list[int | Path]] = defaultdict(list)
    for child in group.children:  # of groups that read each other, the first is above
        rank[child] = 1 + max((rank[each] for each in reads.get(child, ()) if each in rank), default=-1)
        rows[rank[child]].append(child)
    centre: dict[int | Path, float] = {}
    lines: list[_Line] = []
    for number in sorted(rows):
        ordered = sorted(rows[number], key=lambda child: _mean(reads.get(child, {}), centre))
        for begin in range(0, len(ordered), MOST_IN_ROW):
            lines.append(_line(ordered[begin : begin + MOST_IN_ROW], groups, centre))
    _stack(group, lines)


@dataclass(slots=True)
class _Line:
    """Elements of a row with their left edges, relative to the middle of the row."""

    elements: list[tuple[int | Path, float]]
    width: float
    height: float


def _line(children: list[int | Path], groups: dict[Path, _Group], centre: dict[int | Path, float]) -> _Line:
    """Return a row of elements; their centres are added."""
    sizes = [(WIDTH, HEIGHT) if isinstance(c, int) else (groups[c].width, groups[c].height) for c in children]
    total = sum(width for width, _ in sizes) + GAP_X * (len(sizes) - 1)
    elements, x = [], -total / 2
    for child, (width, _) in zip(children, sizes, strict=True):
        elements.append((child, x))
        centre[child] = x + width / 2
        x += width + GAP_X
    return _Line(elements, total, max(height for _, height in sizes))


def _stack(group: _Group, lines: list[_Line]) -> None:
    """Stack rows; those of a long group are in several columns, so that it is about square."""
    width, height = max((line.width for line in lines), default=0.0), sum(line.height + GAP_Y for line in lines)
    most = max(math.sqrt(width * height / FLAT), LEAST_COLUMN)
    margin, title = (MARGIN, TITLE) if group.path else (0.0, 0.0)
    left, top, bottom = margin, title + margin, 0.0
    for line in lines:
        if top > title + margin and top - title + line.height > most:
            left, top = left + width + COLUMN_GAP, title + margin
        for child, x in line.elements:
            group.positions[child] = (left + width / 2 + x, top)
        top += line.height + GAP_Y
        bottom = max(bottom, top - GAP_Y)
    group.width, group.height = left + width + margin, bottom + margin


def _mean(reads: dict[int | Path, None], centre: dict[int | Path, float]) -> float:
    known = [centre[each] for each in reads if each in centre]
    return sum(known) / len(known) if known else 0.0

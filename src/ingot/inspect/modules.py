"""The modules of a model: the paths that its nodes lie on, and how much lies on each."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from ingot.inspect.view import Edge, Item, View


def layer_paths(view: View) -> dict[str, list[str]]:
    """The parts of the path of each item, by its name; [] for one that lies on none.

    It is that of the module or node of the loaded model that an item stands for; else the longest of those in its name
    and in the names of its weights; else that of what makes its operands. The last part of a name, which names the node
    or value itself, is no part of a path.
    """
    paths: dict[str, list[str]] = {}
    for key, item in view.items.items():
        paths[key] = _path(view, item, paths)
    return paths


def _path(view: View, item: Item, paths: dict[str, list[str]]) -> list[str]:
    """paths: of the items before."""
    for source in item.sources:
        found = _parts(source.module) if source.module else _parts(source.name)[:-1]
        if found or source.name.startswith("/"):  # as torch names ONNX nodes of the outermost module
            return found
    weights = [edge.name for edge in _stored(view, item)]
    own = item.name.split(" ")[0]  # of a step of several nodes, the first
    if longest := max((_parts(name)[:-1] for name in (own.partition(".gradient")[0], *weights)), key=len):
        return longest
    above = [view.edges[name].producer for name in item.operands if name is not None]
    return next((paths[name] for name in reversed(above) if name is not None and name in paths), [])


def _stored(view: View, item: Item) -> list[Edge]:
    """The weights and constants that an item reads."""
    read = (view.edges[name] for name in dict.fromkeys(item.operands) if name is not None)
    return [edge for edge in read if edge.kind in ("weight", "constant")]


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[./]", name) if part]


def module_rows(view: View) -> list[dict[str, Any]]:
    """Each path, a module before those inside it, with its nodes, ops and elements of weights and of constants that are
    floats, those inside included. A weight counts where it is read first.
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    counted: set[str] = set()
    for key, path in layer_paths(view).items():
        item = view.items[key]
        new = [edge for edge in _stored(view, item) if edge.name not in counted]
        counted.update(edge.name for edge in new)
        elements = sum(_elements(edge.shape) for edge in new if edge.kind == "weight" or "f" in edge.dtype)
        for length in range(1, len(path) + 1):
            row = rows.setdefault(tuple(path[:length]), {"nodes": 0, "parameters": 0, "ops": Counter()})
            row["nodes"] += 1
            row["parameters"] += elements
            row["ops"][item.op] += 1
    return [
        {"path": ".".join(path), "depth": len(path), **rows[path], "ops": dict(rows[path]["ops"].most_common())}
        for path in _nested(rows)
    ]


def _nested(rows: dict[tuple[str, ...], Any]) -> list[tuple[str, ...]]:
    """Paths in order of appearance, each behind the one that it lies in and that one's earlier paths."""
    first = {path: number for number, path in enumerate(rows)}
    return sorted(rows, key=lambda path: [first[path[:length]] for length in range(1, len(path) + 1)])


def _elements(shape: list[int | str | None] | None) -> int:
    count = 1
    for dim in shape or ():
        count *= dim if isinstance(dim, int) else 1
    return count


def repeated_layers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The modules whose parts are numbered, with how many there are, such as `model.layers` with 28."""
    numbered: Counter[str] = Counter()
    for row in rows:
        path, _, last = row["path"].rpartition(".")
        if path and last.isdecimal():
            numbered[path] += 1
    return [{"path": path, "count": count} for path, count in numbered.items()]

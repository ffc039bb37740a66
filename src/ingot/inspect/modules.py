"""The modules of a model: the module path of each node, and totals by module."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from ingot.inspect.view import Edge, Item, View


def layer_paths(view: View) -> dict[str, list[str]]:
    """Return the components of each item's module path, by item name; [] for an item without a module.

    The path is that of the item's source module or node; else the longest path in its name and in the names of its
    weights; else that of the producer of an operand. The last component of a name is the node or value itself and does
    not belong to the path.
    """
    paths: dict[str, list[str]] = {}
    for key, item in view.items.items():
        paths[key] = _path(view, item, paths)
    return paths


def _path(view: View, item: Item, paths: dict[str, list[str]]) -> list[str]:
    """Return the path of an item. paths: those of the items before it."""
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
    """Return the weights and constants that an item reads."""
    read = (view.edges[name] for name in dict.fromkeys(item.operands) if name is not None)
    return [edge for edge in read if edge.kind in ("weight", "constant")]


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[./]", name) if part]


def module_rows(view: View) -> list[dict[str, Any]]:
    """Return a row for each module, parents first, with its nodes, ops and parameters, including inner modules.

    Parameters are the elements of weights and of float constants. A weight counts for the module that reads it first.
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
    """Return the paths in depth-first order, siblings in order of appearance."""
    first = {path: number for number, path in enumerate(rows)}
    return sorted(rows, key=lambda path: [first[path[:length]] for length in range(1, len(path) + 1)])


def _elements(shape: list[int | str | None] | None) -> int:
    count = 1
    for dim in shape or ():
        count *= dim if isinstance(dim, int) else 1
    return count


def repeated_layers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the modules with numbered children and the number of children, such as `model.layers` with 28."""
    numbered: Counter[str] = Counter()
    for row in rows:
        path, _, last = row["path"].rpartition(".")
        if path and last.isdecimal():
            numbered[path] += 1
    return [{"path": path, "count": count} for path, count in numbered.items()]

"""Facts of nodes for the page: numbers as colours, refused kernels, changes of passes, errors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from ingot.errors import bounded
from ingot.inspect.comparison.result import Comparison
from ingot.inspect.model import InspectedModel
from ingot.inspect.view import View
from ingot.ir.text import diff, dump
from ingot.passes import changes
from ingot.session.reports import refusals

_MOST_NODES = 2000  # of a graph whose changes are shown: a dump of the graph is compared after each
_MOST_CHANGES = 200
_MOST_LINES = 120  # of one change

Numbers = dict[str, dict[str, float]]  # by quantity, then by value


def step_numbers(model: InspectedModel, measured: Iterable[dict[str, Any]], comparison: Comparison | None) -> Numbers:
    """Return the numbers that colour nodes: bytes and FLOPs of their steps, measured times, errors; none is left out.

    The error is the largest one relative to the tolerance, or the noise if the comparison ranks a precision.
    """
    found: dict[str, Counter[str]] = {"time": Counter(), "bytes": Counter(), "flops": Counter()}
    for row in measured:
        found["time"][row["node"]] += row["nanoseconds"]
    if model.has_program:
        for item in model.view("plan").items.values():
            node = item.name.partition("#")[0]
            for key in ("bytes", "flops"):
                found[key][node] += int(item.facts.get(key, 0))
    numbers: Numbers = {key: dict(each) for key, each in found.items() if any(each.values())}
    if comparison is not None:
        is_ranked = comparison.is_precision
        numbers["error"] = {row.name: (row.noise or 0.0) if is_ranked else row.ratio for row in comparison.values}
    return numbers


def columns(view: View, numbers: Numbers) -> dict[str, list[float | None]]:
    """Return a column for each quantity: the number of each item, None where it has none."""
    found = {}
    for quantity, by_value in numbers.items():
        column = []
        for item in view.items.values():
            names = {item.name.partition("#")[0], *item.results}
            column.append(max((by_value[name] for name in names if name in by_value), default=None))
        if any(number is not None for number in column):
            found[quantity] = column
    return found


def refused_kernels(model: InspectedModel) -> dict[str, list[str]]:
    """Return the reasons against the other kernels by node, for nodes with a choice."""
    found: dict[str, list[str]] = defaultdict(list)
    if model.has_program:
        for choice in model.explain(None).choices:
            found[choice.node] += refusals(choice.candidates[:-1])
    return found


def pass_changes(model: InspectedModel) -> list[dict[str, Any]] | None:
    """Return the changes of the passes in order, each with a diff of the graph's text; None for a large graph.

    A saved program and a step of training have passes of their own, which are not shown.
    """
    if model.format == "program" or model.is_step or len(model.loaded) > _MOST_NODES:
        return None
    graph, found = model.loaded.copy(), []
    before = dump(graph, is_short=True)
    with bounded(model.path):
        for name in changes(graph):
            after = dump(graph, is_short=True)
            lines = diff(before, after).splitlines()[2:]
            found.append(
                {
                    "name": name,
                    "nodes": len(graph),
                    "diff": lines[:_MOST_LINES],
                    "more": max(0, len(lines) - _MOST_LINES),
                }
            )
            before = after
            if len(found) == _MOST_CHANGES:
                break
    return found


def errors_document(comparison: Comparison | None) -> dict[str, Any] | None:
    """Return the comparison as in `ingot compare --json`, with its text."""
    return None if comparison is None else comparison.to_json() | {"text": str(comparison)}

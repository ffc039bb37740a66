"""Two reports in one page: the difference of the plans, and which nodes differ at each stage."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ingot.inspect.document import VERSION
from ingot.inspect.model import InspectedModel
from ingot.inspect.plans import difference_document
from ingot.inspect.report import page_of, report_document
from ingot.inspect.view import Item, View

ONLY = 2  # the mark of an item that the other side lacks; 0 is the same, 1 is changed
_ORDER = frozenset({"step", "barrier"})  # facts of a step that depend on other steps

Measured = list[dict[str, Any]] | None


def against_document(a: InspectedModel, b: InspectedModel, measured: tuple[Measured, Measured]) -> dict[str, Any]:
    """Return everything that the page of two models shows. measured: times of the steps of each.

    Raises the errors of the passes and of compilation, and InputError for a model whose dims have no values.
    """
    documents = [report_document(model, times) for model, times in zip((a, b), measured, strict=True)]
    difference = difference_document(a, b)
    stages = [stage for stage in documents[0]["stages"] if stage in documents[1]["stages"]]
    difference["marks"] = {
        stage: dict(zip("ab", _marks(a.view(stage), b.view(stage)), strict=True)) for stage in stages
    }
    difference["nodes"] = _nodes(a.view("plan"), b.view("plan"), measured)
    return {"version": VERSION, "stage": "report", "a": documents[0], "b": documents[1], "difference": difference}


def against_page(document: dict[str, Any]) -> str:
    """Return the page of two models, see `report_page`."""
    sides = {side: {key: each for key, each in document[side].items() if key != "code"} for side in "ab"}
    code = {side: document[side]["code"] for side in "ab"}
    return page_of(document | sides, code, f"{document['a']['name']} and {document['b']['name']}", "against")


def _marks(a: View, b: View) -> list[list[int]]:
    """Return for each item of each side whether it is the same in the other, changed, or only there."""
    views = (a, b)
    return [
        [
            ONLY if name not in other.items else int(_facts(one, item) != _facts(other, other.items[name]))
            for name, item in one.items.items()
        ]
        for one, other in (views, views[::-1])
    ]


def _facts(view: View, item: Item) -> tuple[Any, ...]:
    """Return what makes two items of a name the same: addresses and the order of steps do not count."""
    types = [view.edges[name].type if name in view.edges else "" for name in item.results]
    facts = {key: value for key, value in item.facts.items() if key not in _ORDER}
    return item.op, item.operands, item.results, types, item.attributes, facts


def _nodes(a: View, b: View, measured: tuple[Measured, Measured]) -> list[dict[str, Any]]:
    """Return a row for each node with steps, in A's order, then those of B alone: kernels, bytes, FLOPs and time."""
    sides = [_by_node(view, times) for view, times in zip((a, b), measured, strict=True)]
    return [{"name": name, "a": sides[0].get(name), "b": sides[1].get(name)} for name in {**sides[0], **sides[1]}]


def _by_node(view: View, measured: Measured) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for item in view.items.values():
        node = item.name.partition("#")[0]
        row = found.setdefault(node, {"kernels": [], "bytes": 0, "flops": 0, "nanoseconds": None})
        row["kernels"].append(item.op)
        row["bytes"] += int(item.facts.get("bytes", 0))
        row["flops"] += int(item.facts.get("flops", 0))
    if measured is not None:
        times: Counter[str] = Counter()
        for each in measured:
            times[each["node"]] += each["nanoseconds"]
        for name, nanoseconds in times.items():
            if name in found:
                found[name]["nanoseconds"] = nanoseconds
    return found

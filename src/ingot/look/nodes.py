"""Nodes: all of them, one with all that is known of it, and those around one."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from ingot.errors import InputError
from ingot.ir import Graph, Node
from ingot.look.became import became_of
from ingot.look.document import head
from ingot.look.model import LookedAt
from ingot.look.view import Item, View, around


def row(view: View, item: Item) -> dict[str, Any]:
    """A node in a list."""
    types = [view.edges[name].type for name in item.results]
    return {
        "name": item.name, "op": item.op, "operands": item.operands, "outputs": item.results, "types": types,
        "attributes": item.attributes,
    } | item.facts  # fmt: skip


def list_document(model: LookedAt, stage: str, op: str | None = None, pattern: str | None = None) -> dict[str, Any]:
    """The nodes at a stage, in order. op: only those of an op or kernel; pattern: only those one of whose values has
    such a name; each may have `*`, `?` and `[...]`, and a pattern without any is looked for in names.

    Raises InputError where nothing fits.
    """
    view = model.view(stage)
    found = [
        item
        for item in view.items.values()
        if (op is None or fnmatchcase(item.op, op))
        and (pattern is None or any(_fits(name, pattern) for name in (item.name, *item.results)))
    ]
    if not found and view.items:
        ops = sorted({item.op for item in view.items.values()})
        got = " and ".join(f"{what} {given!r}" for what, given in (("op", op), ("name", pattern)) if given is not None)
        raise InputError(
            f"list-nodes: nothing fits, got {got}, expected a part of a name, or an op of {', '.join(ops)}"
        )
    return head(model, stage) | {"count": len(found), "of": len(view.items), "nodes": [row(view, i) for i in found]}


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern if re.search(r"[*?[]", pattern) else f"*{pattern}*")


def node_document(model: LookedAt, stage: str, name: str) -> dict[str, Any]:
    """One node: attributes, operands and results with their types, what makes and what reads them, what it became.

    name: of any value that it makes. Raises InputError for a name that no node has.
    """
    view = model.view(stage)
    item = _item(model, view, stage, name)
    operands = [None if operand is None else view.edges[operand].document() for operand in item.operands]
    named = _operand_names(view, item)
    for operand, role in zip(operands, named, strict=True):
        if operand is not None:
            operand["as"] = role
    producers, consumers = around(view, item)
    returned = [external for external, value in view.outputs.items() if value in item.results]
    return head(model, stage) | {
        "name": item.name, "op": item.op, "what": _meaning(view, item), "attributes": item.attributes,
        "operands": operands, "outputs": [view.edges[each].document() for each in item.results],
        "producers": producers, "consumers": consumers, "returned_as": returned,
    } | item.facts | {"became": became(model, stage, item)}  # fmt: skip


def _item(model: LookedAt, view: View, stage: str, name: str) -> Item:
    """A node by a value's name. Where another stage has it, the error says what it became."""
    try:
        return view.item(name)
    except InputError as error:
        known = model.loaded.values.get(name)
        if stage == "graph" or known is None or known.producer is None:
            raise InputError(f"{stage}: {error}") from error
        rows = became_of(model.optimized, model.loaded, known.producer)
        if stage != "optimized":
            left = (model.view("optimized").items.get(each["name"]) for each in rows)
            rows = [step for item in left if item is not None for step in became(model, "optimized", item) or ()]
        now = ", ".join(f"{each['name']!r}" for each in rows) or "nothing"
        raise InputError(f"{stage}: no such node, got {name!r}, which is left in {now}") from error


def _node(view: View, item: Item) -> Node | None:
    """The node of a graph that an item is."""
    return view.source.producer(item.results[0]) if isinstance(view.source, Graph) else None


def _operand_names(view: View, item: Item) -> list[str | None]:
    """What the op calls its operands; of a step, nothing."""
    node = _node(view, item)
    if node is None:
        return [None] * len(item.operands)
    names = node.op.operand_names
    return [names[min(i, len(names) - 1)] if names else None for i in range(len(item.operands))]


def _meaning(view: View, item: Item) -> str:
    node = _node(view, item)
    return "" if node is None else node.op.doc.strip().partition("\n")[0]


def became(model: LookedAt, stage: str, item: Item) -> list[dict[str, Any]] | None:
    """What became of a node at the next stage; None where dims have no values yet, or there is no next one.

    Of a loaded graph: the nodes after the passes. Of one after the passes: the steps.
    """
    if stage == "graph":
        node = model.loaded.producer(item.results[0])
        assert node is not None
        return became_of(model.optimized, model.loaded, node)
    if stage != "optimized" or not model.has_program:
        return None
    try:
        explained = model.explain(item.results[0])
    except InputError:
        return []
    how = "fused" if explained.fused else "step"
    found = [{"name": c.node, "op": c.candidates[-1][0], "how": how} for c in explained.choices]
    return found or [{"name": item.name, "op": item.op, "how": "reference"}]


def trace_document(model: LookedAt, stage: str, name: str, up: int, down: int) -> dict[str, Any]:
    """The nodes around one: up to `up` steps before it and `down` behind it, in order, with their distance.

    name: of a value. Of an input, weight or constant, what reads it is at distance 1. Raises InputError for a name that
    is not there.
    """
    view = model.view(stage)
    edge = view.edges.get(name)
    start = None if edge is not None and edge.producer is None else _item(model, view, stage, name)
    distances: dict[str, int] = {} if start is None else {start.name: 0}
    for direction, most in ((-1, up), (1, down)):
        frontier = [] if start is None else [start.name]
        for distance in range(1, most + 1):
            if distance > 1 and not frontier:
                break
            near = [n for each in frontier for n in around(view, view.items[each])[direction > 0]]
            if start is None and distance == 1 and direction > 0 and edge is not None:
                near = edge.users
            frontier = [each for each in dict.fromkeys(near) if each not in distances]
            distances |= dict.fromkeys(frontier, direction * distance)
    found = [row(view, item) | {"distance": distances[key]} for key, item in view.items.items() if key in distances]
    cut = {
        "above": any(n not in distances for key in distances for n in around(view, view.items[key])[0]),
        "below": any(n not in distances for key in distances for n in around(view, view.items[key])[1]),
    }
    return head(model, stage) | {"name": name, "up": up, "down": down, "goes_on": cut, "nodes": found}

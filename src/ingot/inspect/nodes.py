"""Documents of nodes: a list of nodes, all facts on one node, and the nodes around one."""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

from ingot.errors import InputError
from ingot.inspect.document import head
from ingot.inspect.model import InspectedModel
from ingot.inspect.provenance import became_of
from ingot.inspect.view import Item, View, around
from ingot.ir.graph import Graph, Node
from ingot.session.reports import sources_document


def row(view: View, item: Item) -> dict[str, Any]:
    """Return the row of a node in a list."""
    types = [view.edges[name].type for name in item.results]
    return {
        "name": item.name, "op": item.op, "operands": item.operands, "outputs": item.results, "types": types,
        "attributes": item.attributes, "sources": sources_document(item.sources),
    } | item.facts  # fmt: skip


def matching(view: View, op: str | None, pattern: str | None) -> list[Item]:
    """Return the items at a stage, in order, that match both patterns.

    op: matches the item's op or kernel, or the op of a source node. pattern: matches the name of the item, of a value,
    of a source node or of its module. Patterns may contain `*`, `?` and `[...]`; a name pattern without these matches
    names that contain it. Raises InputError if no item matches.
    """
    found = [
        item
        for item in view.items.values()
        if (op is None or any(fnmatchcase(name, op) for name in ops_of(item)))
        and (pattern is None or any(fits_pattern(name, pattern) for name in _names_of(item)))
    ]
    if not found and view.items:
        ops = sorted({name for item in view.items.values() for name in ops_of(item)})
        got = " and ".join(f"{what} {given!r}" for what, given in (("op", op), ("name", pattern)) if given is not None)
        raise InputError(f"no node matches, got {got}, expected a part of a name, or an op of {', '.join(ops)}")
    return found


def ops_of(item: Item) -> list[str]:
    """Return the item's op or kernel, and the ops of its source nodes, with and without their domains."""
    named = [f"{source.domain}.{source.op}" if source.domain else source.op for source in item.sources]
    return list(dict.fromkeys([item.op, *(source.op for source in item.sources), *named]))


def _names_of(item: Item) -> list[str]:
    own = [name for source in item.sources for name in (source.name, source.module) if name]
    return [item.name, *item.results, *own]


def list_document(
    model: InspectedModel, stage: str, op: str | None = None, pattern: str | None = None
) -> dict[str, Any]:
    """Return the nodes at a stage that `matching` finds, in order, with counts by op and by source op.

    Raises InputError if no node matches.
    """
    view = model.view(stage)
    found = matching(view, op, pattern)
    sources = {source for item in found for source in item.sources}
    return head(model, stage) | {
        "count": len(found), "of": len(view.items), "ops": dict(Counter(item.op for item in found).most_common()),
        "source_ops": dict(Counter(source.op for source in sorted(sources)).most_common()),
        "nodes": [row(view, item) for item in found],
    }  # fmt: skip


def fits_pattern(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern with `*`, `?` and `[...]`; one without any is looked for in the name."""
    return fnmatchcase(name, pattern if re.search(r"[*?[]", pattern) else f"*{pattern}*")


def node_document(model: InspectedModel, stage: str, name: str) -> dict[str, Any]:
    """Return one node: attributes, operands and results with types, producers, consumers, and its later forms.

    name: of a value that the node computes, or of a node of the loaded model; `also` lists other nodes from the same
    source node. Raises InputError for an unknown name.
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
    also = [each.name for each in view.items_from(name) if each is not item and item.is_from(name)]
    return head(model, stage) | {
        "name": item.name, "op": item.op, "sources": sources_document(item.sources), "also": also,
        "what": _meaning(view, item), "attributes": item.attributes,
        "operands": operands, "outputs": [view.edges[each].document() for each in item.results],
        "producers": producers, "consumers": consumers, "returned_as": returned,
    } | item.facts | {"became": became(model, stage, item)}  # fmt: skip


def _item(model: InspectedModel, view: View, stage: str, name: str) -> Item:
    """Return a node by a value's name. If only an earlier stage has the name, the error names the later nodes."""
    try:
        return view.item(name)
    except InputError as error:
        node = None if stage == "graph" else _loaded(model, name)
        if node is None:
            raise InputError(f"{stage}: {error}") from error
        rows = became_of(model.optimized, model.loaded, node)
        if stage != "optimized":
            remaining = (model.view("optimized").items.get(each["name"]) for each in rows)
            rows = [step for item in remaining if item is not None for step in became(model, "optimized", item) or ()]
        now = ", ".join(f"{each['name']!r}" for each in rows) or "nothing"
        raise InputError(f"{stage}: no such node, got {name!r}, which became {now}") from error


def _loaded(model: InspectedModel, name: str) -> Node | None:
    """Return the node of the loaded graph that computes a value, or the last node from a source node of this name."""
    if name in model.loaded.values:
        return model.loaded.producer(name)
    found = [node for node in model.loaded.nodes if any(source.name == name for source in node.sources)]
    return found[-1] if found else None


def _started(model: InspectedModel, view: View, stage: str, name: str) -> list[str]:
    """Return the names of the nodes that a name refers to: the producer of a value, or all nodes of a source node."""
    item = _item(model, view, stage, name)
    return [each.name for each in view.items_from(name)] if item.is_from(name) else [item.name]


def _node(view: View, item: Item) -> Node | None:
    """Return the graph's node of an item; None for a step."""
    return view.source.producer(item.results[0]) if isinstance(view.source, Graph) else None


def _operand_names(view: View, item: Item) -> list[str | None]:
    """Return the op's names of the operands; None for each operand of a step."""
    node = _node(view, item)
    if node is None:
        return [None] * len(item.operands)
    names = node.op.operand_names
    return [names[min(i, len(names) - 1)] if names else None for i in range(len(item.operands))]


def _meaning(view: View, item: Item) -> str:
    node = _node(view, item)
    return "" if node is None else node.op.doc.strip().partition("\n")[0]


def became(model: InspectedModel, stage: str, item: Item) -> list[dict[str, Any]] | None:
    """Return the forms of a node at the next stage; None if dims have no values, or after the last stage.

    For a loaded graph these are the nodes after the passes; for a graph after the passes, the steps.
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


def trace_document(model: InspectedModel, stage: str, name: str, up: int, down: int) -> dict[str, Any]:
    """Return the nodes around one: up to `up` levels above it and `down` levels below it, in order, with distances.

    name: of a value, or of a node of the loaded model, which may have become several nodes. For an input, weight or
    constant, its readers have distance 1. Raises InputError for an unknown name.
    """
    view = model.view(stage)
    distances = distances_from(model, view, stage, name, up, down)
    found = [row(view, item) | {"distance": distances[key]} for key, item in view.items.items() if key in distances]
    cut = {
        "above": any(n not in distances for key in distances for n in around(view, view.items[key])[0]),
        "below": any(n not in distances for key in distances for n in around(view, view.items[key])[1]),
    }
    return head(model, stage) | {"name": name, "up": up, "down": down, "goes_on": cut, "nodes": found}


def distances_from(model: InspectedModel, view: View, stage: str, name: str, up: int, down: int) -> dict[str, int]:
    """Return the distance of each item within `up` and `down` levels of a node, by name; see `trace_document`."""
    edge = view.edges.get(name)
    start = [] if edge is not None and edge.producer is None else _started(model, view, stage, name)
    distances: dict[str, int] = dict.fromkeys(start, 0)
    for direction, most in ((-1, up), (1, down)):
        frontier = start
        for distance in range(1, most + 1):
            if distance > 1 and not frontier:
                break
            near = [n for each in frontier for n in around(view, view.items[each])[direction > 0]]
            if not start and distance == 1 and direction > 0 and edge is not None:
                near = edge.users
            frontier = [each for each in dict.fromkeys(near) if each not in distances]
            distances |= dict.fromkeys(frontier, direction * distance)
    return distances

"""Draw a view as Graphviz text. Names from the model appear only in quoted labels; identifiers are numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from ingot.inspect.document import head
from ingot.inspect.model import InspectedModel
from ingot.inspect.modules import layer_paths
from ingot.inspect.nodes import distances_from, matching
from ingot.inspect.view import Edge, Item, View
from ingot.ir.graph import Source
from ingot.ir.node import shown_sources
from ingot.session.reports import sources_document

_SHAPES = {
    "input": "ellipse",
    "output": "ellipse",
    "weight": "cylinder",
    "constant": "note",
    "state": "folder",
    "cut": "plaintext",
}
_LARGEST = 4  # ops in the label of a layer


DEPTH = 3  # default depth of module paths of layers
STEPS = 2  # default distance around a node


def dot_document(
    model: InspectedModel,
    stage: str,
    detail: str,
    depth: int | None = None,
    *,
    op: str | None = None,
    pattern: str | None = None,
    node: str | None = None,
) -> dict[str, Any]:
    """Return a drawing of a model at a stage: boxes and arrows, and the same as Graphviz text under "dot".

    detail: "full", a box for each node, weight, input and output; "layers", a box for each layer, given by the first
    `depth` components of module paths; "summary", a box for each op. op, pattern: only the nodes that `matching` finds.
    node: only the nodes within distance `depth` of one. Raises InputError if no node matches.
    """
    view = model.view(stage)
    if op is not None or pattern is not None or node is not None:
        chosen = {item.name for item in matching(view, op, pattern)}
        if node is not None:
            chosen &= distances_from(model, view, stage, node, depth or STEPS, depth or STEPS).keys()
        view = _part(view, chosen)
    parts = depth if depth is not None and node is None else DEPTH
    boxes, arrows = _full(view) if detail == "full" else _grouped(view, _groups(view, detail, parts))
    used = (depth or STEPS) if node is not None else parts if detail == "layers" else None
    document = head(model, stage) | {"detail": detail, "depth": used}
    return document | {"nodes": boxes, "edges": arrows, "dot": _text(view.name, boxes, arrows)}


def _part(view: View, chosen: set[str]) -> View:
    """Return a view with only the chosen items; their operands from other items become boxes of kind "cut"."""
    items = {key: item for key, item in view.items.items() if key in chosen}
    names = {name for item in items.values() for name in (*item.operands, *item.results) if name is not None}
    edges = {name: _cut(edge, chosen) for name, edge in view.edges.items() if name in names}
    inputs = [name for name in view.inputs if name in edges]
    outputs = {external: name for external, name in view.outputs.items() if name in edges and edges[name].producer}
    return replace(view, items=items, edges=edges, inputs=inputs, outputs=outputs, states={})


def _cut(edge: Edge, chosen: set[str]) -> Edge:
    users = [user for user in edge.users if user in chosen]
    if edge.producer is None or edge.producer in chosen:
        return replace(edge, users=users)
    return replace(edge, users=users, producer=None, kind="cut")


Rows = list[dict[str, Any]]


def _full(view: View) -> tuple[Rows, Rows]:
    ids: dict[str, str] = {}
    boxes: Rows = []
    arrows: Rows = []

    def box(id: str, label: str, kind: str, sources: tuple[Source, ...] = ()) -> None:
        row = {"id": id, "label": label, "kind": kind}
        boxes.append(row | ({"sources": sources_document(sources)} if kind == "node" else {}))

    returned = {*view.outputs.values(), *view.states.values()}
    for name, edge in view.edges.items():
        if edge.producer is None and (edge.users or name in returned):
            ids[name] = f"v{len(ids)}"
            box(ids[name], f"{name}\n{edge.type}", edge.kind)
    numbers = {key: f"n{number}" for number, key in enumerate(view.items)}
    for key, item in view.items.items():
        ids.update(dict.fromkeys(item.results, numbers[key]))
        box(numbers[key], "\n".join([item.op, ", ".join(item.results), *_named(item)]), "node", item.sources)
    for key, item in view.items.items():
        for operand in item.operands:
            if operand is not None:
                arrows.append({"from": ids[operand], "to": numbers[key], "label": _type(view, operand)})
    for number, (external, name) in enumerate(view.outputs.items()):
        box(f"o{number}", external, "output")
        if name in ids:
            arrows.append({"from": ids[name], "to": f"o{number}", "label": _type(view, name)})
    return boxes, arrows


def _named(item: Item) -> list[str]:
    """Return a line with the source nodes of an item, if they have names."""
    text = shown_sources(item.sources, item.name).strip(" ()")
    return [text] if text else []


def _type(view: View, name: str) -> str:
    """Return the type for an arrow between nodes; the boxes of other values contain their types."""
    edge = view.edges[name]
    return edge.type if edge.producer is not None else ""


def _groups(view: View, detail: str, depth: int) -> dict[str, str]:
    """Return the group of each item by its name: its op, or its layer."""
    if detail == "summary":
        return {key: item.op for key, item in view.items.items()}
    return {key: ".".join(path[:depth]) or view.name for key, path in layer_paths(view).items()}


def _grouped(view: View, groups: dict[str, str]) -> tuple[Rows, Rows]:
    """Return a box for each group with counts of its ops, and arrows with counts of tensors between groups."""
    ops: dict[str, Counter[str]] = {}
    for key, item in view.items.items():
        ops.setdefault(groups[key], Counter())[item.op] += 1
    numbers = {group: f"g{number}" for number, group in enumerate(ops)}
    boxes: Rows = [
        {"id": numbers[group], "label": _label(group, counts), "kind": "group", "nodes": counts.total()}
        for group, counts in ops.items()
    ]
    links: Counter[tuple[str, str]] = Counter()
    types: dict[tuple[str, str], str] = {}

    def link(source: str, target: str, type: str) -> None:
        links[source, target] += 1
        types[source, target] = type

    for number, name in enumerate(view.inputs):
        boxes.append({"id": f"i{number}", "label": f"{name}\n{view.edges[name].type}", "kind": "input"})
        for user in dict.fromkeys(groups[user] for user in view.edges[name].users):
            link(f"i{number}", numbers[user], "")
    for key, item in view.items.items():
        for result in item.results:
            edge = view.edges[result]
            for target in dict.fromkeys(groups[user] for user in edge.users):
                if target != groups[key]:
                    link(numbers[groups[key]], numbers[target], edge.type)
    for number, (external, name) in enumerate(view.outputs.items()):
        boxes.append({"id": f"o{number}", "label": external, "kind": "output"})
        producer = view.edges[name].producer if name in view.edges else None
        if producer is not None:
            link(numbers[groups[producer]], f"o{number}", view.edges[name].type)
    arrows: Rows = [
        {"from": source, "to": target, "tensors": count, "label": types[source, target] if count == 1 else f"{count}"}
        for (source, target), count in links.items()
    ]
    return boxes, arrows


def _label(group: str, counts: Counter[str]) -> str:
    """Return the label of a group, with its most frequent ops."""
    if list(counts) == [group]:
        return f"{group}\n{counts.total()} nodes"
    largest = ", ".join(f"{count} {op}" for op, count in counts.most_common(_LARGEST))
    rest = len(counts) - _LARGEST
    return f"{group}\n{largest}{f' and {rest} other ops' if rest > 0 else ''}"


def _text(name: str, boxes: Rows, arrows: Rows) -> str:
    lines = [f"digraph {quoted(name)} {{", "  node [shape=box, fontname=monospace];"]
    for box in boxes:
        shape = _SHAPES.get(box["kind"])
        lines.append(f"  {box['id']} [label={quoted(box['label'])}{f', shape={shape}' if shape else ''}];")
    for arrow in arrows:
        label = f" [label={quoted(arrow['label'])}]" if arrow["label"] else ""
        lines.append(f"  {arrow['from']} -> {arrow['to']}{label};")
    return "\n".join([*lines, "}"]) + "\n"


def quoted(text: str) -> str:
    """Return a Graphviz string with quotes, backslashes and control characters escaped or replaced."""
    plain = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

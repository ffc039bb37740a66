"""`ingot report`: a model as one HTML file: its graph at each stage, memory, times and weights."""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from ingot.inspect.comparison.result import Comparison
from ingot.inspect.document import head
from ingot.inspect.model import InspectedModel
from ingot.inspect.modules import layer_paths
from ingot.inspect.plans import peak_of
from ingot.inspect.report.code import code_document
from ingot.inspect.report.facts import (
    Numbers,
    columns,
    errors_document,
    pass_changes,
    refused_kernels,
    step_numbers,
)
from ingot.inspect.report.layout import layout
from ingot.inspect.report.warnings import warnings_document
from ingot.inspect.summary import summary_document
from ingot.inspect.view import Edge, Item, View

STAGES = {"graph": "as loaded", "optimized": "after the passes", "plan": "lowered and planned"}
_HERE = Path(__file__).parent
_MOST_WEIGHTS = 2000  # rows of the table of weights; totals count all
_MOST_RECTANGLES = 20_000  # of the arena, the largest
_DETAIL = 400  # characters of an attribute


def report_document(
    model: InspectedModel,
    measured: list[dict[str, Any]] | None = None,
    machine: dict[str, Any] | None = None,
    comparison: Comparison | None = None,
    sizes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return everything that the page shows.

    measured, machine: as `measured_run` returns them. comparison: of the model. sizes: as `arena_by_size` returns
    them. Stages that need values of dims are
    left out if these have none. Raises the errors of the passes and of compilation.
    """
    stages = [stage for stage in STAGES if stage != "plan" or model.has_program]
    summary = summary_document(model, stages[-1], None)
    document = head(model, "report") | {
        "name": summary["name"], "assumed": model.assumed, "stages": {}, "passes": pass_changes(model), "arena": None,
        "measured": measured, "machine": machine, "errors": errors_document(comparison), "sizes": sizes,
        "summary": {key: summary[key] for key in ("inputs", "outputs", "nodes", "flops") if key in summary},
    }  # fmt: skip
    nodes: dict[str, list[str]] = {}  # module paths by value, at the stage before
    more = _More(
        {(row["node"], row["kernel"]): row for row in measured or ()}, refused_kernels(model),
        step_numbers(model, measured or (), comparison),
    )  # fmt: skip
    for stage in stages:
        view = model.view(stage)
        paths = layer_paths(view)
        if stage == "plan":  # packed weights are named after the computations that build them
            paths |= {name: nodes[key] for name in paths if (key := name.partition("#")[0].split(" ")[0]) in nodes}
        nodes = {**paths, **{result: paths[key] for key, item in view.items.items() for result in item.results}}
        document["stages"][stage] = {"title": STAGES[stage]} | _stage(view, paths, more)
    document["modules"] = {row["node"]: ".".join(nodes.get(row["node"], ())) for row in measured or ()}
    document["weights"] = _weights(model.view("graph"))
    document["warnings"] = warnings_document(model, measured, comparison)
    if model.has_program:
        document["arena"] = _arena(model)
    document["code"] = code_document(model) if model.has_program else None
    return document


@dataclass(frozen=True, slots=True)
class _More:
    """Facts of nodes from runs and choices. times: of steps by node and kernel. refused: see `refused_kernels`."""

    times: dict[tuple[str, str], dict[str, Any]]
    refused: dict[str, list[str]]
    numbers: Numbers


def _stage(view: View, paths: dict[str, list[str]], more: _More) -> dict[str, Any]:
    """Return nodes as columns, edges as pairs of numbers, and the boxes of modules."""
    items = list(view.items.values())
    numbers = {item.name: number for number, item in enumerate(items)}
    edges = [
        (numbers[producer], number)
        for number, item in enumerate(items)
        for producer in dict.fromkeys(
            view.edges[name].producer for name in item.operands if name is not None and name in view.edges
        )
        if producer is not None and producer in numbers and numbers[producer] != number
    ]
    found = layout([tuple(paths[key]) for key in view.items], edges)
    return {
        "width": found.width, "height": found.height,
        "names": [item.name for item in items], "ops": [item.op for item in items],
        "x": [round(x, 1) for x, _ in found.nodes], "y": [round(y, 1) for _, y in found.nodes],
        "edges": [number for edge in edges for number in edge],
        "details": [_details(view, item, more) for item in items],
        "numbers": columns(view, more.numbers),
        "sources": [[source.name for source in item.sources if source.name] for item in items],
        "boxes": [[".".join(box.path), len(box.path), round(box.x), round(box.y), round(box.width), round(box.height)]
                  for box in found.boxes],
    }  # fmt: skip


def _details(view: View, item: Item, more: _More) -> list[list[str]]:
    """Return rows of label and text."""
    rows = [["reads", _typed(view.edges.get(name), name)] for name in item.operands if name is not None]
    rows += [["computes", _typed(view.edges.get(name), name)] for name in item.results]
    rows += _of_step(item, more)
    rows += [[key, str(value)[:_DETAIL]] for key, value in item.attributes.items()]
    rows += [[key, _fact(value)] for key, value in item.facts.items()]
    for name in item.results:
        edge = view.edges.get(name)
        if edge is not None and "offset" in edge.facts:
            rows.append(["address", f"{edge.facts['region']} from byte {edge.facts['offset']:,}"])
    rows += [["from", f"{source.op} {source.name}".strip()] for source in item.sources]
    return rows


def _fact(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _of_step(item: Item, more: _More) -> Iterator[list[str]]:
    node = item.name.partition("#")[0]
    measured = more.times.get((node, item.op))
    if measured is not None:
        rates = f"{measured['gflops']:.1f} GFLOP/s, {measured['gigabytes_per_second']:.1f} GB/s"
        yield ["time", f"{measured['nanoseconds']:,} ns, {rates}, {measured['of_limit']:.0%} of the limit"]
    if "parts" in item.facts:
        yield from (["other kernels", reason] for reason in more.refused.get(node, ()))


def _typed(edge: Edge | None, name: str) -> str:
    return name if edge is None else f"{name}: {edge.type}" + ("" if edge.kind == "activation" else f", {edge.kind}")


def _arena(model: InspectedModel) -> dict[str, Any] | None:
    """Return the tensors of the largest arena as rectangles: name, first step, last step, offset, bytes."""
    segments = [segment for segment in model.compiled.segments if segment.native is not None and segment.plan.live]
    if not segments:
        return None
    segment = max(segments, key=lambda segment: segment.plan.arena_bytes)
    plan, tensors, first, begin = segment.plan, segment.lowered.tensors, {}, 0
    for region in (name for name in plan.regions if name.startswith("arena")):
        first[region], begin = begin, begin + plan.regions[region]
    ids = sorted((id for id in plan.live if plan.addresses[id].region in first), key=lambda id: -tensors[id].nbytes)
    peak, peak_bytes = peak_of(plan, tensors)
    return {
        "steps": [f"{step.kernel} {step.node}" for step in plan.steps], "bytes": plan.arena_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes, "activation_bytes": plan.activation_bytes,
        "peak_step": peak, "peak_bytes": peak_bytes, "tensors": len(ids),
        "rectangles": [
            [tensors[id].name, *plan.live[id], first[plan.addresses[id].region] + plan.addresses[id].offset,
             int(tensors[id].nbytes), f"{tensors[id].dtype}{list(map(int, tensors[id].shape))}", tensors[id].kind]
            for id in ids[:_MOST_RECTANGLES]
        ],
    }  # fmt: skip


def _weights(view: View) -> dict[str, Any]:
    """Return the weights and constants by size, and totals by format."""
    edges = [edge for edge in view.edges.values() if edge.kind in ("weight", "constant", "state") and edge.nbytes]
    formats: dict[str, list[int]] = {}
    for edge in edges:
        row = formats.setdefault(edge.dtype, [0, 0])
        row[0], row[1] = row[0] + 1, row[1] + int(edge.nbytes or 0)
    edges.sort(key=lambda edge: -(edge.nbytes or 0))
    return {
        "formats": [[name, *row] for name, row in sorted(formats.items(), key=lambda each: -each[1][1])],
        "rows": [[edge.name, edge.type, edge.kind, edge.nbytes] for edge in edges[:_MOST_WEIGHTS]],
        "count": len(edges),
    }


def report_page(document: dict[str, Any]) -> str:
    """Return the page: one file that asks nothing of a network.

    Its data is deflated JSON in base64. The C is separate, and is read when a node is selected first.
    """
    data = {key: value for key, value in document.items() if key != "code"}
    return page_of(data, document["code"], document["name"], "page")


def page_of(data: dict[str, Any], code: Any, title: str, kind: str) -> str:
    """Return a page of a kind: its body and script are `kind.html` and `kind.js`."""
    return Template((_HERE / "frame.html").read_text()).substitute(
        title=html.escape(f"{title} - Ingot"),
        style=(_HERE / "page.css").read_text(),
        body=(_HERE / f"{kind}.html").read_text(),
        script="".join((_HERE / name).read_text() for name in ("drawing.js", "charts.js", "code.js", f"{kind}.js")),
        data=_packed(data),
        code=_packed(code),
    )


def _packed(document: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(document, default=str).encode(), 6)).decode()

"""The document of `ingot inspect`: a summary of a model."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ingot.inspect.document import head
from ingot.inspect.flops import flops
from ingot.inspect.model import InspectedModel
from ingot.inspect.modules import module_rows, repeated_layers
from ingot.inspect.view import View, plain, programs_of
from ingot.ir.dim import Known
from ingot.ir.graph import Graph, Source, TensorType
from ingot.ir.liveness import Liveness
from ingot.ir.text import dump
from ingot.lower.weight_expr import weight_exprs
from ingot.passes.fold import DECODERS
from ingot.session.reports import PlanReport


def summary_document(model: InspectedModel, stage: str, text: str | None = None) -> dict[str, Any]:
    """Return the summary of a model at a stage: interface, ops, parameters, FLOPs, memory and metadata.

    text: "short" or "full" adds the stage's text; for a graph, "short" omits long constants and "full" can be parsed.
    """
    view = model.view(stage)
    modules = module_rows(view)
    document = head(model, stage) | {"name": view.name, "file_bytes": model.nbytes, **model.facts}
    document |= {
        "inputs": [_port(view, name, name) for name in view.inputs],
        "outputs": [_port(view, external, name) for external, name in view.outputs.items()],
        "states": [_port(view, name, name) for name in view.states],
        "symbols": view.symbols,
        "nodes": len(view.items),
        "ops": dict(Counter(item.op for item in view.items.values()).most_common()),
        "source_ops": dict(Counter(s.op for s in sorted(_sources_of(view))).most_common()),
        "modules": modules, "layers": repeated_layers(modules),
        "flops": _flops(view),
        "absent": dict(model.absent),
    }  # fmt: skip
    kinds = ("weight", "constant") if isinstance(view.source, Graph) else ("weight",)
    document |= {f"{kind}s": _sizes(view, kind) for kind in kinds}
    document["dtypes"] = _dtypes(view)
    if stage == "graph":
        document["parameters"] = _parameters(model)
    if not isinstance(view.source, Graph):
        document |= view.facts | {"isa": model.target.isa, "threads": model.target.threads}
    if stage == "plan":
        document["memory"] = _memory(model, view)
    if text is not None:
        document["text"] = _text(model, view, stage, is_short=text == "short")
        document["values"] = [edge.document() for edge in view.edges.values()]
    return document


def _sources_of(view: View) -> set[Source]:
    return {source for item in view.items.values() for source in item.sources}


def _port(view: View, external: str, name: str) -> dict[str, Any]:
    edge = view.edges[external if name not in view.edges else name]  # programs have outputs by their external names
    return {"name": external, "type": edge.type, "dtype": edge.dtype, "shape": edge.shape}


def _sizes(view: View, kind: str) -> dict[str, int]:
    found = [edge for edge in view.edges.values() if edge.kind == kind]
    return {"tensors": len(found), "elements": sum(map(_elements, found)), "bytes": sum(e.nbytes or 0 for e in found)}


def _elements(edge: Any) -> int:
    count = 1
    for dim in edge.shape or ():
        count *= dim
    return count


def _parameters(model: InspectedModel) -> int:
    """Return the number of parameters: elements of weights and float constants, with quantized weights dequantized.

    Scales, zero points and tables that are not in a language model's file are not counted.
    """
    graph, total = model.loaded, 0
    if model.is_step:  # constants belong to the optimizer, or are tables of a language model
        stored = None if model.folder is None else model.folder.tensors
        frozen = [v.name for v in graph.values.values() if v.kind == "weight" and (stored is None or v.name in stored)]
        return sum(graph.type(name).size for name in (*graph.initial, *frozen))
    decoders = [node for node in graph.nodes if node.op.name in DECODERS]
    static = weight_exprs(graph) if decoders else set()
    counted: set[str] = set()
    for node in reversed(decoders):  # a weight dequantized in two stages counts by its final size
        type = graph.values[node.outputs[0]].type
        is_constant = node.outputs[0] in static and isinstance(type, TensorType)
        quantized = _sources(graph, node.operands[0]) if is_constant else set()
        if not quantized <= counted and isinstance(type, TensorType):
            total += type.size
        counted |= quantized.union(*(_sources(graph, scale) for scale in node.operands[1:] if scale in static))
    for value in graph.values.values():
        type = value.type
        if value.name in counted or value.kind not in ("weight", "constant") or not isinstance(type, TensorType):
            continue
        is_stored = model.language is None or model.folder is None or value.name in model.folder.tensors
        if is_stored and (type.dtype.kind == "f" or value.kind == "weight"):
            total += type.size
    return total


def _sources(graph: Graph, name: str | None) -> set[str]:
    """Return the weights and constants that a weight expression depends on."""
    found: set[str] = set()
    waiting = [] if name is None else [name]
    known = set(waiting)
    for each in waiting:
        producer = graph.producer(each)
        if producer is None:
            found.add(each)
        else:
            operands = {operand for operand in producer.operands if operand is not None}
            waiting += operands - known
            known |= operands
    return found


def _dtypes(view: View) -> dict[str, dict[str, int]]:
    """Return counts of weights and constants by dtype, most bytes first."""
    rows: dict[str, dict[str, int]] = {}
    for edge in view.edges.values():
        if edge.kind in ("weight", "constant"):
            row = rows.setdefault(edge.dtype, {"tensors": 0, "elements": 0, "bytes": 0})
            row["tensors"] += 1
            row["elements"] += _elements(edge)
            row["bytes"] += edge.nbytes or 0
    return dict(sorted(rows.items(), key=lambda item: -item[1]["bytes"]))


def _flops(view: View) -> dict[str, Any]:
    """Return the FLOPs in total and by op, as text if they depend on symbols. uncounted: nodes with an unknown dim."""
    if isinstance(view.source, Graph):
        total: Known = 0
        by_op: dict[str, Known] = {}
        uncounted = 0
        for node in view.source.nodes:
            count = flops(view.source, node)
            if count is None:
                uncounted += 1
            elif count != 0:
                total += count
                by_op[node.op.name] = by_op.get(node.op.name, 0) + count
        return {"total": plain(total), "by_op": {op: plain(n) for op, n in by_op.items()}, "uncounted": uncounted}
    by_kernel: Counter[str] = Counter()
    for item in view.items.values():
        by_kernel[item.op] += item.facts.get("flops", 0)  # of a step
    reference = len(view.facts["reference"])
    counted = {kernel: count for kernel, count in by_kernel.most_common() if count}
    return {"total": sum(counted.values()), "by_op": counted, "uncounted": reference}


def _report(model: InspectedModel, view: View) -> PlanReport:
    return PlanReport.of(list(programs_of(view)), Liveness.of(model.loaded), model.compiled.mode.sizes)


def _memory(model: InspectedModel, view: View) -> dict[str, Any]:
    report = _report(model, view)
    regions: dict[str, int] = {}
    for segment in programs_of(view):
        for region, nbytes in segment.plan.regions.items():
            regions[region] = max(regions.get(region, 0), nbytes)
    return {
        "arena_bytes": report.arena_bytes, "lower_bound_bytes": report.lower_bound_bytes,
        "activation_bytes": report.activation_bytes, "unfused_bytes": report.unfused_bytes, "regions": regions,
    }  # fmt: skip


def _text(model: InspectedModel, view: View, stage: str, is_short: bool) -> str:
    if isinstance(view.source, Graph):
        return dump(view.source, is_short=is_short)
    programs = list(programs_of(view))
    if stage == "lowered":
        return "".join(str(program.lowered) for program in programs)
    return f"{_report(model, view)}\n"

"""Commands that look into a model: `ingot explain`, `inspect`, `list-nodes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ingot.cli.gguf import print_gguf
from ingot.cli.model import Model, as_json, mode_option, with_model
from ingot.cli.terminal import print_json, print_table, print_text
from ingot.ir import Graph, Node

if TYPE_CHECKING:
    from ingot.lower.lowered import Lowered
    from ingot.reports import PlanReport


@click.command()
@with_model
@click.argument("node", required=False)
@mode_option
@as_json
def explain(model: Model, node: str | None, mode: str | None, as_json: bool) -> None:
    """Say which kernel runs each step of MODEL, or, for one NODE, which candidates there were and why not those."""
    explanation = model.look(mode).explain(node)
    if as_json:
        print_json(explanation.to_json())
    else:
        print_text(str(explanation))


@click.command()
@with_model
@click.option(
    "--stage", type=click.Choice(["graph", "lowered", "plan"]), help="Else graph, or of a GGUF file its header."
)
@mode_option
@click.option("--full", is_flag=True, help="Of a graph, long constants, too: text that can be read back.")
@as_json
def inspect(model: Model, stage: str | None, mode: str | None, full: bool, as_json: bool) -> None:
    """Print MODEL at a stage: the graph after the passes, its lowered steps, or where the plan puts every byte.

    Of a GGUF file without a stage or mode: its metadata, and its tensors by type.
    """
    from ingot.load.gguf import is_gguf

    if stage is None and mode is None and is_gguf(model.path):
        print_gguf(model.path, as_json)
        return
    look = model.look(mode)
    if stage in (None, "graph"):
        from ingot.text import dump

        if as_json:
            print_json(graph_document(look.graph))
        else:
            print_text(dump(look.graph, is_short=not full).rstrip("\n"))
    elif stage == "lowered":
        lowered = [part.lowered for part in look.programs()]
        if as_json:
            print_json([lowered_document(one) for one in lowered])
        else:
            print_text("\n".join(str(one).rstrip("\n") for one in lowered))
    else:
        from ingot.reports import PlanReport

        report = PlanReport(look.programs())
        if as_json:
            print_json(report.to_json())
        else:
            print_plan(report)


def lowered_document(lowered: Lowered) -> dict[str, Any]:
    """Steps as JSON: kernel, node, parts, and the tensors read and written."""
    steps = [
        {
            "kernel": step.kernel,
            "node": step.node,
            "parts": step.parts,
            "reads": [view.tensor for view in step.reads],
            "writes": [view.tensor for view in step.writes],
        }
        for step in lowered.steps
    ]
    return {"isa": lowered.target.isa, "threads": lowered.target.threads, "mode": lowered.mode, "steps": steps}


def print_plan(report: PlanReport) -> None:
    """The sums, and a row for each tensor of the arena, weights and bindings."""
    print_text(str(report))
    document = report.layout()
    for segment in document.get("segments", [document]):
        rows = (
            [t["region"], t["offset"], t["bytes"], _lifetime(t), f"{t['dtype']}{t['shape']}", t["name"]]
            for t in sorted(segment["tensors"], key=lambda t: (t["region"], t["offset"], t.get("birth", 0)))
        )
        print_table(["region", "offset", "bytes", "steps", "type", "name"], rows, right=["offset", "bytes", "steps"])


def _lifetime(tensor: dict[str, Any]) -> str:
    return f"{tensor['birth']}..{tensor['death']}" if "birth" in tensor else ""


@click.command("list-nodes")
@with_model
@mode_option
@as_json
def list_nodes(model: Model, mode: str | None, as_json: bool) -> None:
    """List the nodes of MODEL after the passes."""
    graph = model.look(mode).graph
    if as_json:
        print_json(graph_document(graph)["nodes"])
        return
    rows = ([", ".join(n.outputs), n.op.name, ", ".join(map(str, n.operands)), types_of(graph, n)] for n in graph.nodes)
    print_table(["node", "op", "operands", "type"], rows)


def types_of(graph: Graph, node: Node) -> str:
    """The types of what a node makes."""
    return ", ".join(str(graph.values[output].type) for output in node.outputs)


def graph_document(graph: Graph) -> dict[str, Any]:
    """A graph as JSON: values by name, nodes in order; no data of weights."""
    values = {n: {"kind": v.kind, "type": str(v.type)} for n, v in graph.values.items() if v.producer is None}
    nodes = [
        {
            "op": node.op.name,
            "operands": node.operands,
            "outputs": node.outputs,
            "attributes": node.attributes,
            "type": types_of(graph, node),
        }
        for node in graph.nodes
    ]
    return {"name": graph.name, "inputs": graph.inputs, "outputs": graph.outputs, "values": values, "nodes": nodes}


COMMANDS = [explain, inspect, list_nodes]

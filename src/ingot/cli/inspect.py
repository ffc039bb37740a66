"""Commands that look: `ingot explain`, `inspect`, `list-nodes`, `ops`."""

from __future__ import annotations

from typing import Any

import click

from ingot.cli.model import Model, as_json, with_model
from ingot.cli.terminal import print_json, print_table, print_text
from ingot.ir import OPS, Graph, Node

COMMANDS: list[click.Command] = []


@click.command()
@with_model
@click.argument("node", required=False)
@as_json
def explain(model: Model, node: str | None, as_json: bool) -> None:
    """Say which kernel runs each step of MODEL, or, for one NODE, which candidates there were and why not those."""
    explanation = model.open().explain(node)
    if as_json:
        print_json(explanation.to_json())
    else:
        print_text(str(explanation))


@click.command()
@with_model
@click.option("--stage", type=click.Choice(["graph", "lowered", "plan"]), default="graph", show_default=True)
@as_json
def inspect(model: Model, stage: str, as_json: bool) -> None:
    """Print MODEL at a stage: the graph after the passes, its lowered steps, or where the plan puts every byte."""
    session = model.open()
    if stage == "graph":
        from ingot.text import dump

        if as_json:
            print_json(graph_document(session.graph))
        else:
            print_text(dump(session.graph).rstrip("\n"))
    elif stage == "lowered":
        explanation = session.explain()
        print_json(explanation.to_json()) if as_json else print_text(str(explanation))
    elif as_json:
        print_json(session.plan.layout())
    else:
        print_layout(session.plan)


@click.command("list-nodes")
@with_model
@as_json
def list_nodes(model: Model, as_json: bool) -> None:
    """List the nodes of MODEL after the passes."""
    graph = model.open().graph
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

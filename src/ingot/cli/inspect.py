"""Commands that inspect a model without running it: `ingot inspect`, `list-nodes`, `inspect-node` and others.

Each command opens the model once, builds one document, and prints it as JSON or as text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ingot.cli import inspect_text
from ingot.cli.conditions import Condition, asserted, expect
from ingot.cli.model import Inspection, with_inspection
from ingot.cli.output import Output
from ingot.cli.terminal import json_text, print_folded, print_json, print_text, progress
from ingot.inspect.stages import DETAILS, STAGES
from ingot.support.files import written

_MEASURED = ("nanoseconds", "gflops", "gigabytes_per_second", "of_limit")  # names for --assert with --measure
_SUMMARY = (  # names for --assert
    "nodes", "flops", "uncounted", "parameters", "file_bytes", "weight_bytes", "arena_bytes", "reference",
)  # fmt: skip


def show(document: dict[str, Any], as_json: bool, text: Callable[[dict[str, Any]], None]) -> None:
    """Print a document as JSON or text."""
    if as_json:
        print_json(document)
    else:
        text(document)


@click.command()
@with_inspection(["lowered"], default="lowered")
@click.option("--executor", type=click.Choice(["native", "webgpu"]), default="native", show_default=True)
@click.option("--measure", is_flag=True, help="Run MODEL on random inputs, and show time and rates of the steps.")
@asserted("steps", "fallback", *_MEASURED)
@click.argument("node", required=False)
def explain(
    inspection: Inspection,
    executor: str,
    measure: bool,
    conditions: tuple[Condition, ...],
    node: str | None,
    as_json: bool,
) -> None:
    """Show which kernel runs each step of MODEL, or one NODE.

    For a NODE, it also lists the other kernels and why they were refused. Names are those in the model's file, or
    those after the passes: ingot list-nodes MODEL --stage optimized.

    With --measure, each step's time and rates are shown with the least time that the measured peak rates of this
    machine allow (roofline). Names for --assert: steps, fallback; with --measure nanoseconds (the sum), gflops,
    gigabytes_per_second, of_limit (the smallest).

    \b
    ingot explain digits --dim batch=1
    ingot explain digits gelu_2 --dim batch=1
    """
    from ingot.inspect.document import head

    if not measure and (names := [condition.name for condition in conditions if condition.name in _MEASURED]):
        raise click.UsageError(f"--assert: {names[0]} needs --measure")
    model = replace(inspection, options=inspection.options | {"executor": executor}).open()
    with progress(f"compiling {inspection.path}"):
        explanation = model.explain(node)
    numbers: dict[str, float | None] = {"steps": len(explanation.choices), "fallback": len(explanation.fallback)}
    document = head(model, inspection.stage) | explanation.to_json()
    if measure:
        if model.language is not None or model.is_step or executor != "native":
            raise click.UsageError("--measure: needs a model that a session runs on the native executor")
        document |= _measured(inspection, {choice.node for choice in explanation.choices}, numbers)
    if as_json:
        print_json(document)
    else:
        print_folded(str(explanation))
        if measure:
            inspect_text.print_measured(document)
    expect(conditions, numbers)


def _measured(inspection: Inspection, nodes: set[str], numbers: dict[str, float | None]) -> dict[str, Any]:
    """Return the measured steps of nodes, and the limits of the machine; add their numbers for conditions."""
    from ingot.inspect.plans import measured_steps, rates_of

    options = inspection.options
    with progress(f"measuring {inspection.path}"):
        rows, roofline = measured_steps(inspection.path, options["dims"], options["precision"], options["threads"])
    rows = [row for row in rows if row["node"] in nodes]
    numbers["nanoseconds"] = sum(row["nanoseconds"] for row in rows)
    for name in ("gflops", "gigabytes_per_second", "of_limit"):
        numbers[name] = min((row[name] for row in rows), default=None)
    return {"measured": rows, "limits": rates_of(roofline)}


@click.command()
@with_inspection(STAGES)
@click.option(
    "--text", "form", flag_value="short", help="Print the stage's text instead; long constants of a graph are left out."
)
@click.option(
    "--full", "form", flag_value="full", help="Print the stage's full text; the text of a graph can be parsed."
)
@asserted(*_SUMMARY)
def inspect(inspection: Inspection, form: str | None, conditions: tuple[Condition, ...], as_json: bool) -> None:
    """Summarise MODEL.

    Shows its producer, inputs, outputs, ops, parameters, FLOPs, memory and metadata. Names for --assert: nodes (steps
    of a program), flops, uncounted, file_bytes, weight_bytes; with --stage graph parameters, lowered or plan reference
    (nodes without a kernel), plan arena_bytes (the peak of activations).

    \b
    ingot inspect digits
    ingot inspect digits --stage plan --dim batch=1
    """
    from ingot.inspect.summary import summary_document

    document = summary_document(inspection.open(), inspection.stage, form)
    show(document, as_json, inspect_text.print_summary)
    expect(conditions, _summary_numbers(document))


def _summary_numbers(document: dict[str, Any]) -> dict[str, float | None]:
    """Return the numbers that conditions may use; None where a dim without a value decides."""
    flops, numbers = (
        document["flops"]["total"],
        {key: document.get(key) for key in ("nodes", "parameters", "file_bytes")},
    )
    return numbers | {
        "flops": None if isinstance(flops, str) else flops, "uncounted": document["flops"]["uncounted"],
        "weight_bytes": document["weights"]["bytes"], "arena_bytes": document.get("memory", {}).get("arena_bytes"),
        "reference": len(document["reference"]) if "reference" in document else None,
    }  # fmt: skip


@click.command("list-nodes")
@with_inspection(STAGES)
@click.option("--op", metavar="PATTERN", help="Only nodes (or steps) of matching ops of Ingot or of the model.")
@click.option("--name", metavar="PATTERN", help="Only nodes with a matching name; without * or ?, names containing it.")
def list_nodes(inspection: Inspection, op: str | None, name: str | None, as_json: bool) -> None:
    """List the nodes of MODEL, or those of an op or name.

    Also counts the nodes of each op.

    \b
    ingot list-nodes digits --op 'conv*'
    ingot list-nodes tiny-lm --name layers.0. --stage optimized
    """
    from ingot.inspect.nodes import list_document

    show(list_document(inspection.open(), inspection.stage, op, name), as_json, inspect_text.print_nodes)


@click.command("inspect-node")
@with_inspection(STAGES)
@click.argument("name")
def inspect_node(inspection: Inspection, name: str, as_json: bool) -> None:
    """Show one node of MODEL.

    NAME is the name of a node in the model's file, or of a value that the node computes. Shows attributes, shapes,
    producers of the inputs, consumers of the outputs, and the steps that the node is lowered to.

    \b
    ingot inspect-node digits conv2d
    ingot inspect-node digits gelu --stage optimized --dim batch=1
    """
    from ingot.inspect.nodes import node_document

    show(node_document(inspection.open(), inspection.stage, name), as_json, inspect_text.print_node)


@click.command("inspect-tensor")
@with_inspection(STAGES)
@click.argument("name")
@click.option("--first", type=click.IntRange(0, 10_000), default=8, show_default=True, help="Elements to show.")
def inspect_tensor(inspection: Inspection, name: str, first: int, as_json: bool) -> None:
    """Show the tensor NAME of MODEL.

    Shows its type, its producer and consumers, and the values of a weight. A tensor that depends on weights only, such
    as a dequantized block, is computed.

    \b
    ingot inspect-tensor digits classifier.features.2.weight
    ingot inspect-tensor tiny-lm model.norm.weight --first 4
    """
    from ingot.inspect.tensors import tensor_document

    show(tensor_document(inspection.open(), inspection.stage, name, first), as_json, inspect_text.print_tensor)


@click.command("trace-node")
@with_inspection(STAGES)
@click.argument("name")
@click.option("--up", type=click.IntRange(0), default=2, show_default=True, help="Levels towards the inputs.")
@click.option("--down", type=click.IntRange(0), default=2, show_default=True, help="Levels towards the outputs.")
def trace_node(inspection: Inspection, name: str, up: int, down: int, as_json: bool) -> None:
    """List the nodes of MODEL around the node NAME.

    NAME is the name of a node in the model's file, or of a value that the node computes. For an input or a weight, the
    nodes that read it are listed.

    \b
    ingot trace-node digits linear --up 3 --down 1
    """
    from ingot.inspect.nodes import trace_document

    show(trace_document(inspection.open(), inspection.stage, name, up, down), as_json, inspect_text.print_trace)


@click.command()
@with_inspection(STAGES)
@click.option(
    "--detail", type=click.Choice(DETAILS), default="full", show_default=True, help="Draw nodes, layers or ops."
)
@click.option("--op", metavar="PATTERN", help="Only nodes (or steps) of matching ops of Ingot or of the model.")
@click.option("--name", metavar="PATTERN", help="Only nodes with a matching name; without * or ?, names containing it.")
@click.option("--around", metavar="NODE", help="Only nodes near this node.")
@click.option(
    "--depth", type=click.IntRange(1),
    help="Levels of the module path, 3 by default; with --around, distance from the node, 2 by default.",
)  # fmt: skip
@click.option("-o", "--output", type=Output(Path), help="File to write: .svg, .png, .pdf, or text.  [default: stdout]")
def dot(
    inspection: Inspection,
    detail: str,
    op: str | None,
    name: str | None,
    around: str | None,
    depth: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Draw MODEL as Graphviz text or as a picture.

    A box is a node, a layer, or an op. A picture (.svg, .png, .pdf) needs Graphviz.

    \b
    ingot dot digits -o digits.dot
    ingot dot tiny-lm --detail layers --depth 3
    ingot dot digits --around linear --depth 1
    """
    from ingot.cli.picture import FORMATS, expect_graphviz, picture
    from ingot.inspect.drawing import dot_document

    form = "" if output is None or as_json else output.suffix.lower().removeprefix(".")
    if form in FORMATS:
        expect_graphviz()
    document = dot_document(inspection.open(), inspection.stage, detail, depth, op=op, pattern=name, node=around)
    if output is None:
        show(document, as_json, lambda document: print_text(document["dot"].rstrip("\n")))
        return
    content = f"{json_text(document)}\n" if as_json else document["dot"]
    data = picture(content, form) if form in FORMATS else content.encode()
    with written(output) as file:
        file.write(data)


@click.command()
@with_inspection(STAGES, default="plan", modes=("prefill", "decode"))
def validate(inspection: Inspection, as_json: bool) -> None:
    """Check whether MODEL runs on each executor.

    Lists all problems without running the model; dims without a value are 1. A language model is compiled in each of
    its modes: prefill, decode, and a batch of several sequences; with --mode, in that mode only.

    The exit code is 0 if a session can run the model.

    \b
    ingot validate digits
    """
    from ingot.inspect.check import validate_document

    with progress(f"checking {inspection.path}"):
        document = validate_document(inspection.path, inspection.stage, **inspection.options)
    show(document, as_json, inspect_text.print_validation)
    if document["exit_code"]:
        raise click.exceptions.Exit(document["exit_code"])


COMMANDS = [explain, inspect, list_nodes, inspect_node, inspect_tensor, trace_node, dot, validate]

"""`ingot report`: write a model as one HTML file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingot.cli.model import Inspection, expect_none, with_inspection
from ingot.cli.output import Output
from ingot.cli.terminal import human_bytes, print_json, print_text, progress
from ingot.inspect.stages import SIDES
from ingot.passes.precision import PRECISIONS
from ingot.support.files import written

if TYPE_CHECKING:
    from ingot.inspect.comparison import Comparison
    from ingot.inspect.model import InspectedModel


_SIZES = re.compile(r"([^=]+)=(\d{1,9})\.\.(\d{1,9})", re.ASCII)


def _sizes(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, int, int] | None:
    """Read NAME=FROM..TO. Raises BadParameter."""
    if text is None:
        return None
    found = _SIZES.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= int(found[3]):
        raise click.BadParameter(f"got {text!r}, expected NAME=FROM..TO, such as batch=1..64", param=parameter)
    return found[1], int(found[2]), int(found[3])


@click.command()
@with_inspection(["report"], default="report", modes=("prefill", "decode"))
@click.option("-o", "--output", type=Output(Path), required=True, help="File to write, such as report.html.")
@click.option("--measure", is_flag=True, help="Run MODEL on random inputs, and show the time of each step.")
@click.option(
    "--compare", "compared", type=click.Choice(SIDES), metavar=f"[{'|'.join(SIDES)}]",
    help="Run MODEL natively and in this way, and show the errors of its values.",
)  # fmt: skip
@click.option(
    "--sizes",
    metavar="NAME=FROM..TO",
    callback=_sizes,
    help="Show the memory of a run for sizes of a symbolic dim.",
)
@click.option("--against", metavar="MODEL2", help="Model B, to show the difference of two models.")
@click.option("--b-precision", type=click.Choice(list(PRECISIONS)), help="Precision of model B, if it differs.")
@click.option("--b-threads", type=click.IntRange(1, 256), help="Number of threads of model B, if it differs.")
def report(
    inspection: Inspection,
    output: Path,
    measure: bool,
    compared: str | None,
    sizes: tuple[str, int, int] | None,
    against: str | None,
    b_precision: str | None,
    b_threads: int | None,
    as_json: bool,
) -> None:
    """Write MODEL as one HTML file that needs no network.

    It shows the graph as loaded, after the passes and as planned, grouped by module; the memory of a run; the time of
    each kernel; and the weights. Dims without --dim are 1. With --measure and --compare, times and errors are colours
    of nodes; inputs are random. With --sizes, the page also shows the arena as a function of a dim. With --json, the
    data of the page is printed, too.

    With --against, --b-precision or --b-threads, the file shows two models next to each other: nodes that differ, the
    bytes and times of each node, and both arenas in one scale.

    \b
    ingot report digits -o report.html --measure --compare float64
    ingot report digits -o int8.html --b-precision int8
    ingot report digits -o sizes.html --sizes batch=1..256
    """
    from ingot.inspect.report import report_document, report_page
    from ingot.inspect.report.against import against_document, against_page

    sides = [inspection]
    if (against, b_precision, b_threads) != (None, None, None):
        sides.append(inspection.other(against, b_precision, b_threads))
    if len(sides) == 2:
        expect_none("--against and --b-*", {"--compare": compared, "--sizes": sizes})
    models = [replace(side, options=side.options | {"assumed": 1}).open() for side in sides]
    runs = [_run(side, model) if measure else (None, None) for side, model in zip(sides, models, strict=True)]
    found = None if compared is None else _comparison(inspection, models[0], compared)
    with progress(f"describing {inspection.path}"):
        if len(models) == 1:
            measured, machine = runs[0]
            document = report_document(models[0], measured, machine, found, _by_size(models[0], sizes))
            page = report_page(document).encode()
        else:
            document = against_document(models[0], models[1], (runs[0][0], runs[1][0]))
            page = against_page(document).encode()
    with written(output) as file:
        file.write(page)
    if as_json:
        print_json(document)
    else:
        print_text(f"{output}: {human_bytes(len(page))}; {_counts(document)}")


def _run(side: Inspection, model: InspectedModel) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run a model; return its steps and the machine, see `measured_run`. Raises UsageError for a language model."""
    from ingot.inspect.plans import measured_run

    if model.language is not None:
        raise click.UsageError("--measure: needs a model that a session runs, got a language model")
    with progress(f"measuring {side.path}"):
        dims = dict.fromkeys(model.assumed, 1) | side.options["dims"]
        return measured_run(side.path, dims, side.options["precision"], side.options["threads"])


def _comparison(side: Inspection, model: InspectedModel, b: str) -> Comparison:
    """Compare the native run of a model with another side.

    Raises UsageError for a step of training and for limits of dims.
    """
    from ingot.inspect.comparison import compare

    options = side.options
    sizes = {name: dim for name, dim in options["dims"].items() if isinstance(dim, int)}
    if model.is_step or len(sizes) < len(options["dims"]):
        raise click.UsageError("--compare: needs exact dims and no training step")
    with progress(f"comparing {side.path}"):
        return compare(side.path, b=b, dims=sizes, precision=options["precision"], threads=options["threads"])


def _by_size(model: InspectedModel, sizes: tuple[str, int, int] | None) -> dict[str, Any] | None:
    """Plan the model for sizes of a dim. Raises UsageError for a language model, InputError for an unknown dim."""
    from ingot.inspect.plans import arena_by_size

    if sizes is not None and model.language is not None:
        raise click.UsageError("--sizes: needs a model that a session runs, got a language model; see `ingot memory`")
    return None if sizes is None else arena_by_size(model, *sizes)


def _counts(document: dict[str, Any]) -> str:
    if "difference" in document:
        marks = document["difference"]["marks"]
        title = {stage: document["a"]["stages"][stage]["title"] for stage in marks}
        counts = [f"{sum(map(bool, marks[stage]['b'])):,} {title[stage]}" for stage in marks]
        return f"nodes of B that differ: {', '.join(counts)}"
    nodes = ", ".join(f"{len(stage['names']):,} {stage['title']}" for stage in document["stages"].values())
    return f"nodes: {nodes}"


COMMANDS = [report]

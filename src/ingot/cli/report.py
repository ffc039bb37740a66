"""`ingot report`: write a model as one HTML file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ingot.cli.model import Inspection, with_inspection
from ingot.cli.output import Output
from ingot.cli.terminal import human_bytes, print_json, print_text, progress
from ingot.support.files import written


@click.command()
@with_inspection(["report"], default="report", modes=("prefill", "decode"))
@click.option("-o", "--output", type=Output(Path), required=True, help="File to write, such as report.html.")
@click.option("--measure", is_flag=True, help="Run MODEL on random inputs, and show the time of each step.")
def report(inspection: Inspection, output: Path, measure: bool, as_json: bool) -> None:
    """Write MODEL as one HTML file that needs no network.

    It shows the graph as loaded, after the passes and as planned, grouped by module; the memory of a run; the time of
    each kernel; and the weights. Dims without --dim are 1. With --json, the data of the page is printed, too.

    \b
    ingot report digits -o report.html --measure
    """
    from ingot.inspect.plans import measured_steps
    from ingot.inspect.report import report_document, report_page

    model = replace(inspection, options=inspection.options | {"assumed": 1}).open()
    options, times = inspection.options, None
    if measure:
        if model.language is not None:
            raise click.UsageError("--measure: needs a model that a session runs, got a language model")
        with progress(f"measuring {inspection.path}"):
            dims = dict.fromkeys(model.assumed, 1) | options["dims"]
            times, _ = measured_steps(inspection.path, dims, options["precision"], options["threads"])
    with progress(f"describing {inspection.path}"):
        document = report_document(model, times)
        page = report_page(document).encode()
    with written(output) as file:
        file.write(page)
    if as_json:
        print_json(document)
    else:
        nodes = ", ".join(f"{len(stage['names']):,} {stage['title']}" for stage in document["stages"].values())
        print_text(f"{output}: {human_bytes(len(page))}; nodes: {nodes}")


COMMANDS = [report]

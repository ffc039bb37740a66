"""`ingot emit-c` and `ingot emit-onnx`: the program as a file for another tool."""

from __future__ import annotations

from pathlib import Path

import click

from ingot.cli.model import Model, with_model
from ingot.cli.terminal import print_text, progress


@click.command("emit-c")
@with_model
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The folder to write.")
def emit_c(model: Model, output: Path) -> None:
    """Write MODEL as plain C: model.c, model.h, weights.bin, layout.json and a small main.c."""
    from ingot.emit import c

    session = model.open()
    with progress("writing C"):
        paths = c.emit(session.graph, session.weights, output)
    for path in paths:
        print_text(path)


@click.command("emit-onnx")
@with_model
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write.")
@click.option("--before-passes", is_flag=True, help="Write the graph as it was loaded.")
def emit_onnx(model: Model, output: Path, before_passes: bool) -> None:
    """Write MODEL's graph, after the passes, as ONNX."""
    from ingot.emit.onnx import export_onnx

    graph = model.open(passes=() if before_passes else None).graph
    with progress("writing ONNX"):
        export_onnx(graph, output)


COMMANDS = [emit_c, emit_onnx]

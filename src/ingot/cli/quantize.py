"""`ingot quantize`: a model folder with weights of 8 or 4 bits."""

from __future__ import annotations

from dataclasses import asdict

import click

from ingot.cli.model import as_json
from ingot.cli.terminal import counting, human_bytes, print_json, print_text


@click.command()
@click.argument("folder", type=click.Path())
@click.option("--format", "format_", required=True, metavar="int8|int4", help="Of the weights of linear layers.")
@click.option("-o", "--output", required=True, type=click.Path(), help="The folder to write; its name must be free.")
@click.option("--group", type=int, help="Columns that share a scale: 32, 64 or 128; else 32 in int4, all in int8.")
@click.option("--symmetric/--zero-points", default=True, show_default=True, help="Of int4: codes around 0, or not.")
@click.option(
    "--vocabulary", default="int8", show_default=True, metavar="int8|int4|keep", help="Of embedding and logits."
)
@click.option("--int8", multiple=True, metavar="PATTERN", help="Weights that are int8, by name, * for any part.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Weights that stay as they are.")
@as_json
def quantize(
    folder: str,
    format_: str,
    output: str,
    group: int | None,
    symmetric: bool,
    vocabulary: str,
    int8: tuple[str, ...],
    keep: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the language model or encoder in FOLDER with weights of 8 or 4 bits; norms and biases stay."""
    from ingot.quantize import Plan, quantize_folder

    plan = Plan(format_, group, not symmetric, vocabulary, int8, keep)
    with counting(f"quantizing {folder}") as show:
        written = quantize_folder(folder, output, plan, on_progress=show)
    if as_json:
        print_json(asdict(written) | {"output": output})
        return
    print_text(
        f"{output}: {written.coded} weights in codes, {written.kept} as they were;"
        f" {human_bytes(written.before)} became {human_bytes(written.after)}"
    )


COMMANDS = [quantize]

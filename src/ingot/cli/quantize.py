"""`ingot quantize`: a model folder with weights of 8 or 4 bits, or an ONNX model that multiplies integers."""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import click

from ingot.cli.fetch import with_path
from ingot.cli.llm import byte_count
from ingot.cli.model import as_json, expect_none, read_arrays, template_option
from ingot.cli.output import Output
from ingot.cli.perplexity import read_text
from ingot.cli.terminal import counting, human_bytes, print_json, print_table, print_text
from ingot.errors import InputError

if TYPE_CHECKING:
    from ingot.quantize import Plan, Report


@click.command(epilog="Example: ingot quantize tiny-lm --format int8 -o tiny-int8")
@with_path("model")
@click.option("--format", "format_", required=True, metavar="int8|int4", help="Of the weights of linear layers.")
@click.option("-o", "--output", type=Output(), help="The folder or file to write; its name must be free.")
@click.option("--group", type=int, help="Columns that share a scale: 32, 64 or 128; else 32 in int4, all in int8.")
@click.option("--zero-points/--symmetric", help="Of int4: codes from a zero point for each group, or around 0.")
@click.option(
    "--vocabulary", default="int8", show_default=True, metavar="int8|int4|keep", help="Of embedding and logits."
)
@click.option("--int8", multiple=True, metavar="PATTERN", help="Weights that are int8, by name, * for any part.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Weights that stay as they are.")
@click.option(
    "--calibrate", metavar="FILE", help="A text to choose codes for; - for stdin. Of ONNX: inputs, X.npz or a folder."
)
@click.option("--report", "is_report", is_flag=True, help="Only say what is lost, weight by weight.")
@click.option("--budget", callback=byte_count, metavar="BYTES", help="Of a report: what to make int8 for so many more.")
@template_option
@as_json
def quantize(
    model: str,
    format_: str,
    output: str | None,
    group: int | None,
    zero_points: bool,
    vocabulary: str,
    int8: tuple[str, ...],
    keep: tuple[str, ...],
    calibrate: str | None,
    is_report: bool,
    budget: int | None,
    template: str | None,
    as_json: bool,
) -> None:
    """Write a model with weights of 8 or 4 bits.

    Of a language model or encoder in a folder, norms and biases stay as they are.

    Of any other MODEL, write ONNX whose products multiply integers, with scales for the inputs given to --calibrate:
    the arrays of an .npz file by the names of inputs, or a folder of such files.
    """
    from ingot.load.gguf import is_gguf
    from ingot.load.hf import read_folder
    from ingot.quantize import Plan, quantize_folder, report

    if is_report == (output is not None):
        raise click.UsageError("expected either -o or --report")
    if budget is not None and not is_report:
        raise click.UsageError("--budget is of a --report")
    plan = Plan(format_, group, zero_points, vocabulary, int8, keep)
    if is_gguf(model):
        raise InputError(f"{model}: cannot be quantized, got a GGUF file, expected a model folder, or an ONNX file")
    if os.path.isfile(model):
        expect_none("a model without tokens", {"--template": template})
        _expect_of_onnx(model, plan, calibrate, is_report)
        _calibrated(model, str(output), str(calibrate), as_json)
        return
    read_folder(model, template)  # a wrong model is told of before a wrong text
    text = None if calibrate is None else read_text(calibrate)
    with counting(f"quantizing {model}") as show:
        if output is not None:
            written = quantize_folder(model, output, plan, text=text, template=template, on_progress=show)
        else:
            found = report(model, plan, text=text, template=template, on_progress=show)
    if output is None:
        _print_report(found, budget, as_json)
    elif as_json:
        print_json(asdict(written) | {"output": output})
    else:
        print_text(
            f"{output}: {written.coded} weights in codes, {written.kept} as they were;"
            f" {human_bytes(written.before)} became {human_bytes(written.after)}"
        )


def _expect_of_onnx(model: str, plan: Plan, calibrate: str | None, is_report: bool) -> None:
    """Raises UsageError for what is said of weights that a model folder alone has, and for no samples."""
    plain = type(plan)("int8")
    given = [f"--{f.name.replace('_', '-')}" for f in fields(plan) if getattr(plan, f.name) != getattr(plain, f.name)]
    given += ["--report"] if is_report else []
    expected = "expected --format int8, --calibrate and -o alone of a file"
    if given:
        named = f"--format {plan.format}" if given[0] == "--format" else given[0]
        raise click.UsageError(f"{model}: of a model folder alone, got {named}, {expected}")
    if calibrate is None:
        raise click.UsageError(f"{model}: no inputs to run over, got no --calibrate, {expected}")


def _calibrated(model: str, output: str, calibrate: str, as_json: bool) -> None:
    from ingot.quantize import quantize_model

    paths = [calibrate]
    if os.path.isdir(calibrate):
        paths = sorted(os.path.join(calibrate, name) for name in os.listdir(calibrate) if name.endswith(".npz"))
        if not paths:
            raise InputError(f"{calibrate}: no file of inputs, expected some *.npz in this folder")
    with counting(f"quantizing {model}") as show:
        made = quantize_model(model, output, [read_arrays(path) for path in paths], on_progress=show)
    if as_json:
        print_json(asdict(made) | {"output": output})
    else:
        print_text(f"{output}: {made.coded} products of integers, {made.kept} as they were")


def _print_report(found: Report, budget: int | None, as_json: bool) -> None:
    raised = None if budget is None else found.raised(budget)
    if as_json:
        print_json(
            {
                "weights": [asdict(loss) for loss in found.losses],
                "layers": found.layers(),
                "int8": None if raised is None else [loss.name for loss in raised],
            }
        )
        return
    rows = [
        (loss.name, loss.format, f"{loss.nbytes:,}", _percent(loss.weight_error), _percent(loss.output_error))
        for loss in found.losses
    ]
    is_run = any(loss.output_error is not None for loss in found.losses)  # over a text
    columns = ["weight", "", "bytes", "error", "of outputs"][: 5 if is_run else 4]
    print_table(columns, (row[: len(columns)] for row in rows), right=columns[2:])
    layers = [(layer, _percent(error)) for layer, error in found.layers().items()]
    print_table(["layer", "error"], layers, right=["error"])
    if raised is not None:
        is_wide = all(loss.int8 is None for loss in found.losses)
        none = "every weight in codes is int8 already" if is_wide else "no weight to make int8 fits the budget"
        print_text(" ".join(f"--int8 {loss.name}" for loss in raised) or none)


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:.2f} %"


COMMANDS = [quantize]

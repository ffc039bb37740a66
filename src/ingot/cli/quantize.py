"""`ingot quantize`: quantize the weights of a model folder, or an ONNX model with its activations."""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import click

from ingot.cli.fetch import with_path
from ingot.cli.llm import byte_count
from ingot.cli.model import as_json, expect_none, read_arrays, template_option
from ingot.cli.output import Output
from ingot.cli.terminal import counting, human_bytes, print_json, print_table, print_text
from ingot.cli.text import read_text
from ingot.errors import InputError

if TYPE_CHECKING:
    from ingot.quantize import Plan, Report


@click.command(epilog="Example: ingot quantize tiny-lm --format int8 -o tiny-int8")
@with_path("model")
@click.option("--format", "format_", required=True, metavar="int8|int4", help="Format of the weights of linear layers.")
@click.option("-o", "--output", type=Output(), help="Folder or file to write; it must not exist.")
@click.option("--group", type=int, help="Columns per scale: 32, 64 or 128.  [default: 32 for int4, the row for int8]")
@click.option("--zero-points/--symmetric", help="For int4: one zero point per group, or none.")
@click.option(
    "--vocabulary", default="int8", show_default=True, metavar="int8|int4|keep", help="Format of embedding and logits."
)
@click.option(
    "--int8", multiple=True, metavar="PATTERN", help="Weights to quantize to int8, by name; * matches any text."
)
@click.option("--keep", multiple=True, metavar="PATTERN", help="Weights that are not quantized, by name.")
@click.option(
    "--calibrate", metavar="FILE", help="Calibration text, - for stdin. For ONNX: inputs as X.npz or a folder of these."
)
@click.option(
    "--report", "is_report", is_flag=True, help="Write no model; report the quantization error of each weight."
)
@click.option(
    "--budget",
    callback=byte_count,
    metavar="BYTES",
    help="With --report: list weights to store as int8 in so many more bytes.",
)
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
    """Quantize a model to 8 or 4 bits.

    If MODEL is the folder of a language model or encoder, its weights are quantized, except norms and biases.

    If MODEL is an ONNX file, weights and activations of its products are quantized to 8 bits. The scales of the
    activations are measured on the inputs given to --calibrate: an .npz file with an array for each input name, or a
    folder of such files.
    """
    from ingot.load.gguf import is_gguf
    from ingot.load.hf import read_folder
    from ingot.quantize import Plan, quantize_folder, report

    if is_report == (output is not None):
        raise click.UsageError("got both or none of -o and --report, expected either -o or --report")
    if budget is not None and not is_report:
        raise click.UsageError("--budget: got no --report, expected --report")
    plan = Plan(format_, group, zero_points, vocabulary, int8, keep)
    if is_gguf(model):
        raise InputError(f"{model}: cannot be quantized, got a GGUF file, expected a model folder or an ONNX file")
    if os.path.isfile(model):
        expect_none("a model without tokens", {"--template": template})
        _expect_of_onnx(model, plan, calibrate, is_report)
        _calibrated(model, str(output), str(calibrate), as_json)
        return
    read_folder(model, template)  # report an invalid model before an invalid text
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
            f"{output}: {written.coded} weights quantized, {written.kept} unchanged;"
            f" {human_bytes(written.before)} became {human_bytes(written.after)}"
        )
        if written.widened:
            names = f"{written.widened[0]}{', ...' if len(written.widened) > 1 else ''}"
            print_text(f"int8 in place of int4, as 32 does not divide the columns: {len(written.widened)} ({names})")


def _expect_of_onnx(model: str, plan: Plan, calibrate: str | None, is_report: bool) -> None:
    """Raise UsageError for options that apply to model folders only, and for a missing --calibrate."""
    plain = type(plan)("int8")
    given = [f"--{f.name.replace('_', '-')}" for f in fields(plan) if getattr(plan, f.name) != getattr(plain, f.name)]
    given += ["--report"] if is_report else []
    expected = "expected only --format int8, --calibrate and -o with a file"
    if given:
        named = f"--format {plan.format}" if given[0] == "--format" else given[0]
        raise click.UsageError(f"{model}: option for model folders only, got {named}, {expected}")
    if calibrate is None:
        raise click.UsageError(f"{model}: no calibration inputs, got no --calibrate, {expected}")


def _calibrated(model: str, output: str, calibrate: str, as_json: bool) -> None:
    from ingot.quantize import quantize_model

    paths = [calibrate]
    if os.path.isdir(calibrate):
        paths = sorted(os.path.join(calibrate, name) for name in os.listdir(calibrate) if name.endswith(".npz"))
        if not paths:
            raise InputError(f"{calibrate}: no input files, got no *.npz, expected one or more in this folder")
    with counting(f"quantizing {model}") as show:
        quantized = quantize_model(model, output, [read_arrays(path) for path in paths], on_progress=show)
    if as_json:
        print_json(asdict(quantized) | {"output": output})
    else:
        print_text(f"{output}: {quantized.coded} products of integers, {quantized.kept} unchanged")


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
    has_output_errors = any(loss.output_error is not None for loss in found.losses)
    columns = ["weight", "", "bytes", "error", "of outputs"][: 5 if has_output_errors else 4]
    print_table(columns, (row[: len(columns)] for row in rows), right=columns[2:])
    layers = [(layer, _percent(error)) for layer, error in found.layers().items()]
    print_table(["layer", "error"], layers, right=["error"])
    if raised is not None:
        is_wide = all(loss.int8 is None for loss in found.losses)
        none = "every quantized weight is int8 already" if is_wide else "no weight fits the budget as int8"
        print_text(" ".join(f"--int8 {loss.name}" for loss in raised) or none)


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:.2f} %"


COMMANDS = [quantize]

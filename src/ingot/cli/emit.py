"""`ingot emit-c` and `ingot emit-onnx`: the program as a file for another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingot.bindings import unbound
from ingot.cli.fetch import with_path
from ingot.cli.model import Model, dim_option, random_feeds, with_model
from ingot.cli.run import read_inputs
from ingot.cli.terminal import print_text, progress
from ingot.dim import Limit
from ingot.errors import InputError
from ingot.precision import PRECISIONS

if TYPE_CHECKING:
    from ingot.emit.c import Vector
    from ingot.emit.platform import ByteOrder
    from ingot.session import InferenceSession

MAX_THREADS = 256  # of an emitted model
THREADS = 8  # the same on every machine: what is written depends on the model alone


@click.command("emit-c")
@with_path("model")
@dim_option
@click.option(
    "--prefix", default="model", show_default=True, help="Of all names in C, of source files and the program."
)
@click.option(
    "--input", "inputs", multiple=True, metavar="[NAME=]X.npy", help="An input of the test vector, else random."
)
@click.option(
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    show_default=f"{THREADS}, 1 with --freestanding",
    help="The most that a run can use; with 1, nothing of threads is written.",
)
@click.option("--precision", type=click.Choice(list(PRECISIONS)), help="Of weights and products; else as for a run.")
@click.option("--context", type=click.IntRange(1), help="Of a language model: positions; else its own, at most 4096.")
@click.option(
    "--cache-dtype", type=click.Choice(["f32", "bf16", "int8", "int4"]), help="Of a language model: of keys and values."
)
@click.option(
    "--byte-order", type=click.Choice(["little", "big"]), default="little", show_default=True, help="Of the machine."
)
@click.option("--freestanding", is_flag=True, help="For a machine without libc and files: weights as C, and a library.")
@click.option(
    "-o", "--output", type=click.Path(readable=False, path_type=Path), required=True, help="The folder to write."
)
def emit_c(
    model: str,
    dims: dict[str, int | Limit],
    prefix: str,
    inputs: tuple[str, ...],
    threads: int | None,
    precision: str | None,
    context: int | None,
    cache_dtype: str | None,
    byte_order: ByteOrder,
    freestanding: bool,
    output: Path,
) -> None:
    """Write MODEL as plain C with a Makefile.

    `make -C OUTPUT check` builds and tests a program that takes named files. The test is what the model gives for
    some inputs, those of --input or random ones. MODEL may be the folder or GGUF file of a language model: `make -C
    OUTPUT` then builds `generate` and `chat`.
    """
    from ingot.look.model import is_language_model

    if is_language_model(model):
        foreign = {"--dim": dims, "--input": inputs, "--freestanding": freestanding}
        _expect_none("a language model", foreign | {"--byte-order": byte_order if byte_order != "little" else None})
        options = {"precision": precision, "context": context, "cache_dtype": cache_dtype, "prefix": prefix}
        _emit_language_model(model, output, threads=threads or THREADS, **options)
        return
    _expect_none("a model without tokens", {"--context": context, "--cache-dtype": cache_dtype})
    from ingot.emit import c
    from ingot.emit.platform import Platform

    threads = threads or (1 if freestanding else THREADS)
    session = Model(model, 0, "native", True, dims, precision).open()
    vector = _vector(session, dims, inputs)
    with progress("writing C"):
        paths = c.emit(
            session.graph, session.weights, output,
            prefix=prefix, precision=session.precision, threads=threads, vector=vector,
            limits={name: dim.size for name, dim in dims.items() if isinstance(dim, Limit)},
            platform=Platform(byte_order, freestanding),
        )  # fmt: skip
    for path in paths:
        print_text(path)


def _expect_none(kind: str, options: dict[str, Any]) -> None:
    """Raises click.UsageError for an option that is not for a kind of model."""
    for name, value in options.items():
        if value:
            raise click.UsageError(f"option {name}: not for {kind}, got {value}, expected none")


def _emit_language_model(model: str, output: Path, **options: Any) -> None:
    from ingot.llm.c_program import emit_language_model

    with progress("writing C"):
        paths = emit_language_model(model, output, **options)
    for path in paths:
        print_text(path)


def _vector(session: InferenceSession, dims: dict[str, int | Limit], inputs: tuple[str, ...]) -> Vector:
    """Inputs, and what the model makes of them. Raises InputError for those that it refuses and for unbound dims."""
    from ingot.emit.c import Vector

    if open_dims := [symbol for symbol in session.graph.symbols if not isinstance(dims.get(symbol), Limit)]:
        raise unbound(open_dims)
    feeds = read_inputs(session, inputs) if inputs else random_feeds(session, dims)
    try:
        with progress("running the test vector"):
            results = session.run(None, feeds)
    except InputError as error:
        raise InputError(f"test vector: {error}; --input gives others than random inputs") from error
    return Vector(feeds, dict(zip((argument.name for argument in session.get_outputs()), results, strict=True)))


@click.command("emit-onnx")
@with_model
@click.option(
    "-o", "--output", type=click.Path(readable=False, path_type=Path), required=True, help="The file to write."
)
@click.option("--before-passes", is_flag=True, help="Write the graph as it was loaded.")
def emit_onnx(model: Model, output: Path, before_passes: bool) -> None:
    """Write MODEL's graph, after the passes, as ONNX."""
    from ingot.emit.onnx import export_onnx

    graph = model.open(passes=() if before_passes else None).graph
    with progress("writing ONNX"):
        export_onnx(graph, output)
    print_text(str(output))


COMMANDS = [emit_c, emit_onnx]

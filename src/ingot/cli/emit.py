"""`ingot emit-c`, `emit-web` and `emit-onnx`: the program as files for another tool."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingot.cli.fetch import with_path
from ingot.cli.model import Model, dim_option, expect_none, random_feeds, template_option, with_model
from ingot.cli.output import Output
from ingot.cli.run import read_inputs
from ingot.cli.terminal import print_text, progress
from ingot.errors import InputError
from ingot.ir.dim import Limit
from ingot.passes.precision import PRECISIONS, precision_of
from ingot.session.dynamic_shapes import unbound

if TYPE_CHECKING:
    import numpy as np

    from ingot.emit.c import Emission, Vector
    from ingot.emit.platform import ByteOrder
    from ingot.ir.graph import Graph
    from ingot.load.hf import Folder
    from ingot.session.inference import InferenceSession

MAX_THREADS = 256  # of an emitted model
THREADS = 8  # the same on every machine: what is written depends on the model alone


@dataclass(frozen=True)
class Training:
    """How a program in C is to train."""

    loss: str
    optimizer: str
    rate: float
    trainable: tuple[str, ...]
    prediction: str | None


def _with_training(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command --mode and the options of training; it receives these as one `Training`, or None."""

    @functools.wraps(command)
    def opened(mode: str, **options: Any) -> None:
        given = {field.name: options.pop(field.name) for field in fields(Training)}
        found = {name: value for name, value in given.items() if value not in (None, ())}
        if mode != "train":
            expect_none(f"--mode {mode}", {f"--{name}": value for name, value in found.items()})
        defaults = {"loss": "cross_entropy", "optimizer": "adamw", "rate": 1e-3}
        command(training=Training(**given | defaults | found) if mode == "train" else None, **options)

    for option in (
        click.option("--prediction", help="The value that the loss is of, such as logits; else the output."),
        click.option("--trainable", multiple=True, metavar="PATTERN", help="Weights to train; else all of floats."),
        click.option("--rate", type=float, help="The learning rate; else 0.001."),
        click.option("--optimizer", help="adamw or sgd; else adamw."),
        click.option("--loss", help="cross_entropy, mse or bce; else cross_entropy."),
        click.option("--mode", type=click.Choice(["run", "train"]), default="run", show_default=True),
    ):
        opened = option(opened)
    return opened


force_option = click.option(
    "--force", is_flag=True, help="Replace files that are there and that this command did not write."
)


@click.command("emit-c")
@with_path("model")
@dim_option
@click.option(
    "--prefix", show_default="model, train with --mode train", help="Of all names in C, of files and the program."
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
@click.option(
    "--context",
    type=click.IntRange(1),
    help="Of a language model: positions; else its own, at most 4096; to train, 256.",
)
@click.option(
    "--cache-dtype", type=click.Choice(["f32", "bf16", "int8", "int4"]), help="Of a language model: of keys and values."
)
@click.option(
    "--byte-order", type=click.Choice(["little", "big"]), default="little", show_default=True, help="Of the machine."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Of random ops that have none; else 0.")
@click.option("--freestanding", is_flag=True, help="For a machine without libc and files: weights as C, and a library.")
@template_option
@_with_training
@click.option("-o", "--output", type=Output(Path), required=True, help="The folder to write.")
@force_option
def emit_c(
    model: str,
    dims: dict[str, int | Limit],
    prefix: str | None,
    inputs: tuple[str, ...],
    threads: int | None,
    precision: str | None,
    context: int | None,
    cache_dtype: str | None,
    byte_order: ByteOrder,
    seed: int | None,
    freestanding: bool,
    template: str | None,
    output: Path,
    force: bool,
    training: Training | None,
) -> None:
    """Write MODEL as plain C with a Makefile.

    `make -C OUTPUT check` builds and tests a program that takes named files. The test is what the model gives for
    some inputs, those of --input or random ones. MODEL may be the folder or GGUF file of a language model: `make -C
    OUTPUT` then builds `generate` and `chat`. With --mode train the program fits MODEL, an ONNX file or a language
    model, to files of rows.
    """
    from ingot.emit.platform import Platform
    from ingot.inspect.model import is_language_model

    if training is not None:
        foreign = {"--input": inputs, "--freestanding": freestanding, "--precision": precision}
        foreign |= {"--cache-dtype": cache_dtype, "--seed": seed}
        expect_none("--mode train", foreign | {"--byte-order": byte_order if byte_order != "little" else None})
        prefix = "train" if prefix is None else prefix
        given = {"prefix": prefix, "threads": threads or THREADS, "force": force}
        _emit_training(model, dims, training, context, template, output, **given)
        return
    prefix = "model" if prefix is None else prefix
    if is_language_model(model, template):
        foreign = {"--dim": dims, "--input": inputs, "--freestanding": freestanding, "--seed": seed}
        expect_none("a language model", foreign)
        options = {"precision": precision, "context": context, "cache_dtype": cache_dtype, "prefix": prefix}
        options |= {"template": template, "force": force}
        _emit_language_model(model, output, threads=threads or THREADS, platform=Platform(byte_order), **options)
        return
    expect_none("a model without tokens", {"--context": context, "--cache-dtype": cache_dtype, "--template": template})
    from ingot.emit import c

    threads = threads or (1 if freestanding else THREADS)
    session = _seeded(Model(model, 0, "native", True, dims, precision).open(), dims, seed)
    vector = _vector(session, dims, inputs)
    with progress("writing C"):
        paths = c.emit(
            session.graph, session.weights, output,
            prefix=prefix, precision=session.precision, threads=threads, vector=vector,
            limits=_limits(dims),
            platform=Platform(byte_order, freestanding), force=force,
        )  # fmt: skip
    _print_emission(paths, output)


def _print_emission(paths: Emission, output: Path) -> None:
    """The files, and what the model takes by its plans; code and stack are of the compiler, which says them."""
    for path in paths:
        print_text(path)
    taken, make = paths.memory, f"make -C {shlex.quote(str(output))}"
    state = f"state {taken.state:,} (arena {taken.arena:,}, kept {taken.kept:,})"
    print_text(f"RAM    {taken.ram:,} bytes: {state}, inputs {taken.inputs:,}, outputs {taken.outputs:,}")
    print_text(f"flash  {taken.weights:,} bytes of weights; of code: {make} size")
    print_text(f"stack  of each function, with your compiler: {make} stack")


def _seeded(session: InferenceSession, dims: dict[str, int | Limit], seed: int | None) -> InferenceSession:
    """The session, or one whose random ops begin with a seed, as its C will, so that the test vector is the C's.

    Raises InputError for a seed that no random op takes.
    """
    import numpy as np

    from ingot.ops.source import DRAWS
    from ingot.session.inference import InferenceSession

    if DRAWS not in session.graph.states:
        if seed is not None:
            raise InputError("--seed: the model has no random op without a seed, expected none")
        return session
    graph = session.graph.copy()
    graph.begin_state(DRAWS, np.array([seed or 0, 0]))
    limits = {name: dim for name, dim in dims.items() if isinstance(dim, Limit)}
    return InferenceSession(graph, passes=(), precision=session.precision.name, dims=limits or None, strict=True)


def _limits(dims: Mapping[str, int | Limit]) -> dict[str, int]:
    """The most of each dim that runs say."""
    return {name: dim.size for name, dim in dims.items() if isinstance(dim, Limit)}


def _emit_training(
    model: str,
    dims: dict[str, int | Limit],
    wanted: Training,
    context: int | None,
    template: str | None,
    output: Path,
    **options: Any,
) -> None:
    from ingot.inspect.model import is_language_model
    from ingot.load.language import read_model
    from ingot.training import Trainer
    from ingot.training.optimizers import optimizer_of
    from ingot.training.sources import LENGTH, load_static, random_batch, random_windows

    sizes = {name: dim for name, dim in dims.items() if isinstance(dim, int)}
    expect_none("--mode train", {"--dim": [name for name in dims if name not in sizes]})
    optimizer = optimizer_of(wanted.optimizer, wanted.rate)
    with progress("writing C"):
        if is_language_model(model, template):
            batch_size = sizes.pop("batch", 1)
            expect_none("a language model", {"--dim": list(sizes), "--prediction": wanted.prediction})
            folder = read_model(model, template)
            batch: Sequence[np.ndarray] = random_windows(folder, batch_size, context or LENGTH)
            source: Folder | Graph = folder
        else:
            expect_none("a model without tokens", {"--context": context, "--template": template})
            source = load_static(model, sizes, wanted.prediction)
            batch = random_batch(source, wanted.loss)
        trainer = Trainer(
            source, loss=wanted.loss, example_inputs=batch, optimizer=optimizer, trainable=wanted.trainable or None
        )
        paths = trainer.emit_c(output, *batch, **options)
    _print_emission(paths, output)


def _emit_language_model(model: str, output: Path, **options: Any) -> None:
    from ingot.emit.language.model import emit_language_model

    with progress("writing C"):
        paths = emit_language_model(model, output, has_vector=True, **options)
    _print_emission(paths, output)


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
@click.option("-o", "--output", type=Output(Path), required=True, help="The file to write.")
@click.option("--before-passes", is_flag=True, help="Write the graph as it was loaded.")
@force_option
def emit_onnx(model: Model, output: Path, before_passes: bool, force: bool) -> None:
    """Write MODEL's graph, after the passes, as ONNX."""
    from ingot.emit.onnx import expect_replaceable, export_onnx

    if not force:
        expect_replaceable(output)
    graph = model.open(passes=() if before_passes else None).graph
    with progress("writing ONNX"):
        export_onnx(graph, output)
    print_text(str(output))


@click.command("emit-web")
@with_path("model")
@dim_option
@click.option("--ink", type=float, help="Of a model of grey images: a pixel that is drawn on.  [default: 1.0]")
@click.option("--context", type=click.IntRange(1), help="Of a language model: positions; else its own, at most 4096.")
@click.option(
    "--page", type=click.Choice(["chat", "text"]), help="Of a language model; else chat where it has a template."
)
@click.option("--precision", type=click.Choice(list(PRECISIONS)), help="Of weights: f32, bf16w, int8w or int4w.")
@template_option
@click.option("-o", "--output", type=Output(Path), required=True, help="The folder to write.")
@force_option
def emit_web(
    model: str,
    dims: dict[str, int | Limit],
    ink: float | None,
    context: int | None,
    page: str | None,
    precision: str | None,
    template: str | None,
    output: Path,
    force: bool,
) -> None:
    """Write MODEL as a page that runs it in a browser.

    It runs on WebGPU, from static files, with model.js as a library. A model of one grey image gets a page to draw
    on, an encoder one that compares two sentences, a language model one to talk with or one that goes on with a text,
    any other a page of numbers. Dims that inputs begin with are 1 unless --dim says more.

    \b
      ingot emit-web digits --ink 16 -o site
      python -m http.server -d site
    """
    from ingot.emit.web.encoder import emit_encoder
    from ingot.emit.web.language import emit_text
    from ingot.emit.web.model import emit_model
    from ingot.inspect.model import is_language_model
    from ingot.load.hf import read_folder

    name = Path(os.path.realpath(model)).stem
    written: dict[str, Any] = {"precision": precision, "force": force}
    if is_language_model(model, template):
        expect_none("a language model", {"--dim": dims, "--ink": ink})
        with progress("writing a site"):
            paths = emit_text(name, model, output, context=context, page=page, template=template, **written)
    elif os.path.isfile(os.path.join(model, "config.json")):
        expect_none("an encoder", {"--dim": dims, "--ink": ink, "--context": context, "--page": page})
        with progress("writing a site"):
            paths = emit_encoder(name, read_folder(model, template), output, **written)
    else:
        expect_none("a model without tokens", {"--context": context, "--page": page, "--template": template})
        session = Model(model, 0, "interpret", False, dims, None).open()  # which compiles nothing
        with progress("writing a site"):
            given: dict[str, Any] = {} if ink is None else {"ink": ink}
            given |= {"limits": _limits(dims), "precision": precision_of(precision or session.precision.name)}
            given["force"] = force
            paths = emit_model(name, session.graph, session.weights, output, **given)
    for path in paths:
        print_text(path)
    print_text(f"to see it: python -m http.server -d {shlex.quote(str(output))}")


COMMANDS = [emit_c, emit_web, emit_onnx]

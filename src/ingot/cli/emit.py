"""`ingot emit-c`, `emit-web` and `emit-onnx`: export a model as C, as a web page, or as ONNX."""

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

MAX_THREADS = 256  # most threads of an emitted model
THREADS = 8  # the same on every machine, so that the output depends on the model only


@dataclass(frozen=True)
class Training:
    """Options of an emitted training program."""

    loss: str
    optimizer: str
    rate: float
    trainable: tuple[str, ...]
    prediction: str | None


def _with_training(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with --mode and the options of training; it receives one `Training`, or None."""

    @functools.wraps(command)
    def opened(mode: str, **options: Any) -> None:
        given = {field.name: options.pop(field.name) for field in fields(Training)}
        found = {name: value for name, value in given.items() if value not in (None, ())}
        if mode != "train":
            expect_none(f"--mode {mode}", {f"--{name}": value for name, value in found.items()})
        defaults = {"loss": "cross_entropy", "optimizer": "adamw", "rate": 1e-3}
        command(training=Training(**given | defaults | found) if mode == "train" else None, **options)

    for option in (
        click.option("--prediction", help="Value to compute the loss of, such as logits.  [default: the output]"),
        click.option("--trainable", multiple=True, metavar="PATTERN", help="Weights to train.  [default: all floats]"),
        click.option("--rate", type=float, help="Learning rate.  [default: 0.001]"),
        click.option("--optimizer", help="Optimizer: adamw or sgd.  [default: adamw]"),
        click.option("--loss", help="Loss: cross_entropy, mse or bce.  [default: cross_entropy]"),
        click.option("--mode", type=click.Choice(["run", "train"]), default="run", show_default=True),
    ):
        opened = option(opened)
    return opened


force_option = click.option("--force", is_flag=True, help="Overwrite existing files that this command did not write.")


@click.command("emit-c")
@with_path("model")
@dim_option
@click.option(
    "--prefix", show_default="model, train with --mode train", help="Prefix of C names, files and the program."
)
@click.option(
    "--input", "inputs", multiple=True, metavar="[NAME=]X.npy", help="Input of the test vector.  [default: random]"
)
@click.option(
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    show_default=f"{THREADS}, 1 with --freestanding",
    help="Maximum number of threads of a run; with 1, the code does not use threads.",
)
@click.option("--precision", type=click.Choice(list(PRECISIONS)), help="Precision.  [default: as `ingot run`]")
@click.option(
    "--context",
    type=click.IntRange(1),
    help="Context length of a language model.  [default: the model's, at most 4096; 256 with --mode train]",
)
@click.option(
    "--cache-dtype", type=click.Choice(["f32", "bf16", "int8", "int4"]), help="Dtype of a language model's KV cache."
)
@click.option(
    "--byte-order",
    type=click.Choice(["little", "big"]),
    default="little",
    show_default=True,
    help="Byte order of the target.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of random ops without one.  [default: 0]")
@click.option(
    "--freestanding", is_flag=True, help="For targets without libc and files: weights as C arrays, a library."
)
@template_option
@_with_training
@click.option("-o", "--output", type=Output(Path), required=True, help="Folder to write.")
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

    `make -C OUTPUT check` builds a program that reads its inputs from files, and tests it: the expected outputs are
    those of the model for the inputs of --input, or for random ones. If MODEL is the folder or GGUF file of a language
    model, `make -C OUTPUT` builds the programs `generate` and `chat`. With --mode train, the program trains MODEL, an
    ONNX file or a language model, on files of samples.
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
    """Print the files and the planned memory of the model, and how to get code and stack sizes from the compiler."""
    for path in paths:
        print_text(path)
    memory, make = paths.memory, f"make -C {shlex.quote(str(output))}"
    state = f"state {memory.state:,} (arena {memory.arena:,}, kept {memory.kept:,})"
    print_text(f"RAM    {memory.ram:,} bytes: {state}, inputs {memory.inputs:,}, outputs {memory.outputs:,}")
    print_text(f"flash  {memory.weights:,} bytes of weights; size of the code: {make} size")
    print_text(f"stack  of each function, with your compiler: {make} stack")


def _seeded(session: InferenceSession, dims: dict[str, int | Limit], seed: int | None) -> InferenceSession:
    """Return a session whose random ops start with the seed that the C code uses, so that the test vector matches it.

    Raises InputError for a seed if no random op uses it.
    """
    import numpy as np

    from ingot.ops.source import DRAWS
    from ingot.session.inference import InferenceSession

    if DRAWS not in session.graph.states:
        if seed is not None:
            raise InputError(f"--seed: the model has no random op without a seed, got {seed}, expected none")
        return session
    graph = session.graph.copy()
    graph.begin_state(DRAWS, np.array([seed or 0, 0]))
    limits = {name: dim for name, dim in dims.items() if isinstance(dim, Limit)}
    return InferenceSession(graph, passes=(), precision=session.precision.name, dims=limits or None, strict=True)


def _limits(dims: Mapping[str, int | Limit]) -> dict[str, int]:
    """Return the limit of each dim with a limit."""
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
    """Return inputs and the model's outputs for them. Raises InputError for refused inputs and for unbound dims."""
    from ingot.emit.c import Vector

    if open_dims := [symbol for symbol in session.graph.symbols if not isinstance(dims.get(symbol), Limit)]:
        raise unbound(open_dims)
    feeds = read_inputs(session.get_inputs(), inputs) if inputs else random_feeds(session, dims)
    try:
        with progress("running the test vector"):
            results = session.run(None, feeds)
    except InputError as error:
        raise InputError(f"test vector: {error}; choose inputs with --input") from error
    return Vector(feeds, dict(zip((argument.name for argument in session.get_outputs()), results, strict=True)))


@click.command("emit-onnx")
@with_model
@click.option("-o", "--output", type=Output(Path), required=True, help="File to write.")
@click.option("--before-passes", is_flag=True, help="Write the graph as loaded, without the passes.")
@force_option
def emit_onnx(model: Model, output: Path, before_passes: bool, force: bool) -> None:
    """Write MODEL's graph, after the passes, as ONNX.

    Nodes have metadata, which Netron shows: the op, the nodes and modules of MODEL's file, and, if all dims have
    values, the kernel.
    """
    from ingot.emit.onnx import expect_replaceable, export_onnx

    if not force:
        expect_replaceable(output)
    session = model.open(passes=() if before_passes else None)
    with progress("writing ONNX"):
        export_onnx(session.graph, output, _kernels(session))
    print_text(str(output))


def _kernels(session: InferenceSession) -> dict[str, str]:
    """Return the kernel of each node that has one; {} if dims have no values."""
    try:
        choices = session.explain().choices
    except InputError:
        return {}
    return {choice.node: choice.candidates[-1][0] for choice in choices if choice.candidates}


@click.command("emit-web")
@with_path("model")
@dim_option
@click.option("--ink", type=float, help="Value of a drawn pixel, for a model of grey images.  [default: 1.0]")
@click.option(
    "--context",
    type=click.IntRange(1),
    help="Context length of a language model.  [default: the model's, at most 4096]",
)
@click.option(
    "--page",
    type=click.Choice(["chat", "text"]),
    help="Page of a language model.  [default: chat if it has a chat template]",
)
@click.option("--precision", type=click.Choice(list(PRECISIONS)), help="Precision: f32, bf16w, int8w or int4w.")
@template_option
@click.option("-o", "--output", type=Output(Path), required=True, help="Folder to write.")
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
    """Write MODEL as a web page that runs it.

    The page runs the model on WebGPU from static files, with model.js as a library. For a model of one grey image, the
    page lets you draw the image; for an encoder, it compares two sentences; for a language model, it chats or continues
    a text; for any other model, it shows numbers. The first dims of inputs are 1 unless --dim gives another value.

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
    print_text(f"to open it: python -m http.server -d {shlex.quote(str(output))}")


COMMANDS = [emit_c, emit_web, emit_onnx]

"""`ingot generate` and `ingot memory` for Hugging Face folders and GGUF files; the options that `chat` shares."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from ingot.cli.fetch import with_path
from ingot.cli.gguf import bits_per_weight, named
from ingot.cli.interrupt import Interruptible
from ingot.cli.model import as_json, expect_none, template_option
from ingot.cli.terminal import counting, human_bytes, print_json, print_table, print_text, printable, progress
from ingot.cli.text import read_text
from ingot.errors import InputError
from ingot.passes.precision import F32, PRECISIONS
from ingot.support.machine import byte_number

if TYPE_CHECKING:
    from ingot.llm import LLM, Usage
    from ingot.llm.keywords import ModelKeywords, StepKeywords, TextKeywords


@dataclass(frozen=True)
class ModelFolder:
    """A language model's folder or file, and the options to open it with."""

    path: str
    options: ModelKeywords
    checks_weights: bool = False

    def open(self, sequences: int = 1, **options: Unpack[StepKeywords]) -> LLM:
        """Open the model for up to `sequences` sequences. With checks_weights, first print non-finite weights.

        options: as for `LLM`.

        Raises FileNotFoundError, LoadError, UnsupportedError, InputError.
        """
        from ingot.llm import LLM
        from ingot.load.hf.contents import nonfinite_tensors
        from ingot.load.language import read_model

        if self.checks_weights:
            with progress(f"checking {self.path}"):
                found = list(nonfinite_tensors(read_model(self.path, self.options["template"])))
            for tensor in found:
                click.echo(printable(f"{self.path}: {tensor}"), err=True)
        with progress(f"loading {self.path}"):
            return LLM(self.path, sequences=sequences, **options, **self.options)


def with_folder(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with the FOLDER argument and its options; the command receives one `ModelFolder`."""

    @with_path("folder")
    @with_language
    @functools.wraps(command)
    def opened(folder: str, language: ModelKeywords, **options: Any) -> None:
        command(ModelFolder(folder, language), **options)

    return opened


def with_language(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with the options of `LLM`; it receives them as a dict `language`."""

    @click.option(
        "--context", type=click.IntRange(1), help="Context length in tokens.  [default: the model's, at most 4096]"
    )
    @click.option("--precision", type=click.Choice(list(PRECISIONS)), help="Precision.  [default: that of the weights]")
    @click.option("--cache-dtype", type=click.Choice(["f32", "bf16", "int8", "int4"]), help="Dtype of the KV cache.")
    @click.option(
        "--threads", type=click.IntRange(0, 256), default=0, help="Number of threads; 0: choose for this machine."
    )
    @click.option(
        "--executor", type=click.Choice(["native", "webgpu"]), default="native", help="Where to run the model."
    )
    @template_option
    @functools.wraps(command)
    def received(**options: Any) -> None:
        names = ("context", "precision", "cache_dtype", "threads", "executor", "template")
        language = {name: options.pop(name) for name in names}
        command(language=language, **options)

    return received


def with_generation(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with the options of `LLM.generate`; it receives the options given as a dict `generation`."""

    @click.option(
        "--max-tokens",
        type=click.IntRange(0),
        help="Maximum number of tokens to generate.  [default: to the end of the context]",
    )
    @click.option("--temperature", type=float, help="Sampling temperature; 0 always chooses the most probable token.")
    @click.option("--top-k", type=int, help="Sample from the K most probable tokens; 0: from all.")
    @click.option("--top-p", type=float, help="Sample from the fewest tokens whose probabilities sum to at least P.")
    @click.option("--min-p", type=float, help="Sample from tokens with at least this share of the highest probability.")
    @click.option("--repetition-penalty", type=float, help="Above 1: reduce the probability of tokens already used.")
    @click.option("--seed", type=int, help="Random seed; the same seed gives the same answer.")
    @click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; it is not part of the answer.")
    @click.option(
        "--schema",
        type=click.Path(readable=False, path_type=Path),
        help="File with a JSON schema; the answer follows it.",
    )
    @click.option("--regex", help="Regular expression; the whole answer matches it.")
    @click.option("--check-weights", is_flag=True, help="First list the weights that contain NaN or infinity.")
    @functools.wraps(command)
    def received(
        folder: ModelFolder,
        stop: tuple[str, ...],
        schema: Path | None,
        regex: str | None,
        check_weights: bool,
        **options: Any,
    ) -> None:
        names = "max_tokens temperature top_k top_p min_p repetition_penalty seed".split()
        generation = {name: options.pop(name) for name in names}
        generation = {name: value for name, value in generation.items() if value is not None}
        if stop:
            generation["stop"] = stop
        if schema is not None:
            generation["schema"] = read_schema(schema)
        if regex is not None:
            generation["regex"] = regex
        command(replace(folder, checks_weights=check_weights), generation=generation, **options)

    return received


def with_drafts(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with the options of speculative decoding, `lookup` and `draft` of `ModelFolder.open`."""
    lookup = click.option("--lookup", is_flag=True, help="Predict tokens from the text so far; the answer is the same.")
    draft = click.option("--draft", metavar="MODEL", help="Predict tokens by a small model; the answer is the same.")
    return lookup(draft(command))


def read_schema(path: Path) -> Any:
    """Read a JSON document. Raises InputError, FileNotFoundError."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON schema ({error})") from error


@click.command(epilog="Example: ingot generate tiny-lm 'def add(a, b):' --max-tokens 20")
@with_folder
@click.argument("prompt")
@with_generation
@click.option(
    "--strict", is_flag=True, help="Fail if --max-tokens cuts the answer before it follows --schema or --regex."
)
@as_json
def generate(folder: ModelFolder, prompt: str, generation: TextKeywords, strict: bool, as_json: bool) -> None:
    """Continue PROMPT with the language model in FOLDER.

    A PROMPT of - is read from stdin.

    FOLDER is a model folder, a GGUF file, or a name: tiny-lm (shipped with Ingot) or OWNER/NAME[@REVISION] of the hub.
    """
    text = read_text("-").replace("\r\n", "\n").replace("\r", "\n") if prompt == "-" else prompt
    llm = folder.open()
    if as_json:
        completion = llm.complete(text, **generation)
        answer = {"text": completion.text, "finish_reason": completion.finish_reason, "tokens": completion.tokens}
        print_json(answer | facts(llm, completion.usage))
        expect_whole(completion.usage, generation, strict)
        return
    modes = llm.engine.modes
    with Interruptible(modes) as interruptible, counting("reading the prompt") as llm.engine.on_prefill:
        stream(interruptible.until_stopped(llm.stream(text, **generation)))
    click.echo()
    if interruptible.stopped:
        raise click.Abort
    if sys.stderr.isatty():
        click.secho(summary(llm.usage), dim=True, err=True)
    expect_whole(llm.usage, generation, strict)


def expect_whole(usage: Usage, generation: TextKeywords, strict: bool) -> None:
    """Print that an answer was cut before it followed its schema or expression; strict: raise InputError instead."""
    if not usage.is_cut:
        return
    form = "--schema" if "schema" in generation else "--regex"
    cut = f"{form}: the answer was cut after {usage.completion_tokens} tokens and does not follow it"
    if strict:
        raise InputError(cut)
    click.echo(f"ingot: {cut}", err=True)


def facts(llm: LLM, usage: Usage) -> dict[str, Any]:
    """Return counts and times of an answer, and the options it ran with."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "prefill_seconds": usage.prefill_seconds,
        "decode_seconds": usage.decode_seconds,
        "prefill_tokens_per_second": usage.prefill_tokens_per_second,
        "decode_tokens_per_second": usage.decode_tokens_per_second,
        "context": llm.context,
        "precision": llm.options.precision,
        "isa": llm.options.target.isa,
        "threads": llm.options.target.threads,
    }


def summary(usage: Usage) -> str:
    """Return one line with the token counts and the speed of an answer."""
    computed, drawn = usage.prompt_tokens - usage.reused_tokens, usage.completion_tokens
    reused = f" ({usage.reused_tokens} more were cached)" if usage.reused_tokens else ""
    speed = f" at {usage.decode_tokens_per_second:,.0f} tok/s" if drawn > 1 else ""
    drafts = f", {usage.accepted_tokens} of {usage.drafted_tokens} predicted" if usage.drafted_tokens else ""
    return (
        f"prefill {computed} token{'s' * (computed != 1)}{reused} at {usage.prefill_tokens_per_second:,.0f} tok/s, "
        f"decode {drawn} token{'s' * (drawn != 1)}{speed}{drafts}"
    )


def stream(pieces: Iterable[str]) -> str:
    """Print text as it arrives, with control characters escaped on a terminal. Return all of it."""
    shown = []
    for piece in pieces:
        click.echo(printable(piece) if sys.stdout.isatty() else piece, nl=False)
        sys.stdout.flush()
        shown.append(piece)
    return "".join(shown)


def byte_count(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Parse a number of bytes with an optional unit, such as 4GiB. Raises BadParameter."""
    try:
        return None if text is None else byte_number(text, str(option.name))
    except InputError as error:
        raise click.BadParameter(str(error)) from error


# What `memory` has of --train alone -> the options' names.
_TRAINING = {"r": "--lora", "targets": "--target", "batch": "--batch", "accumulate": "--accumulate"}


@click.command(epilog="Example: ingot memory tiny-lm --memory 8MB")
@with_folder
@click.option("--sequences", type=click.IntRange(1, 256), help="Sequences decoded together.  [default: 1]")
@click.option(
    "--memory",
    callback=byte_count,
    metavar="BYTES",
    help="Find the largest context, or with --train a training plan, for this much memory, such as 4GiB.",
)
@click.option("--train", "trains", is_flag=True, help="Memory of `ingot train`; --context is then 256 by default.")
@click.option("--lora", "r", type=click.IntRange(0), help="With --train: rank of the adapters.  [default: 8]")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="PATTERN",
    help="With --train: weights with an adapter.  [default: all]",
)
@click.option("--batch", type=click.IntRange(1), help="With --train: windows in a step.  [default: 4]")
@click.option("--accumulate", type=click.IntRange(1), help="With --train: parts a batch is split into.  [default: 1]")
@as_json
def memory(
    folder: ModelFolder, sequences: int | None, memory: int | None, trains: bool, as_json: bool, **training: Any
) -> None:
    """Print how much memory a language model needs.

    The number is exact to the byte; only the headers of the weights are read.

    FOLDER is a model folder, a GGUF file, or a name: tiny-lm (shipped with Ingot) or OWNER/NAME[@REVISION] of the hub.
    """
    from ingot.llm import memory_of

    if trains:
        executor = folder.options["executor"]
        foreign: dict[str, Any] = {"--sequences": sequences, "--cache-dtype": folder.options["cache_dtype"]}
        foreign |= {"--template": folder.options["template"]}
        expect_none("--train", foreign | {"--executor": executor if executor != "native" else None})
        _training_memory(folder, memory, as_json, **training)
        return
    expect_none("ingot memory without --train", {_TRAINING[name]: value for name, value in training.items()})
    plan = memory_of(folder.path, sequences=sequences or 1, budget=memory, **folder.options)
    if as_json:
        bits = bits_per_weight(folder.path)
        print_json(asdict(plan) | {"total": plan.total} | ({} if bits is None else {"bits_per_weight": bits}))
        return
    print_text(f"{named(folder.path)}, context {plan.context}, sequences {plan.sequences}")
    arenas = [(f"{name}: arena", mode.arena) for name, mode in plan.modes.items()]
    arrays = sum(mode.arrays for mode in plan.modes.values())
    rows = [("weights", plan.weights), ("keys and values", plan.cache), *arenas, ("inputs and outputs", arrays)]
    print_table(
        ["", "bytes", ""],
        ((name, f"{amount:,}", human_bytes(amount)) for name, amount in [*rows, ("total", plan.total)]),
        right=["bytes"],
    )


def _training_memory(
    folder: ModelFolder,
    memory: int | None,
    as_json: bool,
    *,
    r: int | None,
    targets: tuple[str, ...],
    batch: int | None,
    accumulate: int | None,
) -> None:
    from ingot.training.adapters import lora
    from ingot.training.memory import training_memory_of

    if r == 0:
        expect_none("--lora 0", {"--target": targets})
    context, batch, threads = folder.options["context"] or 256, batch or 4, folder.options["threads"]
    adapters = None if r == 0 else lora(r or 8, targets=targets or None)
    plan = training_memory_of(
        folder.path, adapters=adapters, context=context, batch=batch, memory=memory, threads=threads,
        accumulate=accumulate or 1, precision=folder.options["precision"] or F32.name,
    )  # fmt: skip
    if as_json:
        print_json(asdict(plan) | {"total": plan.total})
        return
    trained = f"{plan.parameters:,} trainable parameters"
    print_text(f"{named(folder.path)}, context {context}, batch {batch}, {trained}")
    rows = [
        ("frozen weights", plan.weights),
        ("trained weights and moments", plan.states),
        ("activations", plan.arena),
        ("inputs and loss", plan.arrays),
        ("total", plan.total),
    ]
    print_table(["", "bytes", ""], ((name, f"{n:,}", human_bytes(n)) for name, n in rows), right=["bytes"])
    if plan.trade is not None:
        print_text(str(plan.trade))


COMMANDS = [generate, memory]

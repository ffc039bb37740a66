"""`ingot batch`: answers to a file of prompts."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from ingot.cli.fetch import local
from ingot.cli.llm import ModelFolder, with_language
from ingot.cli.output import Output
from ingot.errors import OutputError, ResourceError
from ingot.load.hub import shown_name
from ingot.support.columns import counted

if TYPE_CHECKING:
    from ingot.llm.keywords import ModelKeywords
    from ingot.serve.batch import Answer


@click.command(epilog="Example: ingot batch prompts.jsonl -o answers.jsonl --model tiny-lm")
@click.argument("prompts", type=click.Path(readable=False))
@click.option("-o", "--output", type=Output(), default="-", show_default=True, help="File of answers; -: stdout.")
@click.option("--model", "folder", required=True, metavar="FOLDER", help="Folder, GGUF file, or name of the model.")
@click.option("--yes", is_flag=True, help="Download a model from the Hugging Face hub without asking.")
@click.option("--name", help="Name of the model in prompts and answers.  [default: FOLDER]")
@click.option("--sequences", type=click.IntRange(1, 256), default=8, show_default=True, help="Answers drawn together.")
@with_language
def batch(
    prompts: str, output: str, folder: str, yes: bool, name: str | None, sequences: int, language: ModelKeywords
) -> None:
    """Answer the prompts of a file.

    The answers are those of `ingot serve`. PROMPTS has OpenAI's batch format: a JSON object in each line with
    custom_id, method (POST), url (/v1/chat/completions, /v1/completions or /v1/embeddings) and body; - reads stdin. The
    answers are in the order in which they are complete. If --output has answers already, only the other prompts are
    answered: a command that was ended goes on when it is repeated.
    """
    try:
        from ingot.serve import app
        from ingot.serve.batch import MAX_WAITING, answers_file, prompts_of, run
    except ModuleNotFoundError as error:
        raise ResourceError(f"batch: no {error.name}, expected pip install 'ingot-compiler[serve]'") from error
    content = sys.stdin.buffer.read() if prompts == "-" else Path(prompts).read_bytes()
    wanted = prompts_of(content, "stdin" if prompts == "-" else prompts)
    stdout: tuple[IO[bytes], set[str]] = (sys.stdout.buffer, set())
    with contextlib.nullcontext(stdout) if output == "-" else answers_file(output, wanted) as (file, answered):
        rest = [prompt for prompt in wanted if prompt.custom_id not in answered]
        if not rest:
            return
        path = local(folder, yes)
        llm = ModelFolder(path, language).open(sequences)
        application = app(llm, shown_name(path) if name is None else name, max_waiting=MAX_WAITING)
        with counting_tokens(len(wanted), len(answered)) as show:
            failed = 0

            def receive(answer: Answer) -> None:
                nonlocal failed
                try:
                    file.write(answer.line)
                    file.flush()
                except OSError as error:
                    raise OutputError(f"{output}: cannot be written, got {error.strerror}") from error
                failed += answer.status != 200
                show(answer)

            try:
                run(application, rest, receive, sequences)
            except OutputError as error:
                if isinstance(error.__cause__, BrokenPipeError):  # the reader of stdout has what it wants
                    raise error.__cause__ from None
                raise
    if failed:
        click.echo(f"ingot: {counted(failed, 'answer')} of {len(rest)}: an error instead of a text", err=True)


@contextlib.contextmanager
def counting_tokens(total: int, done: int) -> Iterator[Callable[[Answer], None]]:
    """Yield a function that shows an answer on a progress bar on stderr; nothing is shown unless stderr is a terminal.

    total: the number of prompts. done: those that were answered before.
    """
    if not sys.stderr.isatty():
        yield lambda answer: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    console = Console(stderr=True, markup=False)
    begin, tokens = time.perf_counter(), 0
    with Progress(*columns, console=console, redirect_stdout=False) as bar:
        task = bar.add_task("answers", total=total, completed=done, speed="")

        def show(answer: Answer) -> None:
            nonlocal tokens
            tokens += answer.tokens
            bar.update(task, advance=1, speed=f"{tokens / (time.perf_counter() - begin):,.0f} tokens/s")

        yield show


COMMANDS = [batch]

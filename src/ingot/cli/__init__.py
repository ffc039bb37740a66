"""The command line: one file per group of commands. This one collects them and turns errors into exit codes."""

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import click
from click.shell_completion import shell_complete

from ingot import __version__
from ingot.cli import (
    bench,
    chat,
    contract,
    demo,
    emit,
    hub,
    inspect,
    llm,
    machine,
    ops,
    perplexity,
    quantize,
    run,
    template,
    train,
)
from ingot.cli.terminal import printable
from ingot.errors import IngotError, IngotWarning
from ingot.support.config import KNOBS, knob

# What ends a command -> its exit code; the first row that fits. An IngotError knows its own.
EXIT_QUANT: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((KeyboardInterrupt, click.Abort), 130),
    ((click.UsageError,), 2),
    ((FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError), 66),
    ((MemoryError,), 75),
    ((OSError,), 74),
)
BUG = 70
COMPLETE = "_INGOT_COMPLETE"  # what a shell asks its completions by


class ExitCode:
    """Ends the process with the code of whatever error leaves the block, after one message on stderr."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, BrokenPipeError):  # the reader had enough: nobody is left to tell
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        if isinstance(error, SystemExit):
            return
        if isinstance(error, click.exceptions.Exit):
            sys.exit(error.exit_code)
        code = exit_code(error)
        click.echo(message(error, code), err=True)
        sys.exit(code)


def exit_code(error: BaseException) -> int:
    """The exit code that an error means; one that nobody foresaw is a bug of Ingot."""
    if isinstance(error, IngotError):
        return error.exit_code
    return next((code for kinds, code in EXIT_QUANT if isinstance(error, kinds)), BUG)


def message(error: BaseException, code: int) -> str:
    """What is said about an error; names from a model are made harmless. A bug brings its traceback."""
    if code == BUG:
        return printable("".join(traceback.format_exception(error))) + "\ningot: this is a bug of Ingot"
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "ingot: interrupted"
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    if isinstance(error, click.UsageError):
        usage = f"{error.ctx.get_usage()}\n" if error.ctx is not None else ""
        return printable(f"{usage}ingot: {error.format_message()}")
    if isinstance(error, MemoryError):
        return "ingot: out of memory"
    if isinstance(error, OSError) and error.filename is not None:
        return printable(f"ingot: {error.filename}: {error.strerror}")
    return printable(f"ingot: {error}")


@contextlib.contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Says Ingot's own warnings as its errors are said; those of others as Python does."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, IngotWarning):
                click.echo(printable(f"ingot: warning: {message}"), err=True)
            else:
                others(message, category, *place, **options)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(version)s")
def commands() -> None:
    """Pour in a PyTorch, ONNX or Hugging Face model; out comes one planned, inspectable program."""
    for name in KNOBS:
        try:
            knob(name)
        except ValueError as error:
            raise click.UsageError(str(error)) from error


GROUPS = (
    run, llm, chat, hub, perplexity, train, quantize, bench, contract, demo, inspect, ops, machine, emit, template,
)  # fmt: skip
for group in GROUPS:
    for command in group.COMMANDS:
        commands.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """The `ingot` program. Exit codes: 0 ok, 2 usage, 65 bad model or input data, 66 no such file, 69 unsupported,
    70 a bug of Ingot, 73 cannot write, 74 read, write or fetch failed, 75 out of resources, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    with ExitCode(), warnings_in_a_line():
        if COMPLETE in os.environ:
            raise click.exceptions.Exit(shell_complete(commands, {}, "ingot", COMPLETE, os.environ[COMPLETE]))
        words = sys.argv[1:] if arguments is None else arguments
        with commands.make_context("ingot", list(words)) as context:
            commands.invoke(context)
        sys.stdout.flush()

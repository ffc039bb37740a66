"""The command line, one module per group of commands. This module collects them and maps errors to exit codes."""

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
    batch,
    bench,
    bisect,
    chat,
    compare,
    contract,
    demo,
    emit,
    hub,
    inspect,
    llm,
    machine,
    ops,
    perplexity,
    plans,
    profile,
    quantize,
    report,
    run,
    serve,
    template,
    train,
)
from ingot.cli.terminal import printable
from ingot.errors import IngotError, IngotWarning
from ingot.support.config import KNOBS, knob

# Exception types -> exit code; the first matching row applies. An IngotError carries its own exit code.
EXIT_CODES: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((KeyboardInterrupt, click.Abort), 130),
    ((click.UsageError,), 2),
    ((FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError), 66),
    ((MemoryError,), 75),
    ((OSError,), 74),
)
BUG = 70
COMPLETE = "_INGOT_COMPLETE"  # the environment variable by which a shell requests completions


class ExitCode:
    """Context manager that converts an exception to one message on stderr and an exit code."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, BrokenPipeError):  # the reader closed the pipe: nobody reads a message
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
    """Return the exit code of an error; an unexpected exception counts as a bug of Ingot."""
    if isinstance(error, IngotError):
        return error.exit_code
    return next((code for kinds, code in EXIT_CODES if isinstance(error, kinds)), BUG)


def message(error: BaseException, code: int) -> str:
    """Return the message for an error, with control characters escaped; for a bug, the traceback."""
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
    """Print Ingot's own warnings in one line, as its errors; print other warnings as Python does."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *location: Any, **options: Any) -> None:
            if issubclass(category, IngotWarning):
                click.echo(printable(f"ingot: warning: {message}"), err=True)
            else:
                others(message, category, *location, **options)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(version)s")
def commands() -> None:
    """Compile, run, inspect and export PyTorch, ONNX and Hugging Face models."""
    for name in KNOBS:
        try:
            knob(name)
        except ValueError as error:
            raise click.UsageError(str(error)) from error


GROUPS = (
    run, llm, chat, serve, batch, hub, perplexity, train, quantize, bench, profile, contract, demo, inspect, compare,
    bisect, plans, report, ops, machine, emit, template,
)  # fmt: skip
for group in GROUPS:
    for command in group.COMMANDS:
        commands.add_command(command)


def _open_closed() -> None:
    """Connect standard streams that are closed, as some services leave them, to the null device."""
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:  # a file that was opened since has the number
                os.dup2(null, descriptor)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def main(arguments: list[str] | None = None) -> None:
    """Run the `ingot` program.

    Exit codes: 0 ok, 2 wrong usage, 65 invalid model or input data, 66 file not found, 69 unsupported, 70 a bug of
    Ingot, 73 cannot write, 74 read, write or fetch failed, 75 out of resources, 130 interrupted.
    """
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    with ExitCode(), warnings_in_a_line():
        if COMPLETE in os.environ:
            raise click.exceptions.Exit(shell_complete(commands, {}, "ingot", COMPLETE, os.environ[COMPLETE]))
        words = sys.argv[1:] if arguments is None else arguments
        with commands.make_context("ingot", list(words)) as context:
            commands.invoke(context)
        sys.stdout.flush()

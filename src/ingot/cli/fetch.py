"""The MODEL or FOLDER argument of commands: a path, or the name of a model that is fetched after the user agrees."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ingot.cli.terminal import human_bytes, printable

if TYPE_CHECKING:
    from ingot.load.hub import Fetch


def with_path(argument: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command with --yes and an argument that is a path or a model's name; the command receives the path."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument(argument, type=click.Path(readable=False))
        @click.option("--yes", is_flag=True, help="Download a model from the Hugging Face hub without asking.")
        @functools.wraps(command)
        def opened(yes: bool, **options: Any) -> None:
            command(**options | {argument: local(options[argument], yes)})

        return opened

    return decorated


def local(name: str, yes: bool) -> str:
    """Return the path of a model given by path or name; fetch it from the hub if it is not here and the user agrees.

    Raises the errors of `located`; Abort if the user declines.
    """
    from ingot.load.hub import located

    return located(name, functools.partial(agree, yes=yes))


def agree(wanted: Fetch, yes: bool) -> None:
    """Print the size of a download, and ask for consent on a terminal unless `yes`. Raises Abort if it is declined."""
    if not wanted.missing_bytes:
        return
    size = human_bytes(wanted.missing_bytes)
    click.echo(printable(f"{wanted.model} is at {wanted.commit}: {size} to fetch into the hub's cache"), err=True)
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm("Fetch it?", default=True, abort=True, err=True)

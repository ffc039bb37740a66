"""The MODEL or FOLDER argument of commands: a path, or a name for which the model is fetched once it is agreed to."""

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
    """Gives a command an argument that is a path or a name, and --yes; it receives the path."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument(argument, type=click.Path(readable=False))
        @click.option("--yes", is_flag=True, help="Fetch a model of the hub without asking.")
        @functools.wraps(command)
        def opened(yes: bool, **options: Any) -> None:
            command(**options | {argument: local(options[argument], yes)})

        return opened

    return decorated


def local(name: str, yes: bool) -> str:
    """The path of a model by its path or name; one that is on the hub alone is fetched, once that is agreed to.

    Raises what `located` raises, Abort for an answer that is no.
    """
    from ingot.load.hub import located

    return located(name, functools.partial(agree, yes=yes))


def agree(wanted: Fetch, yes: bool) -> None:
    """Says what fetching takes, and asks on a terminal unless `yes`. Raises Abort for an answer that is no."""
    if not wanted.missing_bytes:
        return
    size = human_bytes(wanted.missing_bytes)
    click.echo(printable(f"{wanted.model} is at {wanted.commit}: {size} to fetch into the hub's cache"), err=True)
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm("Fetch it?", default=True, abort=True, err=True)

"""`ingot template diff`: compare a template with the tensors of a model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from ingot.cli.fetch import with_path
from ingot.cli.model import as_json, template_option
from ingot.cli.terminal import print_json, print_table, print_text, progress

_LISTED = 100  # rows of a table


@click.group()
def template() -> None:
    """Check templates of architectures.

    See docs/adding-an-architecture.md.
    """


@template.command()
@with_path("folder")
@template_option
@as_json
def diff(folder: str, template: str | None, as_json: bool) -> None:
    """Compare a template with the tensors of FOLDER.

    Lists tensors that are missing, unexpected, or of another shape, with the line of the template that names them.
    The exit code is 0 if they agree, else 65.

    \b
    ingot template diff tiny-lm
    """
    from ingot.load.hf import misfits
    from ingot.load.language import read_model

    with progress(f"reading {folder}"):
        found, rows = misfits(read_model(folder, template))
    counts = Counter(row.kind for row in rows)
    document: dict[str, Any] = {"version": 1, "model": folder, "template": found.file, "counts": dict(counts)}
    document["tensors"] = [
        {"kind": row.kind, "name": row.name, "got": row.got, "expected": row.expected, "where": row.where}
        for row in rows
    ]
    if as_json:
        print_json(document)
    elif not rows:
        print_text(f"{folder}: every tensor fits {found.file}")
    else:
        cells = [[row.kind, row.name, _shape(row.got), _shape(row.expected), row.where] for row in rows[:_LISTED]]
        print_table(["", "tensor", "got", "expected", "template"], cells)
        more = f", the first {_LISTED} listed" if len(rows) > _LISTED else ""
        print_text(f"{', '.join(f'{count} {kind}' for kind, count in counts.items())} by {found.file}{more}")
    if rows:
        raise click.exceptions.Exit(65)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else str(list(shape))


COMMANDS = [template]

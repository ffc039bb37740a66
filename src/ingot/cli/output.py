"""The parameter type of output files and folders."""

from __future__ import annotations

import os
from typing import Any

import click


class Output(click.Path):
    """The name of a file or folder to write. An empty name is refused: as a path it means the current folder."""

    def __init__(self, path_type: type[Any] | None = None):
        super().__init__(readable=False, path_type=path_type)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the name. Raises BadParameter for an empty name."""
        if not os.fspath(value):
            self.fail("an empty name, got '', expected the name of a file or folder to write", param, ctx)
        return super().convert(value, param, ctx)

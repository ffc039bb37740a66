"""Names of what commands write."""

from __future__ import annotations

import os
from typing import Any

import click


class Output(click.Path):
    """The name of a file or folder to write. An empty one is a mistake: as a path it means the folder one is in."""

    def __init__(self, path_type: type[Any] | None = None):
        super().__init__(readable=False, path_type=path_type)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The name. Raises BadParameter."""
        if not os.fspath(value):
            self.fail("an empty name, got '', expected that of what to write", param, ctx)
        return super().convert(value, param, ctx)

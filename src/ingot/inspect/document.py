"""What every JSON document of a look begins with."""

from __future__ import annotations

from typing import Any

from ingot.inspect.model import LookedAt

VERSION = 1


def head(model: LookedAt, stage: str) -> dict[str, Any]:
    """The version of the documents, raised when a key changes or goes; the model and the stage."""
    return {"version": VERSION, "model": model.path, "format": model.format, "stage": stage}

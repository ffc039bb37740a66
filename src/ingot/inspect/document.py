"""The first keys of every JSON document of an inspection."""

from __future__ import annotations

from typing import Any

from ingot.inspect.model import InspectedModel

VERSION = 1


def head(model: InspectedModel, stage: str) -> dict[str, Any]:
    """Return version, model, format and stage. The version is raised when a key changes or is removed."""
    return {"version": VERSION, "model": model.path, "format": model.format, "stage": stage}

"""Models that ship with Ingot, by name, so that examples work wherever they are typed."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

SHIPPED = {"digits": ("data", "digits.onnx"), "tiny-lm": ("models", "tiny-lm")}


def located(name: str) -> str:
    """The path of a model: of a shipped one where nothing lies at a path that is its name, else what was given."""
    if name not in SHIPPED or os.path.lexists(name):
        return name
    return str(Path(str(importlib.resources.files("ingot"))).joinpath(*SHIPPED[name]))

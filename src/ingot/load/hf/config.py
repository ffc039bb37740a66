"""`config.json` of a model folder. None of it is executed or imported: `auto_map` and similar keys are plain data."""

from __future__ import annotations

from typing import Any

from ingot.load.hf.strict_json import parse_object

INFINITE = {"__float__": "Infinity"}
MAX_CONFIG_BYTES = 1 << 20  # of config.json


def parse_config(content: bytes, where: str) -> dict[str, Any]:
    """Parse the configuration. Raises LoadError for anything but one strict JSON object, LimitError when nested too
    deep.

    The word Infinity, which transformers wrote for limits, becomes INFINITE, which it writes now.
    """
    return parse_object(content, where, infinite=INFINITE)

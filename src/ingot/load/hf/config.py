"""`config.json` of a model folder. Nothing in it is ever run or imported: `auto_map` and the like are plain data."""

from __future__ import annotations

from typing import Any

from ingot.load.hf.strict_json import parse_object

MAX_CONFIG_BYTES = 1 << 20  # of config.json


def parse_config(content: bytes, where: str) -> dict[str, Any]:
    """The configuration. Raises LoadError for anything but one strict JSON object, LimitError when nested too deep."""
    return parse_object(content, where)

"""A tiny model of a Hugging Face architecture: its type, config and storage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """A model type, the entries of its config in addition to SIZES, and how it is stored and planned."""

    name: str
    type: str
    config: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    context: int | None = None
    is_slow: bool = False
    attention: str = "eager"  # the implementation of transformers to compare with

"""Small immutable values, of which each binding creates thousands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True)
def record(*, eq: bool = True) -> Callable[[type[Class]], type[Class]]:
    """Make a dataclass with slots and a hash, frozen for type checkers only: `frozen=True` triples construction time.

    eq: whether objects with equal fields are equal; otherwise each equals only itself.
    """
    return dataclass(slots=True, eq=eq, unsafe_hash=eq)

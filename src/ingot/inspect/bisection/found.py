"""Results of the steps of a bisection: the change of a pass, and the layers of a precision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FoundPass:
    """The change of a pass without which the comparison does not fail.

    name: of the pass; "" if the comparison fails before any pass. number, total: of the change, from 1, and of all
    changes. nodes: the nodes that the change adds or rewrites. diff: of the graph's text.
    """

    name: str
    number: int
    total: int
    nodes: tuple[str, ...]
    diff: str


@dataclass(frozen=True, slots=True)
class FoundPrecision:
    """The part of the failure that the precision of side A causes.

    is_cause: the sides agree if A runs in f32. layers: those that must stay f32, of how many that are rounded; agrees:
    whether the sides agree then.
    """

    name: str
    is_cause: bool
    layers: tuple[str, ...]
    of: int
    agrees: bool

"""What a session is made of: a graph from whatever its source is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ingot import saved
from ingot.ir import Graph
from ingot.load import Deferred, is_saved_program, load_model
from ingot.plan import Place
from ingot.precision import Precision
from ingot.run.arena import Arena
from ingot.run.store import WeightStore


@dataclass(frozen=True, slots=True)
class Shared:
    """A source of sessions: a graph over states, and weights, that others have. places: where each state lies.
    unpacked: see `Target`. snapshot: makes the same graph of weights, with what states hold by then.
    """

    graph: Graph
    state: Arena
    places: dict[str, Place]
    weights: WeightStore
    unpacked: frozenset[str]
    snapshot: Callable[[], Graph]


@dataclass(frozen=True, slots=True)
class Opened:
    """A model. is_compiled: its passes have run. precision: of a saved program. files: identities of the files that it
    was read from, if known.
    """

    graph: Graph | Deferred
    is_compiled: bool = False
    precision: Precision | None = None
    files: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def open_source(source: Any, example_inputs: tuple[Any, ...] | None, weights: WeightStore) -> Opened:
    """The graph of whatever a source is."""
    if isinstance(source, Graph):
        return Opened(source.copy())
    if isinstance(source, Shared):
        return Opened(source.graph)
    if is_saved_program(source):
        graph, precision = saved.read(os.fspath(source), weights)
        return Opened(graph, is_compiled=True, precision=precision)
    loaded = load_model(source, example_inputs)
    return Opened(loaded.graph, files=loaded.files)

"""What a session is made of: a graph from whatever its source is, and what its options say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ingot import saved
from ingot.config import debug
from ingot.errors import InputError
from ingot.ir import Graph
from ingot.load import Deferred, is_saved_program, load_model
from ingot.lower import Target
from ingot.plan import Place
from ingot.precision import F32, Precision
from ingot.run.arena import Arena
from ingot.run.library import load
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


def target_of(executor: str, threads: int, precision: Precision) -> Target:
    """What an executor lowers for. Raises what `open_device` does, InputError for a precision that it does not have."""
    if executor == "interpret":
        return Target(executor, threads)
    if executor == "webgpu":
        from ingot.lower.wgpu import webgpu_target
        from ingot.run.device import open_device

        open_device()
        return webgpu_target(precision)
    isa = load().isa()
    rounded = precision.rounded(load().dots(isa))
    return Target(isa, threads, reuse=debug() < 5, rounded=rounded, apart=precision.apart)


def check_option(name: str, value: str, valid: Iterable[str]) -> None:
    if value not in valid:
        raise InputError(f"option {name}: unknown value, got {value!r}, expected one of {', '.join(valid)}")


def agreed_precision(wanted: Precision | None, saved: Precision | None) -> Precision:
    """What is wanted, or what a program was saved in. Raises InputError where these differ."""
    if wanted is not None and saved is not None and wanted is not saved:
        raise InputError(f"option precision: not what was saved, got {wanted.name}, expected {saved.name}")
    return wanted or saved or F32

"""Why a loss is no number: the first value of a run that is none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingot.ir.graph import Graph
from ingot.passes.dce import eliminate_dead
from ingot.run.interpret import interpret


def way_to(graph: Graph, output: str) -> Graph:
    """A copy of a graph that computes nothing but one output, by name; its states stay as they are."""
    way = graph.copy()
    for external in [external for external in way.outputs if external != output]:
        way.remove_output(external)
    for state in way.states:
        way.set_state(state, state)
    eliminate_dead(way)
    return way


def first_bad(graph: Graph, feeds: Mapping[str, np.ndarray], loss: float) -> str:
    """What has made a loss NaN or infinite, as the reference computes it: an input, a state, or a node.

    graph: that of the loss, as it trains. feeds: its inputs, and the states that it reads.
    """
    is_bad = np.isnan if np.isnan(loss) else np.isinf

    def has_bad(array: object) -> bool:
        return isinstance(array, np.ndarray) and array.dtype.kind == "f" and bool(is_bad(array).any())

    for name, array in feeds.items():
        if has_bad(array):
            return f"{'input' if name in graph.inputs else 'parameter'} {name!r} has such a number already"
    found: list[str] = []

    def watch(name: str, array: object) -> None:
        if not found and has_bad(array):
            node = graph.producer(name)
            found.append(f"made by {'a subgraph at' if node is None else node.op.name} {name!r}")

    interpret(graph, feeds, watch=watch)
    return found[0] if found else "made by rounding that the reference does not have"

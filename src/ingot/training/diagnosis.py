"""Diagnosis of a loss that is NaN or infinite: the first such value of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingot.ir.graph import Graph
from ingot.passes.dce import eliminate_dead
from ingot.run.interpret import interpret


def subgraph_of(graph: Graph, output: str) -> Graph:
    """Return a copy of a graph that computes only one output, given by name, and does not update states."""
    copy = graph.copy()
    for external in [external for external in copy.outputs if external != output]:
        copy.remove_output(external)
    for state in copy.states:
        copy.set_state(state, state)
    eliminate_dead(copy)
    return copy


def first_nonfinite(graph: Graph, feeds: Mapping[str, np.ndarray], loss: float) -> str:
    """Return a sentence on the first NaN or infinite value in a reference run: an input, a state, or a node's result.

    graph: the graph of the loss, as in training. feeds: its inputs, and the states that it reads.
    """
    is_bad = np.isnan if np.isnan(loss) else np.isinf

    def has_bad(array: object) -> bool:
        return isinstance(array, np.ndarray) and array.dtype.kind == "f" and bool(is_bad(array).any())

    for name, array in feeds.items():
        if has_bad(array):
            return f"{'input' if name in graph.inputs else 'parameter'} {name!r} contains such a number"
    found: list[str] = []

    def watch(name: str, array: object) -> None:
        if not found and has_bad(array):
            node = graph.producer(name)
            found.append(f"computed by {'a subgraph at' if node is None else node.op.name} {name!r}")

    interpret(graph, feeds, watch=watch)
    return found[0] if found else "caused by rounding that the reference does not have"

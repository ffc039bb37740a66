"""Makes a failing case small: every change that keeps the failure stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from ingot.ir.graph import Graph, Node
from ingot.passes.dce import eliminate_dead
from ingot.run.interpret import interpret

Case = tuple[Graph, dict[str, np.ndarray]]
T = TypeVar("T")


def shrink(case: T, smaller: Callable[[T], Iterator[T]], fails: Callable[[T], bool], seconds: float = 60.0) -> T:
    """The smallest case found for which `fails` holds; it holds for `case`.

    smaller: cases to try, the boldest first.
    """
    until = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < until:
        progress = False
        for candidate in smaller(case):
            if time.monotonic() > until:
                break
            if fails(candidate):
                case, progress = candidate, True
                break
    return case


def smaller_graphs(case: Case) -> Iterator[Case]:
    """Cases with fewer outputs or nodes, the boldest first."""
    graph, feeds = case
    for keep in graph.outputs:
        if len(graph.outputs) > 1:
            yield _pruned(graph, feeds, {keep: graph.outputs[keep]})
    for drop in graph.outputs:
        if len(graph.outputs) > 2:
            yield _pruned(graph, feeds, {k: v for k, v in graph.outputs.items() if k != drop})
    if len(_pruned(graph, feeds, graph.outputs)[0].values) < len(graph.values):
        yield _pruned(graph, feeds, graph.outputs)
    values: dict[str, np.ndarray] = {}
    interpret(graph, feeds, watch=lambda name, array: values.__setitem__(name, np.array(array, order="C")))
    for node in reversed(list(graph.nodes)):
        if len(graph) > 1:
            yield from _without(graph, feeds, node, values)
    for name in graph.outputs:
        node = graph.producer(graph.outputs[name])
        if node is not None and len(graph.outputs) == 1:
            for operand in node.operands:
                if operand is not None and graph.producer(operand) is not None:
                    yield _pruned(graph, feeds, {name: operand})


def _without(graph: Graph, feeds: dict[str, np.ndarray], node: Node, values: dict[str, np.ndarray]) -> Iterator[Case]:
    """The graph with a node's results replaced by an operand of the same type, or by inputs that hold them."""
    if not any(graph.users(output) for output in node.outputs):
        return
    for operand in dict.fromkeys(node.operands):
        if operand is not None and len(node.outputs) == 1 and graph.type(operand) == graph.type(node.output):
            smaller = graph.copy()
            smaller.replace_uses(node.output, operand)
            yield _pruned(smaller, feeds, smaller.outputs)
    smaller, more = graph.copy(), dict(feeds)
    for output in node.outputs:
        name = smaller.add_input(smaller.fresh(f"{output}.value"), graph.type(output))
        smaller.replace_uses(output, name)
        more[name] = values[output]
    yield _pruned(smaller, more, smaller.outputs)


def _pruned(graph: Graph, feeds: dict[str, np.ndarray], outputs: dict[str, str]) -> Case:
    """The graph with these outputs and nothing that they do not need."""
    smaller = graph.copy()
    smaller.outputs = dict(outputs)
    eliminate_dead(smaller)
    for name in list(smaller.inputs):
        if not smaller.users(name) and not smaller.is_output(name):
            smaller.inputs.remove(name)
            del smaller.values[name]
    return smaller, {name: feeds[name] for name in smaller.inputs}

"""Random valid graphs with feeds, for the differential test."""

from __future__ import annotations

import numpy as np

from ingot.ir.dtype import f32
from ingot.ir.graph import Graph
from ingot.lower import Target, segments
from random_growth import Growth, Refused
from random_models import MODELS
from random_patterns import NODES

STATE_BYTES = 2**17  # all states lie in one region, and so does what they become; some runs have small ones


def random_graph(seed: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """A valid graph of about 3 to 25 nodes and an array for each of its inputs. Deterministic."""
    growth = Growth(seed)
    patterns, weights = zip(*NODES, *MODELS, strict=True)
    likely = np.array(weights) / sum(weights)
    wanted = int(growth.rng.integers(3, 26))
    for _ in range(10 * wanted):
        if len(growth.graph) >= wanted:
            break
        pattern = patterns[int(growth.rng.choice(len(patterns), p=likely))]
        try:
            pattern(growth)
        except Refused:
            continue
    _choose_outputs(growth)
    if seed % 3 == 0:
        _choose_states(growth)
    growth.graph.validate()
    return growth.graph, growth.feeds


def _choose_outputs(growth: Growth) -> None:
    """Most values that nothing reads (the others stay as dead nodes), some that are read, now and then a leaf."""
    graph = growth.graph
    made = [name for name in growth.pool if graph.producer(name) is not None]
    leaves = [name for name in growth.pool if graph.producer(name) is None]
    chosen = [n for n in made if not graph.users(n) and growth.chance(0.75)]
    chosen += [n for n in made if graph.users(n) and growth.chance(0.06)]
    chosen += [growth.choose(leaves)] if leaves and growth.chance(0.08) else []
    chosen += [growth.choose(chosen)] if chosen and growth.chance(0.05) else []
    for i, name in enumerate(chosen or [growth.choose(made or leaves)]):
        graph.set_output(f"y{i}", name)


def _keeps(growth: Growth, name: str, value: str) -> bool:
    """Whether a state may take a value: integers may be indices, and keep to the range that they are in."""
    before, after = growth.exact[name], growth.exact.get(value)
    if before.dtype.kind not in "iu" or not before.size:
        return True
    return after is not None and before.min() <= after.min() and after.max() <= before.max()


def _choose_states(growth: Growth) -> None:
    """Makes some inputs states, whose updates are values of their types: made ones, their own, each other's."""
    graph = growth.graph
    whole = graph.copy()
    room = STATE_BYTES
    for name in [name for name in graph.inputs if growth.chance(0.7)]:
        if growth.feeds[name].nbytes > room:
            continue
        room -= growth.feeds[name].nbytes
        graph.inputs.remove(name)
        graph.values[name].kind = "state"
        graph.states[name] = name
    parts = segments(graph.bind({str(n): v for v, n in growth.symbols.items()}), Target())
    if len(parts) != 1 or not parts[0].native:  # programs are compared by the memory of their states
        growth.graph = whole
        return
    for name in graph.states:
        type = graph.type(name)
        if type.dtype is f32 and type.rank and growth.chance(0.4):  # what may be made in place, if nothing else reads
            op = growth.choose(("neg", "tanh", "softmax"))
            made = graph.add(op, [name], **({"axis": type.rank - 1} if op == "softmax" else {}))
            graph.set_state(name, made.output)
            continue
        fitting = [value for value in graph.values if graph.type(value) == type and _keeps(growth, name, value)]
        made = [value for value in fitting if graph.producer(value) is not None]
        graph.set_state(name, growth.choose(made if made and growth.chance(0.6) else fitting))
        if growth.chance(0.4):
            graph.set_output(f"old.{name}", name)

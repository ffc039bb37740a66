"""Random valid graphs with feeds, for the differential test."""

from __future__ import annotations

import numpy as np

from ingot.ir import Graph
from random_growth import Growth, Refused
from random_models import MODELS
from random_patterns import NODES


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

"""The state of random ops without a seed, and normal numbers computed from uniform ones; see docs/random.md."""

from __future__ import annotations

import math

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dtype import i64
from ingot.ir.graph import Graph, TensorType
from ingot.ops.define import Builder
from ingot.ops.source import DRAWS


def drawing_state(graph: Graph) -> str:
    """Return the name of the state that `draw_uniform` reads, and add the state if absent. It holds a seed and the
    number of runs, which each run increments.

    Raises LoadError if another value has this name.
    """
    if DRAWS in graph.states:
        return DRAWS
    if DRAWS in graph.values:
        raise LoadError(f"value {DRAWS!r}: the name of the state of random ops, expected another name")
    graph.add_state(DRAWS, TensorType(i64, (2,)))
    one = graph.add_constant(graph.fresh(f"{DRAWS}.run"), np.array([0, 1]))
    graph.set_state(DRAWS, graph.add("add", [DRAWS, one], graph.fresh(f"{DRAWS}.next")).output)
    return DRAWS


def normal(build: Builder, first: str, second: str) -> str:
    """Compute normal numbers, each from two uniform numbers. Box and Muller, "A note on the generation of random normal
    deviates", 1958.
    """
    radius = build.sqrt(build.mul(build.log(build.add(build.neg(first), 1.0)), -2.0))
    return build.mul(radius, build.cos(build.mul(second, 2 * math.pi)))

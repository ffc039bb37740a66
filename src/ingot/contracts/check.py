"""The tables of checks and of what they run, and what a check says when it has falsified something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ingot.ir.dtype import from_numpy
from ingot.ir.graph import Graph, TensorType
from ingot.session.inference import InferenceSession

Array = np.ndarray
Feeds = dict[str, Array]
Shape = tuple[int, ...]
# (subject, shape, tolerance, random numbers)
Check = Callable[[str, Shape, float, np.random.Generator], None]


class Falsified(Exception):
    """An invariant does not hold; says by how much."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The op of a contract. feeds: operands of a shape. write: the op on names of values. weights: constant operands.

    formula: the same in numpy, in the dtype of its operands.
    """

    feeds: Callable[[Shape, np.random.Generator], Feeds]
    write: Callable[[Graph, dict[str, str], Shape], str]
    formula: Callable[[Feeds], Array]
    weights: tuple[str, ...] = ()

    def session(self, shape: Shape, feeds: Feeds, threads: int) -> InferenceSession:
        """A session of one op, whose weights are those of the feeds."""
        graph, names = Graph("contract"), {}
        for name, array in feeds.items():
            if name in self.weights:
                names[name] = graph.add_weight(name, array)
            else:
                names[name] = graph.add_input(name, TensorType(from_numpy(array.dtype), array.shape))
        graph.set_output("y", self.write(graph, names, shape))
        return InferenceSession(graph, threads=threads)

    def run(self, shape: Shape, feeds: Feeds, threads: int = 1) -> Array:
        """The result for operands."""
        session = self.session(shape, feeds, threads)
        (y,) = session.run(None, {name: array for name, array in feeds.items() if name not in self.weights})
        return np.asarray(y)

    def exact(self, feeds: Feeds) -> Array:
        """The formula in float64."""
        return self.formula({name: each.astype(np.float64) if each.dtype == np.float32 else each
                             for name, each in feeds.items()})  # fmt: skip


CHECKS: dict[str, Check] = {}
SUBJECTS: dict[str, Subject] = {}


def check(function: Check) -> Check:
    """Declares a check by its name."""
    CHECKS[function.__name__] = function
    return function


def expect(holds: bool | np.bool_, what: str) -> None:
    """Raises Falsified unless something holds."""
    if not holds:
        raise Falsified(what)


def expect_close(found: Array, wanted: Array, allowed: Array | float) -> None:
    """Raises Falsified where results lie further apart than allowed, and for NaN."""
    apart = np.abs(found.astype(np.float64) - wanted)
    over = ~(apart <= allowed)
    expect(not over.any(), f"{over.sum()} of {over.size} lie apart, by up to {np.max(apart, initial=0):.3g}")


def expect_bits(found: Array, wanted: Array, what: str) -> None:
    """Raises Falsified unless two results have the same bits."""
    expect(found.shape == wanted.shape and found.tobytes() == wanted.tobytes(), f"bits differ, {what}")

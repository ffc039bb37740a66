"""The tables of checks and of their subjects, and the exception of a falsified invariant."""

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
    """An invariant does not hold; the message gives the difference."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The op of a contract. feeds: returns operands for a shape. write: adds the op to a graph. weights: the names of
    constant operands. formula: the same computation in numpy, in the dtype of the operands.
    """

    feeds: Callable[[Shape, np.random.Generator], Feeds]
    write: Callable[[Graph, dict[str, str], Shape], str]
    formula: Callable[[Feeds], Array]
    weights: tuple[str, ...] = ()

    def session(self, shape: Shape, feeds: Feeds, threads: int) -> InferenceSession:
        """Return a session of one op; its weights come from the feeds."""
        graph, names = Graph("contract"), {}
        for name, array in feeds.items():
            if name in self.weights:
                names[name] = graph.add_weight(name, array)
            else:
                names[name] = graph.add_input(name, TensorType(from_numpy(array.dtype), array.shape))
        graph.set_output("y", self.write(graph, names, shape))
        return InferenceSession(graph, threads=threads)

    def run(self, shape: Shape, feeds: Feeds, threads: int = 1) -> Array:
        """Return the result for operands."""
        session = self.session(shape, feeds, threads)
        (y,) = session.run(None, {name: array for name, array in feeds.items() if name not in self.weights})
        return np.asarray(y)

    def exact(self, feeds: Feeds) -> Array:
        """Return the result of the formula in float64."""
        return self.formula({name: each.astype(np.float64) if each.dtype == np.float32 else each
                             for name, each in feeds.items()})  # fmt: skip


CHECKS: dict[str, Check] = {}
SUBJECTS: dict[str, Subject] = {}


def check(function: Check) -> Check:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


def expect(holds: bool | np.bool_, what: str) -> None:
    """Raise Falsified unless a condition holds."""
    if not holds:
        raise Falsified(what)


def expect_close(found: Array, wanted: Array, allowed: Array | float) -> None:
    """Raise Falsified if a result differs by more than allowed, or is NaN."""
    errors = np.abs(found.astype(np.float64) - wanted)
    over = ~(errors <= allowed)
    expect(not over.any(), f"{over.sum()} of {over.size} differ, by up to {np.max(errors, initial=0):.3g}")


def expect_bits(found: Array, wanted: Array, what: str) -> None:
    """Raise Falsified unless two results have the same bits."""
    expect(found.shape == wanted.shape and found.tobytes() == wanted.tobytes(), f"bits differ, {what}")

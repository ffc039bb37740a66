"""Bisection of a comparison that fails: `ingot.inspect.bisection.bisect` and `ingot bisect`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ingot.errors import bounded
from ingot.inspect.bisection.result import Bisection
from ingot.inspect.bisection.search import Search, problem_of
from ingot.inspect.comparison import compared
from ingot.inspect.comparison.prepared import Prepared, Wanted, prepare
from ingot.passes.precision import precision_of

if TYPE_CHECKING:
    from ingot.load import Examples, ModelSource

__all__ = ["Bisection", "bisect", "bisected"]


def bisect(
    model: ModelSource,
    *,
    a: str = "native",
    b: str | os.PathLike[str] = "float64",
    inputs: Mapping[str, Any] | None = None,
    example_inputs: Examples | None = None,
    dims: Mapping[str, int] | None = None,
    precision: str | None = None,
    threads: int = 0,
    seed: int = 0,
    report: Callable[[str], None] = lambda text: None,
) -> Bisection:
    """Find what makes a comparison fail: the pass, the smallest part of the graph, the layers of a precision.

    The arguments are those of `ingot.compare`. A part is judged on B's values. report: called with what is tried next.

    Raises the errors of `ingot.compare`.
    """
    known = None if precision is None else precision_of(precision)
    wanted = Wanted(model, example_inputs, inputs, dims, seed)
    with bounded(wanted.title):
        return bisected(prepare(wanted, a, os.fspath(b), known, threads), report)


def bisected(pair: Prepared, report: Callable[[str], None] = lambda text: None) -> Bisection:
    """As `bisect`, of two sides that are prepared."""
    report("the whole model")
    comparison = compared(pair)
    problem = problem_of(comparison)
    names = comparison.model, comparison.a, comparison.b, problem, comparison
    if not problem:
        return Bisection(*names)
    search = Search.of(pair, problem, report)
    passes = search.by_pass()
    part = search.by_node(comparison.first)
    precision = search.by_precision()
    found = None if part is None else search.compared(part)
    return Bisection(*names, passes, part, found, len(search.graph), precision, search.comparisons + 1, search)

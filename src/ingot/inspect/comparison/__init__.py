"""Comparison of two ways to run a model, value by value: `ingot.compare` and `ingot compare`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ingot.errors import InputError, bounded
from ingot.inspect.comparison.compared import Compare
from ingot.inspect.comparison.prepared import Prepared, Wanted, planned_side, prepare
from ingot.inspect.comparison.result import ComparedValue, Comparison, NonFinite
from ingot.inspect.stages import SIDES
from ingot.passes.precision import F32, precision_of

if TYPE_CHECKING:
    from ingot.load import Examples, ModelSource

__all__ = ["SIDES", "ComparedValue", "Comparison", "NonFinite", "compare", "compared", "planned_side"]


def compare(
    model: ModelSource,
    *,
    a: str = "native",
    b: str | os.PathLike[str] = "float64",
    inputs: Mapping[str, Any] | None = None,
    example_inputs: Examples | None = None,
    dims: Mapping[str, int] | None = None,
    precision: str | None = None,
    against: str | None = None,
    threads: int = 0,
    seed: int = 0,
) -> Comparison:
    """Run a model in two ways on the same inputs, and compare every value that both compute.

    model: as for `InferenceSession`, or a language model, of which all positions of one sequence are computed: its
    input is `ids`, its dim `rows`. a, b: one of SIDES; b may also be the path of another model, whose values of the
    same names the reference computes, or of an .npz file of expected values by name, or "transformers" for the folder
    of a language model. inputs: an array for each input; others are random, from `seed`, and `dims` gives their
    symbolic dims (1 by default). precision: of products on side A. against: "f32", to rank the values by the error of
    their rounding instead of judging them; b is then float64.

    Values have the names of the graph as loaded. First types are compared, then numbers: the error of each node on B's
    values against the tolerance of its op, and the error of A's own run. A fused node has the tolerance of all nodes in
    it; where that is exceeded, it is how far errors of these tolerances move its result.

    Raises InputError for an unknown side, input or option, and the errors of loading and running the model.
    """
    known = precision_of(precision) if precision is not None else None
    if against is not None and (against != F32.name or b != "float64" or known in (None, F32)):
        got = f"{against!r} with precision {(known or F32).name!r} and b {b!r}"
        raise InputError(f"compare: option against, got {got}, expected 'f32' with a narrower precision")
    wanted = Wanted(model, example_inputs, inputs, dims, seed)
    with bounded(wanted.title):
        sides = prepare(wanted, a, os.fspath(b), known, threads)
        return compared(sides, is_precision=against is not None)


def compared(sides: Prepared, *, is_precision: bool = False) -> Comparison:
    """Run both sides on the whole model, and compare."""
    return Compare(
        sides.title, sides.a(), sides.b(), sides.named, sides.feeds, sides.graph, is_precision=is_precision
    ).result()

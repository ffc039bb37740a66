"""Comparison of two ways to run a model, value by value: `ingot.compare` and `ingot compare`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.compile import Mode, compile_mode
from ingot.errors import InputError, bounded
from ingot.inspect.comparison.compared import Compare
from ingot.inspect.comparison.emitted import Emitted
from ingot.inspect.comparison.foreign import OnnxSession, TorchGraph
from ingot.inspect.comparison.language import language_inputs, language_side
from ingot.inspect.comparison.result import ComparedValue, Comparison, NonFinite
from ingot.inspect.comparison.sides import Planned, Reference, Side
from ingot.inspect.model import is_language_model
from ingot.ir.dtype import string
from ingot.ir.graph import Graph, TensorType, bind_type, type_symbols
from ingot.load import ShapeDependentModel
from ingot.lower import Target
from ingot.passes import optimize
from ingot.passes.precision import F32, Precision, precision_of
from ingot.run.interpret import bind_symbols
from ingot.run.store import WeightStore
from ingot.session.inputs import arrays
from ingot.session.source import agreed_precision, open_source, target_of
from ingot.support.machine import usable_threads

if TYPE_CHECKING:
    from ingot.load import Examples, ModelSource

__all__ = ["SIDES", "ComparedValue", "Comparison", "NonFinite", "compare", "random_inputs"]

SIDES = ("native", "webgpu", "emit-c", "interpret", "float64", "onnxruntime", "torch")


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
    same names the reference computes. inputs: an array for each input; others are random, from `seed`, and `dims` gives
    their symbolic dims (1 by default). precision: of products on side A. against: "f32", to rank the values by the
    error of their rounding instead of judging them; b is then float64.

    Values have the names of the graph as loaded. First types are compared, then numbers: the error of each node on B's
    values against the tolerance of its op, and the error of A's own run. A fused node has the tolerance of all nodes in
    it; where that is exceeded, it is how far errors of these tolerances move its result.

    Raises InputError for an unknown side, input or option, and the errors of loading and running the model.
    """
    known = precision_of(precision) if precision is not None else F32
    if against is not None and (against != F32.name or b != "float64" or known is F32):
        got = f"{against!r} with precision {known.name!r} and b {b!r}"
        raise InputError(f"compare: option against, got {got}, expected 'f32' with a narrower precision")
    title = os.fspath(model) if isinstance(model, (str, os.PathLike)) else f"a {type(model).__name__}"
    with bounded(title):
        if isinstance(model, (str, os.PathLike)) and is_language_model(title):
            folder, tokens, context = language_inputs(title, inputs or {}, dims or {}, seed)
            side, _ = language_side(a, folder, tokens, context, precision, threads)
            other, named = language_side(os.fspath(b), folder, tokens, context, F32.name, threads)
            return Compare(title, side, other, named, tokens, is_precision=against is not None).result()
        graph, feeds, stored = _opened(model, example_inputs, inputs, dims, seed)
        known = agreed_precision(None if precision is None else known, stored)
        count = threads or usable_threads()
        build = partial(_side, model, example_inputs, graph, feeds, count)
        first = build(a, known)
        if os.fspath(b) in SIDES:
            second, named = build(os.fspath(b), F32), graph
        else:
            named, _, _ = _opened(b, None, feeds, None, seed)
            second = Reference(named, feeds)
        return Compare(title, first, second, named, feeds, is_precision=against is not None).result()


def _opened(
    model: ModelSource,
    example_inputs: Examples | None,
    inputs: Mapping[str, Any] | None,
    dims: Mapping[str, int] | None,
    seed: int,
) -> tuple[Graph, dict[str, Any], Precision | None]:
    """Return the graph of a model as loaded, an array for each input, and the precision of a saved program."""
    opened = open_source(model, example_inputs, WeightStore(1))
    interface = opened.graph.interface if isinstance(opened.graph, ShapeDependentModel) else opened.graph
    given = dict(arrays(interface, inputs or {}))
    feeds = random_inputs(interface, dims or {}, seed, given) | given
    if isinstance(opened.graph, ShapeDependentModel):
        return opened.graph.load(bind_symbols(interface, feeds)), feeds, opened.precision
    return opened.graph, feeds, opened.precision


def random_inputs(graph: Graph, dims: Mapping[str, int], seed: int, given: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Draw arrays for the inputs that are not given: floats in -1..1, integers 0 or 1.

    dims: of symbols; others follow from the given arrays, or are 1. Raises InputError for an input that is no tensor of
    numbers, and for a dim that the graph does not have.
    """
    if unknown := sorted(dims.keys() - set(graph.symbols)):
        raise InputError(f"option dims: no such dim, got {', '.join(unknown)}, expected one of {graph.symbols}")
    generator, sizes, found = np.random.default_rng(seed), dict(dims), {}
    for name in (name for name in graph.inputs if name in given):
        type = graph.values[name].type
        if isinstance(type, TensorType):
            shape = zip(type.shape, np.shape(given[name]), strict=False)
            sizes |= {str(dim): size for dim, size in shape if str(dim) in type_symbols(type)}
    for name in graph.inputs:
        type = graph.values[name].type
        if name in given:
            continue
        if not isinstance(type, TensorType) or type.dtype is string:
            raise InputError(f"input {name!r}: no random values, got {type}, expected an array in option inputs")
        sized = bind_type(type, {symbol: sizes.get(symbol, 1) for symbol in type_symbols(type)})
        assert isinstance(sized, TensorType)
        if type.dtype.kind == "f":
            found[name] = generator.uniform(-1, 1, sized.dims).astype(type.dtype.numpy)
        else:
            found[name] = generator.integers(0, 2, sized.dims).astype(type.dtype.numpy)
    return found


def _side(
    model: ModelSource,
    example_inputs: Examples | None,
    graph: Graph,
    feeds: Mapping[str, Any],
    threads: int,
    name: str,
    precision: Precision,
) -> Side:
    """Return a side by its name. Raises InputError for another name, and the errors of compilation."""
    if name not in SIDES:
        raise InputError(f"compare: unknown side, got {name!r}, expected one of {', '.join(SIDES)}")
    if name in ("interpret", "float64"):
        return Reference(graph, feeds, float64=name == "float64")
    if name == "onnxruntime":
        return OnnxSession(model, graph, feeds)
    if name == "torch":
        return TorchGraph(model, example_inputs, graph, feeds)
    optimized = graph.copy()
    optimize(optimized)
    return planned_side(name, optimized, feeds, Mode(sizes=bind_symbols(graph, feeds), precision=precision), threads)


def planned_side(name: str, optimized: Graph, feeds: Mapping[str, Any], mode: Mode, threads: int) -> Planned | Emitted:
    """Return a side that runs kernels: native, webgpu or emit-c. optimized: a graph after the passes."""
    if name != "emit-c":
        return Planned(compile_mode(optimized, target_of(name, threads, mode.precision), mode), feeds, threads)
    rows = mode.precision.rows
    target = Target("scalar", threads=1, rounded=() if rows is None else (rows,))
    unshared = replace(target, reuse=False, inplace=False)
    return Emitted(compile_mode(optimized, target, mode), compile_mode(optimized, unshared, mode), feeds)

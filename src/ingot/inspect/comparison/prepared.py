"""Two ways to run a model, before anything is compiled: what `ingot compare` runs once, and `ingot bisect` often."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.compile import Mode, compile_mode
from ingot.errors import InputError
from ingot.inspect.comparison.emitted import Emitted
from ingot.inspect.comparison.foreign import OnnxSession, TorchGraph
from ingot.inspect.comparison.language import (
    LANGUAGE_SIDES,
    language_graph,
    language_inputs,
    language_side,
    planned_language_side,
    transformers_side,
)
from ingot.inspect.comparison.sides import Arrays, Planned, Recorded, Reference, Side
from ingot.inspect.comparison.torch_part import TorchParts
from ingot.inspect.model import is_language_model
from ingot.inspect.stages import SIDES, TRANSFORMERS
from ingot.ir.graph import Graph
from ingot.ir.text import dump
from ingot.load import ShapeDependentModel
from ingot.load.hf.recurrent import SLOTS
from ingot.lower import Target
from ingot.passes import optimize
from ingot.passes.precision import F32, Precision, precision_of, round_operands
from ingot.run.interpret import bind_symbols
from ingot.run.store import WeightStore
from ingot.session.inputs import arrays, random_inputs
from ingot.session.source import agreed_precision, open_source, target_of
from ingot.support.machine import usable_threads

if TYPE_CHECKING:
    from ingot.load import Examples, ModelSource

COMPILED = ("native", "webgpu", "emit-c")  # sides that run a graph after the passes
RECORDED = ".npz"  # the suffix of a file of expected values
Build = Callable[[Graph, Arrays], Side]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Two sides of a model, and the same inputs for both.

    graph: of A, as loaded; named: of B, which names the values. a, b: build the sides of the whole model; part_a,
    part_b: those of another graph, such as a part of `graph`; None for a side that runs only whole models, or another
    model. after_passes: builds A from a static graph without further passes; None if A runs none. rounds: whether A
    rounds products after the passes. executor: the name of side A; precision: of its products; threads: of both sides.
    """

    title: str
    graph: Graph
    named: Graph
    feeds: dict[str, Any]
    a: Callable[[], Side]
    b: Callable[[], Side]
    part_a: Build
    part_b: Build | None
    after_passes: Build | None
    rounds: bool
    executor: str
    precision: Precision
    threads: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of `compare` that choose a model and its inputs."""

    model: ModelSource
    example_inputs: Examples | None = None
    inputs: Mapping[str, Any] | None = None
    dims: Mapping[str, int] | None = None
    seed: int = 0

    @property
    def title(self) -> str:
        """The model in a line of text."""
        is_path = isinstance(self.model, (str, os.PathLike))
        return os.fspath(self.model) if is_path else f"a {type(self.model).__name__}"  # type: ignore[arg-type]

    def opened(self) -> tuple[Graph, dict[str, Any], Precision | None]:
        """Return the graph as loaded, an array for each input, and the precision of a saved program."""
        opened = open_source(self.model, self.example_inputs, WeightStore(1))
        interface = opened.graph.interface if isinstance(opened.graph, ShapeDependentModel) else opened.graph
        dims, given = self.dims or {}, dict(arrays(interface, self.inputs or {}))
        if unknown := sorted(dims.keys() - set(interface.symbols)):
            raise InputError(f"option dims: no such dim, got {', '.join(unknown)}, expected one of {interface.symbols}")
        feeds = random_inputs(interface, dims, self.seed, given) | given
        if isinstance(opened.graph, ShapeDependentModel):
            return opened.graph.load(bind_symbols(interface, feeds)), feeds, opened.precision
        return opened.graph, feeds, opened.precision


def prepare(wanted: Wanted, a: str, b: str, precision: Precision | None, threads: int) -> Prepared:
    """Open the model and what it is compared with. Raises InputError for an unknown side, and the errors of loading."""
    model, count = wanted.model, threads or usable_threads()
    if isinstance(model, (str, os.PathLike)) and is_language_model(wanted.title):
        return _prepared_language(wanted, a, b, precision, count)
    if a not in SIDES:
        raise InputError(f"compare: unknown side, got {a!r}, expected one of {', '.join(SIDES)}")
    graph, feeds, stored = wanted.opened()
    precision = agreed_precision(precision, stored)
    build_a, part_a = _builds(a, wanted, graph, precision, count)
    named = graph
    part_b: Build | None = None
    if b in SIDES:
        build_b, part_b = _builds(b, wanted, graph, F32, count)
        if b in ("onnxruntime", "torch"):  # a part that Ingot exports has the faults of loading, which B is to show
            part_b = None
    elif b == TRANSFORMERS:
        raise InputError(f"compare: side B {b} needs a language model, got {wanted.title}")
    elif b.endswith(RECORDED):
        build_b = partial(Recorded, arrays=_recorded(b))
    else:
        named, _, _ = Wanted(b, inputs=feeds).opened()
        build_b = partial(_other_model, b)
    compiled = partial(planned_side, a, mode=Mode(precision=precision), threads=count, passes=())
    after_passes = compiled if a in COMPILED else None
    return Prepared(
        wanted.title, graph, named, feeds, partial(build_a, graph, feeds), partial(build_b, named, feeds),
        part_a, part_b, after_passes, True, a, precision, count,
    )  # fmt: skip


def _builds(name: str, wanted: Wanted, graph: Graph, precision: Precision, threads: int) -> tuple[Build, Build]:
    """Return how a side runs the whole model, and parts of it."""
    if name == "onnxruntime":
        return partial(OnnxSession, wanted.model), exported_side
    if name == "torch":
        source = wanted.model, wanted.example_inputs
        return partial(TorchGraph, *source), TorchParts(*source, graph)
    build = partial(executed_side, name, precision=precision, threads=threads)
    return build, build


def _prepared_language(wanted: Wanted, a: str, b: str, precision: Precision | None, threads: int) -> Prepared:
    is_model = b not in LANGUAGE_SIDES and os.path.exists(b) and is_language_model(b)
    for name, more in ((a, ()), (b, (TRANSFORMERS, *([b] if is_model else [])))):
        if name not in (known := (*LANGUAGE_SIDES, *more)):
            expected = f"{', '.join(known)}{'' if name == a else ' or the path of a language model'}"
            raise InputError(f"compare: no such side of a language model, got {name!r}, expected one of {expected}")
    folder, feeds, context = language_inputs(wanted.title, wanted.inputs or {}, wanted.dims or {}, wanted.seed)
    graph, options = language_graph(a, folder, context, None if precision is None else precision.name, threads)
    if SLOTS in graph.inputs:  # of recurrent states
        feeds[SLOTS] = np.zeros(1, np.int32)
    compared_with = language_inputs(b, {"ids": feeds["ids"]}, {}, 0)[0] if is_model else folder
    other, plain = language_graph("interpret" if is_model else b, compared_with, context, F32.name, threads)
    named = graph if not is_model and dump(graph, has_sources=False) == dump(other, has_sources=False) else other
    build_a = partial(language_side, a, options)
    is_other = named is not graph or b == TRANSFORMERS
    build_b: Build = partial(language_side, b, plain)
    if is_model:
        build_b = partial(_other_model, b)
    elif b == TRANSFORMERS:
        build_b = partial(transformers_side, wanted.title)
    return Prepared(
        wanted.title, graph, named, feeds, partial(build_a, graph, feeds), partial(build_b, named, feeds),
        build_a, None if is_other else build_b,
        partial(planned_language_side, a, options, passes=()) if a in COMPILED else None, False,
        a, precision_of(options.precision), threads,
    )  # fmt: skip


def _other_model(path: str, graph: Graph, feeds: Arrays) -> Reference:
    """Return the reference on another model."""
    side = Reference(graph, feeds)
    side.title = os.path.basename(os.path.abspath(path))
    return side


def _recorded(path: str) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file. Raises InputError for another file, FileNotFoundError."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except (ValueError, EOFError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError(f"{path}: not an .npz file ({error})") from error


def executed_side(name: str, graph: Graph, feeds: Arrays, *, precision: Precision = F32, threads: int = 0) -> Side:
    """Return a side of Ingot's own over a graph as loaded. Raises the errors of compilation."""
    if name in ("interpret", "float64"):
        return Reference(graph, feeds, float64=name == "float64")
    optimized = graph.copy()
    optimize(optimized)
    return planned_side(name, optimized, feeds, Mode(sizes=bind_symbols(graph, feeds), precision=precision), threads)


def planned_side(
    name: str,
    optimized: Graph,
    feeds: Arrays,
    mode: Mode,
    threads: int,
    passes: tuple[str, ...] | None = None,
    kept: Collection[str] = (),
) -> Planned | Emitted:
    """Return a side that runs kernels: native, webgpu or emit-c.

    optimized: a graph after the passes. passes: those that a mode may repeat; None for all. kept: nodes that stay f32,
    by their first results; then the graph is static, and is changed.
    """
    precision = mode.precision
    if kept:
        round_operands(optimized, precision, kept)
        mode = replace(mode, precision=F32)
    if name != "emit-c":
        target = target_of(name, threads, precision)
        return Planned(compile_mode(optimized, target, mode, passes=passes), feeds, threads)
    target = Target("scalar", threads=1, rounded=() if precision.rows is None else (precision.rows,))
    unshared = replace(target, reuse=False, inplace=False)
    plain = compile_mode(optimized, target, mode, passes=passes)
    return Emitted(plain, compile_mode(optimized, unshared, mode, passes=passes), feeds)


def exported_side(graph: Graph, feeds: Arrays) -> OnnxSession:
    """Return ONNX Runtime on a graph as Ingot exports it. Raises UnsupportedError if ONNX has no equivalent."""
    return OnnxSession(exported(graph), graph, feeds)


def exported(graph: Graph) -> bytes:
    """Return a graph as an ONNX model. Raises UnsupportedError if ONNX has no equivalent."""
    from ingot.emit.onnx import export_onnx

    return export_onnx(graph).SerializeToString()

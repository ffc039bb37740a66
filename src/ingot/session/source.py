"""Open the source of a session as a graph, and check its options."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, Unpack

import numpy as np

from ingot.errors import InputError, KindError
from ingot.ir.dim import Limit
from ingot.ir.graph import Graph, TensorType, Type
from ingot.ir.text import dump, parse
from ingot.load import ShapeDependentModel, is_saved_program, load_model
from ingot.lower import Target
from ingot.passes.precision import F32, Precision
from ingot.plan.memory import Allocation
from ingot.run.arena import Arena
from ingot.run.library import load
from ingot.run.store import WeightStore
from ingot.session import saved_program as saved
from ingot.support.columns import table
from ingot.support.config import debug

if TYPE_CHECKING:
    from ingot.load import Examples, ModelSource


EXECUTORS = ("native", "webgpu", "interpret")
MAX_THREADS = 256  # of a session


class SessionKeywords(TypedDict, total=False):
    """The options of `ingot.session.inference.InferenceSession`, for those who hand them on."""

    example_inputs: Examples | None
    threads: int
    executor: str
    precision: str | None
    strict: bool
    dims: Mapping[str, int | Limit] | None
    passes: Sequence[str] | None
    fuse: bool
    cache: str | os.PathLike[str] | bool | None


@dataclass(frozen=True, slots=True)
class Shared:
    """A source of sessions with shared states and weights.

    allocations: the location of each state. unpacked: see `Target`. snapshot: returns the same graph over weights, with
    the current values of the states.
    """

    graph: Graph
    state: Arena
    allocations: dict[str, Allocation]
    weights: WeightStore
    unpacked: frozenset[str]
    snapshot: Callable[[], Graph]


@dataclass(frozen=True, slots=True)
class Origin:
    """The source and options to build a session again.

    source: an absolute path, the bytes of an ONNX model, or None for any other source; the session's graph is then used
    instead. options: as they were given. kind: the type of the source.
    """

    source: str | bytes | None
    options: SessionKeywords
    kind: str

    def __str__(self) -> str:
        return repr(os.path.basename(self.source)) if isinstance(self.source, str) else f"of {self.kind}"

    @staticmethod
    def of(source: ModelSource | Shared, **options: Unpack[SessionKeywords]) -> Origin:
        """Return the origin of a session's source and options."""
        if isinstance(source, (str, os.PathLike)):
            return Origin(os.path.abspath(os.fspath(source)), options, "path")
        content = bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else None
        return Origin(content, options, type(source).__name__)

    def reopen_arguments(self, graph: Callable[[], Graph]) -> tuple[Any, SessionKeywords]:
        """Return the arguments of `reopened`.

        graph: the session's, after the passes; it is pickled as text and arrays.
        """
        if self.source is not None:
            return self.source, self.options
        found = graph()
        data = {name: value.data for name, value in found.values.items() if value.kind == "weight"} | found.initial
        arrays = {name: np.asarray(array) for name, array in data.items() if array is not None}
        return (dump(found), arrays), {**self.options, "passes": (), "dims": _limits_of(self.options["dims"])}


def _limits_of(dims: Mapping[str, int | Limit] | None) -> dict[str, Limit] | None:
    """Return the dims that remain symbolic after the others were bound."""
    return None if dims is None else {name: dim for name, dim in dims.items() if isinstance(dim, Limit)}


def reopened(kind: type[Any], source: Any, options: SessionKeywords) -> Any:
    """Rebuild a pickled session. Raises the errors of its class, such as for a missing file."""
    return kind(parse(*source) if isinstance(source, tuple) else source, **options)


class Closed:
    """Replaces the members of a session after its `with` block."""

    def __getattr__(self, name: str) -> NoReturn:
        raise InputError("session: closed, got a call after its `with` block, expected one inside")


@dataclass(frozen=True, slots=True)
class Opened:
    """An opened model.

    is_compiled: its passes have run. precision: of a saved program. files: identities of the files that it was read
    from, if known.
    """

    graph: Graph | ShapeDependentModel
    is_compiled: bool = False
    precision: Precision | None = None
    files: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def open_source(source: ModelSource | Shared, example_inputs: Examples | None, weights: WeightStore) -> Opened:
    """Return the graph of any source."""
    if isinstance(source, Graph):
        return Opened(source.copy())
    if isinstance(source, Shared):
        return Opened(source.graph)
    if is_saved_program(source):
        graph, precision = saved.read(os.fspath(source), weights)
        return Opened(graph, is_compiled=True, precision=precision)
    loaded = load_model(source, example_inputs)
    return Opened(loaded.graph, files=loaded.files)


def target_of(executor: str, threads: int, precision: Precision) -> Target:
    """Return the target of an executor.

    Raises the errors of `open_device`, and InputError for an unsupported precision.
    """
    if executor == "interpret":
        return Target(executor, threads)
    if executor == "webgpu":
        from ingot.lower.wgpu import webgpu_target
        from ingot.run.device import open_device

        open_device()
        return webgpu_target(precision)
    isa = load().isa()
    rounded = precision.rounded(load().dots(isa))
    return Target(isa, threads, reuse=debug() < 5, rounded=rounded, split_sums=precision.split_sums)


def check_options(
    executor: str, threads: int, passes: Sequence[str] | None, cache: str | os.PathLike[str] | bool | None
) -> None:
    """Raises InputError for a value out of range, and KindError for one of another type."""
    if executor not in EXECUTORS:
        raise InputError(f"option executor: unknown value, got {executor!r}, expected one of {', '.join(EXECUTORS)}")
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer):
        raise KindError(f"option threads: not an integer, got {threads!r}, expected 0..{MAX_THREADS}")
    if not 0 <= threads <= MAX_THREADS:
        raise InputError(f"option threads: out of range, got {threads}, expected 0..{MAX_THREADS}")
    if isinstance(passes, str):
        raise KindError(f"option passes: not a list of names, got {passes!r}, expected [{passes!r}]")
    if cache is not None and not isinstance(cache, (str, os.PathLike, bool)):
        raise KindError(f"option cache: got {cache!r}, expected a folder, True, False or None")


def agreed_precision(wanted: Precision | None, saved: Precision | None) -> Precision:
    """Return the requested precision, or a saved program's. Raises InputError if these differ."""
    if wanted is not None and saved is not None and wanted is not saved:
        raise InputError(f"option precision: not what was saved, got {wanted.name}, expected {saved.name}")
    return wanted or saved or F32


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, as ONNX Runtime describes it: a type is "tensor(float)", and dims are ints, names, or None.

    A sequence has no dims. The type of an output is "undefined" if the model does not declare it, and has another graph
    for other dims.
    """

    name: str
    shape: list[int | str | None]
    type: str


def signature(title: str, inputs: Iterable[NodeArg], outputs: Iterable[NodeArg]) -> str:
    """A table of inputs and outputs, below a title."""
    rows = [("input", each) for each in inputs] + [("output", each) for each in outputs]
    return table(title, [(kind, each.name, each.type, shown_shape(each.shape)) for kind, each in rows])


def shown_shape(shape: Iterable[int | str | None]) -> str:
    """Dims as text, such as `[batch, 8, ?]`."""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def node_arg(name: str, type: Type | None) -> NodeArg:
    shape = type.shape if isinstance(type, TensorType) else ()
    dims = [d if isinstance(d, int) or d is None else str(d) for d in shape]
    return NodeArg(name, dims, "undefined" if type is None else type.onnx)

"""What a session compiles for values of its symbols: a mode of its one graph, or a graph that it has only for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

from ingot.compile import Mode
from ingot.dim import Limit, given
from ingot.errors import InputError, UnboundError
from ingot.ir import Graph, Type
from ingot.load import Deferred
from ingot.locks import OwnedLock
from ingot.passes import optimize
from ingot.precision import Precision
from ingot.run.store import WeightStore

MAX_BINDINGS = 16  # sizes of symbols that are kept compiled


@dataclass(frozen=True, slots=True)
class Bound:
    """A graph that has been through the passes, the mode of it to compile, and the weights of its programs."""

    graph: Graph
    mode: Mode
    weights: WeightStore


class OneGraph:
    """A model with one graph for all values of its symbols. All bindings share the weights."""

    def __init__(self, graph: Graph, precision: Precision, weights: WeightStore):
        self.interface = self.graph = graph
        self.outputs: Mapping[str, Type | None] = {
            name: graph.values[value].type for name, value in graph.outputs.items()
        }
        self._precision, self.weights = precision, weights

    def bound(self, sizes: Mapping[str, int]) -> Bound:
        """What to compile for values of all symbols."""
        return Bound(self.graph, Mode(sizes=sizes, precision=self._precision), self.weights)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights that programs hold."""
        return self.weights.nbytes


class GraphEach:
    """A model with a graph for each binding, and weights for each, which may be other ones of the same name.

    The graphs used latest are kept. Contexts of a session may ask at the same time.
    """

    def __init__(self, model: Deferred, precision: Precision, passes: tuple[str, ...] | None, threads: int):
        self.interface, self.outputs = model.interface, model.outputs
        self._load, self._precision, self._passes, self._threads = model.load, precision, passes, threads
        self._kept: OrderedDict[tuple[tuple[str, int], ...], Bound] = OrderedDict()
        self._lock = OwnedLock("load")

    def bound(self, sizes: Mapping[str, int]) -> Bound:
        """What to compile for values of all symbols. Raises what loading the model raises."""
        key = tuple(sorted(sizes.items()))
        with self._lock.once():
            if key not in self._kept:
                graph = self._load(sizes)
                optimize(graph, self._passes)
                while len(self._kept) >= MAX_BINDINGS:
                    self._kept.popitem(last=False)
                self._kept[key] = Bound(graph, Mode(precision=self._precision), WeightStore(self._threads))
            self._kept.move_to_end(key)
            return self._kept[key]

    @property
    def graph(self) -> Graph:
        """The graph of the binding used last. Raises InputError when there is none yet."""
        return self._latest.graph

    @property
    def weights(self) -> WeightStore:
        """The weights of the binding used last. Raises InputError when there is none yet."""
        return self._latest.weights

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights that programs hold."""
        with self._lock.once():
            kept = list(self._kept.values())
        return sum(bound.weights.nbytes for bound in kept)

    @property
    def _latest(self) -> Bound:
        if not self._kept:
            raise unbound(self.interface.symbols)
        return next(reversed(self._kept.values()))


Bindings = OneGraph | GraphEach


def bindings_of(
    model: Graph | Deferred,
    dims: Mapping[str, int],
    limits: Mapping[str, int],
    precision: Precision,
    passes: tuple[str, ...] | None,
    weights: WeightStore,
) -> Bindings:
    """The bindings of a model some of whose symbols have values. Its graph has yet to go through the passes.

    Raises InputError for dims, and limits of dims, that the model does not have.
    """
    symbols = (model if isinstance(model, Graph) else model.interface).symbols
    unknown = {*dims, *limits} - set(symbols)
    if unknown:
        raise InputError(f"option dims: no such dim, got {sorted(unknown)}, expected {symbols}")
    if isinstance(model, Graph):
        return OneGraph(model.bind(dims) if dims else model, precision, weights)
    try:
        if dims:
            return OneGraph(model.load(dims), precision, weights)
        return GraphEach(model, precision, passes, weights.threads)
    except UnboundError:
        rest = Deferred(model.interface.bind(dims), model.outputs, lambda sizes: model.load({**dims, **sizes}))
        return GraphEach(rest, precision, passes, weights.threads)


def exact_and_limits(dims: Mapping[str, int | Limit] | None) -> tuple[dict[str, int], dict[str, int]]:
    """The dims of a session that have values, and the limits of others. Raises InputError for what is neither."""
    exact: dict[str, int] = {}
    limits: dict[str, int] = {}
    for name, dim in (dims or {}).items():
        if isinstance(dim, Limit):
            limits[name] = dim.size
        elif isinstance(dim, bool) or not isinstance(dim, Integral) or dim < 0:
            expected = "a whole number of at least 0, or ingot.at_most(n)"
            raise InputError(f"option dims: bad value of {name!r}, got {dim!r}, expected {expected}")
        else:
            exact[name] = int(dim)
    return exact, limits


def unbound(symbols: list[str]) -> InputError:
    """The error for what is asked of a model before its dims have values."""
    return InputError(f"dims have no values yet, got none, expected {given(symbols)}; or a run before")

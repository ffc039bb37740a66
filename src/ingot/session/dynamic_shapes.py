"""What a session compiles for values of its symbols: a mode of its single graph, or a graph loaded for these values."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from numbers import Integral

from ingot.compile import Mode
from ingot.errors import IngotError, InputError, KindError, LimitError, ShapeError, UnboundError, UnsupportedError
from ingot.ir.dim import AtMost, Limit, given
from ingot.ir.graph import Graph, Type
from ingot.ir.liveness import Liveness
from ingot.load import ShapeDependentModel
from ingot.passes import optimize
from ingot.passes.precision import Precision
from ingot.run.program import Program
from ingot.run.store import WeightStore
from ingot.support.locks import OwnedLock

MAX_BINDINGS = 16  # cached programs of one context
_CHANGES = 3  # different sizes after which a session plans for others
_MAX_REFUSALS = 4  # of plans for larger sizes
_MAX_GROWTH = 4  # times the largest product of observed sizes, in a plan whose arena is not small
_SMALL_ARENA_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Bound:
    """A graph that has been through the passes, the mode of it to compile, and the weights of its programs.

    unfused: the liveness of the graph as it was loaded, if known.
    """

    graph: Graph
    mode: Mode
    weights: WeightStore
    unfused: Liveness | None


Fit = Callable[[Mapping[str, int]], bool]


class SingleGraph:
    """A model with one graph for all values of its symbols. All bindings share the weights."""

    def __init__(self, graph: Graph, precision: Precision, weights: WeightStore):
        self.interface = self.graph = graph
        self.outputs: Mapping[str, Type | None] = {
            name: graph.values[value].type for name, value in graph.outputs.items()
        }
        self._precision, self.weights = precision, weights
        self.unfused = Liveness.of(graph)

    def bound(self, sizes: Mapping[str, int]) -> Bound:
        """Return what to compile for values of all symbols."""
        return Bound(self.graph, Mode(sizes=sizes, precision=self._precision), self.weights, self.unfused)

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the model accepts these sizes."""
        try:
            self.graph.bind(sizes)
        except ShapeError:
            return False
        return True

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights of live programs."""
        return self.weights.nbytes


class GraphPerShape:
    """A model with a graph and weights for each binding; weights of one name may differ between bindings.

    The most recently used graphs are cached. Contexts of a session may call it concurrently.
    """

    def __init__(self, model: ShapeDependentModel, precision: Precision, passes: tuple[str, ...] | None, threads: int):
        self.interface, self.outputs = model.interface, model.outputs
        self._load, self._precision, self._passes, self._threads = model.load, precision, passes, threads
        self._cached: OrderedDict[tuple[tuple[str, int], ...], Bound] = OrderedDict()
        self._lock = OwnedLock("load")

    def bound(self, sizes: Mapping[str, int]) -> Bound:
        """Return what to compile for values of all symbols. Raises the errors of loading the model."""
        key = tuple(sorted(sizes.items()))
        with self._lock.once():
            if key not in self._cached:
                graph = self._load(sizes)
                unfused = Liveness.of(graph)
                optimize(graph, self._passes)
                while len(self._cached) >= MAX_BINDINGS:
                    self._cached.popitem(last=False)
                mode = Mode(precision=self._precision)
                self._cached[key] = Bound(graph, mode, WeightStore(self._threads), unfused)
            self._cached.move_to_end(key)
            return self._cached[key]

    @property
    def graph(self) -> Graph:
        """The graph of the binding used last. Raises InputError when there is none yet."""
        return self._latest.graph

    @property
    def unfused(self) -> Liveness | None:
        """The liveness of `graph` as it was loaded, if known."""
        return self._latest.unfused

    @property
    def weights(self) -> WeightStore:
        """The weights of the binding used last. Raises InputError when there is none yet."""
        return self._latest.weights

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights of live programs."""
        with self._lock.once():
            cached = list(self._cached.values())
        return sum(bound.weights.nbytes for bound in cached)

    @property
    def _latest(self) -> Bound:
        if not self._cached:
            raise unbound(self.interface.symbols)
        return next(reversed(self._cached.values()))


Bindings = SingleGraph | GraphPerShape


class Programs:
    """An LRU cache of the programs of a queue of calls, by the sizes of symbols.

    hits, misses: lookups with a cached program, and compiled programs. Not thread-safe: its user has a lock.
    """

    def __init__(self) -> None:
        self.hits = self.misses = 0
        self._cached: OrderedDict[tuple[tuple[str, int], ...], Program] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cached)

    def __contains__(self, sizes: Mapping[str, int]) -> bool:
        return self._key(sizes) in self._cached

    @property
    def latest(self) -> Program | None:
        """The program used last."""
        return next(reversed(self._cached.values()), None)

    def find(self, sizes: Mapping[str, int], compile: Callable[[], Program], anew: bool = False) -> Program:
        """Return the program for sizes, compiled unless cached; `anew` recompiles, because a key has an `AtMost`
        without its limit.
        """
        key = self._key(sizes)
        program = None if anew else self._cached.get(key)
        if program is not None:
            self.hits += 1
            self._cached.move_to_end(key)
            return program
        program = compile()
        self.misses += 1
        self._cached.pop(key, None)
        while len(self._cached) >= MAX_BINDINGS:
            self._cached.popitem(last=False)
        self._cached[key] = program
        return program

    def _key(self, sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(sizes.items()))


class BucketPolicy:
    """Limits of dims whose sizes keep changing, found by a queue of calls: see docs/shapes.md.

    fit: whether the model accepts given sizes. limits: the limits of the current program. refusal: why larger sizes
    have separate programs.
    """

    def __init__(self, fit: Fit):
        self._fit = fit
        self.limits: dict[str, int] = {}
        self.refusal = ""
        self._observed: list[dict[str, int]] = []  # sizes that no program with limits covered
        self._fixed: dict[str, int] = {}
        self._refusals = 0

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the current limits cover these sizes."""
        limits, fixed = self.limits, self._fixed
        return bool(limits) and all(n <= limits[s] if s in limits else n == fixed[s] for s, n in sizes.items())

    def proposals(self, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield limits to plan for, the best first, after sizes that no limits cover.

        For the dims that have changed: powers of two, or the largest sizes below that fit the model; else the largest
        observed sizes.
        """
        if self._refusals >= _MAX_REFUSALS:
            return
        if sizes not in self._observed:
            self._observed = [*self._observed, dict(sizes)]
        if len(self._observed) < _CHANGES:
            return
        observed = {symbol: {each[symbol] for each in self._observed} for symbol in sizes}
        largest = {symbol: max(1, *found) for symbol, found in observed.items() if len(found) > 1}
        rounded = {symbol: 1 << (size - 1).bit_length() for symbol, size in largest.items()}
        if not self._fit({**sizes, **rounded}):
            rounded = {symbol: _most({**sizes, **largest}, symbol, most, self._fit) for symbol, most in rounded.items()}
        yield rounded
        if rounded != largest and self._refusals < _MAX_REFUSALS:
            yield largest

    def expect_small_arena(self, sizes: Mapping[str, int], arena_bytes: int) -> None:
        """Raise LimitError for a plan with a large arena, for sizes far beyond those observed together."""
        limits = {symbol: int(size) for symbol, size in sizes.items() if isinstance(size, AtMost)}
        observed = max(prod(each[symbol] for symbol in limits) for each in self._observed)
        if prod(limits.values()) > _MAX_GROWTH * observed and arena_bytes > _SMALL_ARENA_BYTES:
            expected = f"got {arena_bytes} bytes, expected at most {_SMALL_ARENA_BYTES}"
            raise LimitError(f"arena: large for sizes {limits}, which were never used together, {expected}")

    def settle(self, limits: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        """Set the limits of a new plan; the other sizes are fixed."""
        self.limits, self._fixed = dict(limits), dict(sizes)

    def refuse(self, error: IngotError) -> None:
        """Record why there is no plan for limits. Smaller limits may have one, unless no program can."""
        self.refusal = str(error)
        self._refusals = _MAX_REFUSALS if isinstance(error, UnsupportedError) else self._refusals + 1


def bindings_of(
    model: Graph | ShapeDependentModel,
    dims: Mapping[str, int],
    limits: Mapping[str, int],
    precision: Precision,
    passes: tuple[str, ...] | None,
    weights: WeightStore,
) -> Bindings:
    """Return the bindings of a model with values for some symbols. Its graph has not been through the passes yet.

    Raises InputError for dims, and limits of dims, that the model does not have.
    """
    symbols = (model if isinstance(model, Graph) else model.interface).symbols
    if isinstance(model, ShapeDependentModel) and (known := dims.keys() & set(symbols)):
        # An input has dims only when its rank is known.
        symbols += model.bound({name: dims[name] for name in known}).interface.symbols
    unknown = {*dims, *limits} - set(symbols)
    if unknown:
        raise InputError(f"option dims: no such dim, got {sorted(unknown)}, expected {symbols}")
    if isinstance(model, Graph):
        return SingleGraph(model.bind(dims) if dims else model, precision, weights)
    try:
        if dims:
            return SingleGraph(model.load(dims), precision, weights)
        return GraphPerShape(model, precision, passes, weights.threads)
    except UnboundError:
        return GraphPerShape(model.bound(dims), precision, passes, weights.threads)


def _most(sizes: Mapping[str, int], symbol: str, most: int, fit: Fit) -> int:
    """Return the largest size of a symbol, up to `most`, that fits with the other sizes."""
    larger = range(sizes[symbol] + 1, most + 1)
    return sizes[symbol] + bisect_left(larger, True, key=lambda size: not fit({**sizes, symbol: size}))


def exact_and_limits(dims: Mapping[str, int | Limit] | None) -> tuple[dict[str, int], dict[str, int]]:
    """Split a session's dims into those with values and those with limits. Raises InputError for anything else."""
    exact: dict[str, int] = {}
    limits: dict[str, int] = {}
    if dims is not None and not isinstance(dims, Mapping):
        raise KindError(f"option dims: names are needed, got {dims!r}, expected a value for each, as {{'batch': 1}}")
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
    """Return the error for a request that needs values of a model's dims."""
    return InputError(f"dims have no values yet, got none, expected {given(symbols)}; or a run before")

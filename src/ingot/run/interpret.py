"""The specification: run any Graph with the ops' reference functions in numpy, one node after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np

from ingot.errors import InputError, LoadError, ResourceError, ShapeError
from ingot.ir.dim import bind, solve, symbols_of
from ingot.ir.dtype import DType, f32, f64, from_numpy, string
from ingot.ir.graph import (
    Graph,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    UnrankedType,
    Value,
    bind_attribute,
    bind_type,
)
from ingot.ir.node import shown_sources
from ingot.ops.define import compute
from ingot.support.files import mapped_files

# A tensor is an array, a sequence a list, a map a dictionary of Python numbers, an optional its value or None.
Array = Any
Watch = Callable[[str, Array], Array | None]


class Inner(Protocol):
    """A subgraph as a function from the arrays of its inputs to the arrays of its outputs, for its op's reference.

    types: of the outputs, as far as they are known.
    """

    inputs: int
    outputs: int

    @property
    def types(self) -> Sequence[Type]: ...

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Raises InputError for arrays that do not fit its inputs."""


def interpret(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    float64: bool = False,
    watch: Watch | None = None,
    symbols: dict[str, int] | None = None,
    inner: Mapping[tuple[str, str], Inner] = {},
    kernels: Mapping[str, Callable[..., Any]] = {},
) -> dict[str, Any]:
    """Run a graph. Returns its outputs by external name and each state's update as `state:<name>`, all fresh arrays.

    feeds: an array for every input; a state may be fed too, otherwise it has its initial value. float64: f32 data,
    feeds and attributes become f64, which makes this the oracle. watch(name, array) is called with every result, also
    inside subgraphs; an array that it returns replaces the result. symbols: known dims, if this graph is a part of
    another; dims measured here are added. inner: runs subgraphs instead of the reference, by the first result of the
    node and the attribute. kernels: compute nodes instead of their references, by the first result. Raises InputError
    for a wrong name, dtype, rank, dim or index, LoadError for a weight without data, and ResourceError when out of
    memory.
    """
    bound = bind_symbols(graph, feeds, symbols or {}, float64=float64)
    for file in mapped_files(value.data for value in graph.values.values() if value.data is not None):
        file.expect_unchanged()
    run = _Run(graph, bound, float64, watch, inner, kernels)
    for name, array in [*((name, feeds[name]) for name in graph.inputs), *first_states(graph, bound, feeds).items()]:
        run.arrays[name] = run.widened(array)
    with np.errstate(all="ignore"):
        results = run.run()
    if symbols is not None:
        symbols.update(run.symbols)
    return {name: _returned(name, array) for name, array in results.items()}


def first_states(graph: Graph, symbols: Mapping[str, int], stored: Mapping[str, Array] = {}) -> dict[str, Array]:
    """Return the states of a graph before a run, by name: from `stored`, otherwise the initial values.

    Raises LoadError for a state whose initial data is missing.
    """
    arrays: dict[str, Array] = {}
    for name in graph.states:
        array = stored.get(name)
        if array is None and name in graph.initial:
            array = graph.initial[name]
            if array is None:
                raise LoadError(f"state {name!r}: has no data, got only its type {graph.values[name].type}")
        elif array is None:
            type = bind_type(graph.type(name), symbols)
            assert isinstance(type, TensorType)
            array = np.full(type.dims, "" if type.dtype is string else 0, type.dtype.numpy)
        arrays[name] = array
    return arrays


def _returned(name: str, array: Array) -> Array:
    try:
        return fresh(array)
    except MemoryError as error:
        raise ResourceError(f"output {name!r}: no memory, {error}") from error


def bind_symbols(
    graph: Graph, feeds: Mapping[str, Array], known: Mapping[str, int] = {}, *, float64: bool = False
) -> dict[str, int]:
    """Derive the values of a graph's symbols from the shapes of the feeds; known: symbols with a value already.

    Raises InputError for a missing or unknown name, a wrong dtype, rank or dim, and symbols that contradict each other
    or follow from no feed. float64 allows f64 where f32 is declared.
    """
    missing = [name for name in graph.inputs if name not in feeds]
    unknown = [name for name in feeds if name not in graph.inputs and name not in graph.states]
    if missing or unknown:
        expected = f"expected {[*graph.inputs, *graph.states]}{_meant(unknown, missing)}"
        raise InputError(f"inputs: missing {missing}, unknown {unknown}, {expected}")
    symbols: dict[str, int] = dict(known)
    source: dict[str, str] = {}
    tensors: dict[str, TensorType] = {}
    for name, array in feeds.items():
        kind = graph.values[name].type
        _expect_type(name, array, kind, float64)
        if isinstance(kind, UnrankedType) and kind.rank_symbol:
            symbols |= kind.sizes(array.shape)
        declared = _tensor_in(kind)
        if declared is None or array is None:
            continue
        tensors[name] = declared
        for axis, (dim, size) in enumerate(zip(declared.shape, array.shape, strict=True)):
            try:
                solved = solve(dim, size)
            except ValueError as error:
                raise InputError(f"input {name!r}: dim {axis} does not fit, got {size}, expected {dim}") from error
            if solved is not None:
                symbol, value = solved
                if symbols.setdefault(symbol, value) != value:
                    raise InputError(
                        f"input {name!r}: dim {axis} contradicts input {source.get(symbol, 'of the outer graph')!r}, "
                        f"got {symbol} = {value}, expected {symbols[symbol]}"
                    )
                source.setdefault(symbol, name)
    for name, declared in tensors.items():
        _expect_shape(name, feeds[name], declared, symbols)
    unbound = [symbol for symbol in graph.symbols if symbol not in symbols]
    if unbound:
        raise InputError(f"inputs: no feed determines symbols, got none for {', '.join(unbound)}")
    return symbols


def _meant(unknown: list[str], missing: list[str]) -> str:
    """Return suggestions for unknown names."""
    folded = {name.casefold(): name for name in missing}
    close = {name: get_close_matches(str(name).casefold(), folded, n=1) for name in unknown}
    return "".join(f", {folded[found[0]]!r} perhaps for {name!r}" for name, found in close.items() if found)


def _tensor_in(type: Type) -> TensorType | None:
    """Return the type of the array that is fed for a tensor, or for an optional tensor."""
    while isinstance(type, OptionalType):
        type = type.element
    return type if isinstance(type, TensorType) else None


def _expect_type(name: str, array: Array, declared: Type, float64: bool) -> None:
    """Raise InputError for a value of another type, dims excepted; the elements of a sequence are checked, too."""
    if isinstance(declared, OptionalType):
        if array is not None:
            _expect_type(name, array, declared.element, float64)
        return
    if isinstance(declared, SequenceType):
        if not isinstance(array, (list, tuple)):
            raise InputError(f"input {name!r}: got {type(array).__name__}, expected a list for {declared}")
        for each in array:
            _expect_type(name, each, declared.element, float64)
            if isinstance(declared.element, TensorType):
                _expect_shape(name, each, declared.element, {})
        return
    if isinstance(declared, MapType):
        key = str if declared.key is string else int
        pairs = array.items() if isinstance(array, dict) else [(None, None)]
        if not all(isinstance(k, key) and isinstance(v, float) for k, v in pairs):
            raise InputError(f"input {name!r}: got {type(array).__name__}, expected a dictionary for {declared}")
        return
    accepted = {declared.dtype.numpy} | ({f64.numpy} if float64 and declared.dtype is f32 else set())
    if not isinstance(array, np.ndarray) or array.dtype not in accepted:
        got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        are_numbers = isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and declared.dtype is not string
        hint = f": array.astype({declared.dtype.numpy.name!r})" if are_numbers else ""
        raise InputError(f"input {name!r}: wrong dtype, got {got}, expected {declared.dtype} of {declared}{hint}")
    if declared.dtype is string and not all(type(element) is str for element in array.flat):
        raise InputError(f"input {name!r}: not only strings, expected {declared}")
    if isinstance(declared, TensorType) and array.ndim != declared.rank:
        raise InputError(f"input {name!r}: wrong rank, got {list(array.shape)}, expected {declared}")


def _expect_shape(name: str, array: np.ndarray, declared: TensorType, symbols: Mapping[str, int]) -> None:
    for axis, (dim, size) in enumerate(zip(declared.shape, array.shape, strict=True)):
        expected = bind(dim, symbols)
        if expected is not None and expected != size:
            undetermined = sorted(symbols_of(expected))
            detail = f", which leaves {', '.join(undetermined)} undetermined" if undetermined else ""
            raise InputError(f"input {name!r}: wrong dim {axis}, got {size}, expected {expected} of {declared}{detail}")


class _Run:
    """The live arrays of a running graph, and the number of remaining reads of each."""

    def __init__(
        self,
        graph: Graph,
        symbols: dict[str, int],
        float64: bool,
        watch: Watch | None,
        inner: Mapping[tuple[str, str], Inner],
        kernels: Mapping[str, Callable[..., Any]],
    ):
        self.graph = graph
        self.symbols = symbols
        self.measured = set(graph.measured.values())
        self.float64 = float64
        self.watch = watch
        self.inner = inner
        self.kernels = kernels
        self.arrays: dict[str, np.ndarray] = {}
        self.reads = {name: sum(value.users.values()) for name, value in graph.values.items()}
        for name in [*graph.outputs.values(), *graph.states.values()]:
            self.reads[name] += 1

    def run(self) -> dict[str, Array]:
        """Run every node; return the outputs, and each state's update as `state:<name>`."""
        for node in self.graph.nodes:
            self.step(node)
        results = {external: self.array(name) for external, name in self.graph.outputs.items()}
        return results | {f"state:{name}": self.array(update) for name, update in self.graph.states.items()}

    def array(self, name: str) -> Array:
        """Return the array of a value for one read; the array is dropped after its last read."""
        if name not in self.arrays:
            self.arrays[name] = self._stored(self.graph.values[name])
        array = self.arrays[name]
        self.reads[name] -= 1
        if self.reads[name] == 0:
            del self.arrays[name]
        return array

    def _stored(self, value: Value) -> Array:
        if value.data is None:
            raise LoadError(f"{value.kind} {value.name!r}: has no data, got only its type {value.type}")
        return self.widened(value.data)

    def widened(self, array: Array) -> Array:
        """Return a value in this run's dtype: f64 instead of f32 if the run is the oracle."""
        if isinstance(array, (list, tuple)):
            return [self.widened(each) for each in array]
        if isinstance(array, dict):
            return array
        return array.astype(np.float64) if self.float64 and array is not None and array.dtype == np.float32 else array

    def step(self, node: Node) -> None:
        """Run one node."""
        operands = [None if name is None else self.array(name) for name in node.operands]
        attributes = {key: self._attribute(value) for key, value in node.attributes.items()}
        types = [
            None if name is None else _type_of(array) if isinstance(array, np.ndarray) else self._declared(name)
            for name, array in zip(node.operands, operands, strict=True)
        ]
        graphs = {key: value for key, value in node.attributes.items() if isinstance(value, Graph)}
        bodies = {key: self._inner(node, key, value) for key, value in graphs.items()}
        try:
            inferred = node.op.infer(*types, **attributes)
            wide = f64 if self.float64 else f32
            kernel = self.kernels.get(node.outputs[0])
            results = compute(node.op, operands, attributes, wide, types=types, bodies=bodies, function=kernel)
        except (ShapeError, InputError) as error:
            raise InputError(
                f"node {node.outputs[0]!r}: {error}{shown_sources(node.sources, node.outputs[0])}"
            ) from error
        except MemoryError as error:
            shown = shown_sources(node.sources, node.outputs[0])
            raise ResourceError(f"node {node.outputs[0]!r}: no memory, {error}{shown}") from error
        inferred = inferred if isinstance(inferred, tuple) else (inferred,)
        for name, type, array in zip(node.outputs, inferred, results, strict=True):
            assert _agrees(type, array), f"{name}: op {node.op.name} returned {_described(array)}, expected {type}"
            if name in self.measured:
                self._measure(name, array)
            self._expect_declared(name, array)
            if self.watch is not None and (replacement := self.watch(name, array)) is not None:
                array = replacement
            if self.reads[name]:
                self.arrays[name] = array

    def _inner(self, node: Node, attribute: str, graph: Graph) -> Inner:
        return self.inner.get((node.outputs[0], attribute)) or _Body(self, graph)

    def _attribute(self, value: Any) -> Any:
        if value is f32 and self.float64:
            return f64
        if isinstance(value, Graph) and self.float64:
            return _widened_graph(value)
        return value if isinstance(value, (DType, Graph)) else bind_attribute(value, self.symbols)

    def _declared(self, name: str) -> Type:
        declared = bind_type(self.graph.values[name].type, self.symbols)
        return _widened_type(declared) if self.float64 else declared

    def _measure(self, name: str, array: np.ndarray) -> None:
        """Bind the symbols that are dims of a result."""
        for dim, size in zip(self.graph.type(name).shape, array.shape, strict=True):
            try:
                found = solve(dim, size)
            except ValueError as error:
                raise InputError(f"node {name!r}: a dim does not fit, got {size}, expected {dim}") from error
            if found is not None:
                self.symbols.setdefault(*found)

    def _expect_declared(self, name: str, array: Array) -> None:
        declared = self._declared(name)
        if not _agrees(declared, array):
            raise InputError(f"node {name!r}: wrong shape, got {_described(array)}, expected {declared}")


class _Body:
    """An `Inner` that the reference runs, with the symbols of the surrounding graph."""

    def __init__(self, around: _Run, graph: Graph):
        self.around = around
        self.graph = graph
        self.inputs = len(graph.inputs)
        self.outputs = len(graph.outputs)
        types = [bind_type(graph.values[name].type, around.symbols) for name in graph.outputs.values()]
        self.types = [_widened_type(type) if around.float64 else type for type in types]

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Raises InputError for arrays that do not fit its inputs, as `interpret` does."""
        around, feeds = self.around, dict(zip(self.graph.inputs, arrays, strict=True))
        symbols = bind_symbols(self.graph, feeds, around.symbols, float64=around.float64)
        run = _Run(self.graph, symbols, around.float64, around.watch, {}, {})
        run.arrays.update(feeds)
        return tuple(run.run().values())


def fresh(array: Array) -> Array:
    """Return a row-major copy of a value."""
    if isinstance(array, list):
        return [fresh(each) for each in array]
    if isinstance(array, dict):
        return dict(array)
    return None if array is None else np.array(array, order="C")


def _widened_type(type: Type) -> Type:
    """Return the type with f64 instead of f32."""
    if isinstance(type, TensorType):
        return TensorType(f64, type.shape) if type.dtype is f32 else type
    if isinstance(type, UnrankedType):
        return UnrankedType(f64) if type.dtype is f32 else type
    if isinstance(type, MapType):
        return MapType(type.key, f64) if type.value is f32 else type
    return type.__class__(_widened_type(type.element))


def _widened_graph(graph: Graph) -> Graph:
    """Return a graph whose values have widened types, for an inference that reads those of a subgraph."""
    wide = graph.copy()
    for value in wide.values.values():
        value.type = _widened_type(value.type)
    return wide


def _type_of(array: np.ndarray) -> TensorType:
    return TensorType(from_numpy(array.dtype), array.shape)


def _described(array: Array) -> str:
    return str(_type_of(array)) if isinstance(array, np.ndarray) else type(array).__name__


def _agrees(type: Type, array: Array) -> bool:
    """Return whether a value is of a type: an array of its dtype and known dims."""
    if isinstance(type, OptionalType):
        return array is None or _agrees(type.element, array)
    if isinstance(type, SequenceType):
        return isinstance(array, list) and all(_agrees(type.element, each) for each in array)
    if isinstance(type, MapType):
        return isinstance(array, dict)
    if not isinstance(array, np.ndarray) or type.dtype.numpy != array.dtype:
        return False
    if isinstance(type, UnrankedType):
        return True
    if type.rank != array.ndim:
        return False
    return all(size == dim for size, dim in zip(array.shape, type.shape, strict=True) if isinstance(dim, int))

"""The specification: runs any Graph with the ops' reference functions, one node after the other, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ingot.dim import bind, solve, symbols_of
from ingot.dtype import DType, f32, f64, from_numpy, string
from ingot.errors import InputError, LoadError, ResourceError, ShapeError
from ingot.files import mapped_files
from ingot.ir import Graph, Node, TensorType, Value, bind_attribute, bind_type
from ingot.ops.define import compute

Watch = Callable[[str, np.ndarray], None]


def interpret(
    graph: Graph, feeds: Mapping[str, np.ndarray], *, float64: bool = False, watch: Watch | None = None
) -> dict[str, np.ndarray]:
    """Runs a graph. Returns its outputs by external name and each state's update as `state:<name>`, all fresh arrays.

    feeds: an array for every input; states may be fed too and are zeros otherwise. float64: f32 data, feeds and
    attributes become f64, which makes this the oracle. watch(name, array) sees the result of every node.
    Raises InputError for a wrong name, dtype, rank, dim or index, LoadError for a weight without data, and
    ResourceError when a result finds no memory.
    """
    symbols = bind_symbols(graph, feeds, float64=float64)
    for file in mapped_files(value.data for value in graph.values.values() if value.data is not None):
        file.expect_unchanged()
    run = _Run(graph, symbols, float64, watch)
    for name in [*graph.inputs, *graph.states]:
        run.arrays[name] = run.fed(name, feeds.get(name))
    try:
        with np.errstate(all="ignore"):
            for node in graph.nodes:
                run.step(node)
        results = {external: run.array(name) for external, name in graph.outputs.items()}
        results |= {f"state:{name}": run.array(update) for name, update in graph.states.items()}
        return {name: np.array(array, order="C") for name, array in results.items()}
    except MemoryError as error:
        raise ResourceError(f"interpret: no memory for a result, {error}") from error


def bind_symbols(graph: Graph, feeds: Mapping[str, np.ndarray], *, float64: bool = False) -> dict[str, int]:
    """The values of a graph's symbols that the shapes of the feeds say.

    Raises InputError for a missing or unknown name, a wrong dtype, rank or dim, and symbols that contradict each
    other or follow from no feed. float64 allows f64 where f32 is declared.
    """
    missing = [name for name in graph.inputs if name not in feeds]
    unknown = [name for name in feeds if name not in graph.inputs and name not in graph.states]
    if missing or unknown:
        raise InputError(f"inputs: missing {missing}, unknown {unknown}, expected {[*graph.inputs, *graph.states]}")
    symbols: dict[str, int] = {}
    source: dict[str, str] = {}
    for name, array in feeds.items():
        declared = graph.type(name)
        _expect_type(name, array, declared, float64)
        for axis, (dim, size) in enumerate(zip(declared.shape, array.shape, strict=True)):
            try:
                solved = solve(dim, size)
            except ValueError as error:
                raise InputError(f"input {name!r}: dim {axis} does not fit, got {size}, expected {dim}") from error
            if solved is not None:
                symbol, value = solved
                if symbols.setdefault(symbol, value) != value:
                    raise InputError(
                        f"input {name!r}: dim {axis} contradicts input {source[symbol]!r}, "
                        f"got {symbol} = {value}, expected {symbols[symbol]}"
                    )
                source.setdefault(symbol, name)
    for name, array in feeds.items():
        _expect_shape(name, array, graph.type(name), symbols)
    unbound = [symbol for symbol in graph.symbols if symbol not in symbols]
    if unbound:
        raise InputError(f"inputs: no feed gives symbols a value, got none for {', '.join(unbound)}")
    return symbols


def _expect_type(name: str, array: np.ndarray, declared: TensorType, float64: bool) -> None:
    accepted = {declared.dtype.numpy} | ({f64.numpy} if float64 and declared.dtype is f32 else set())
    if not isinstance(array, np.ndarray) or array.dtype not in accepted:
        got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f"input {name!r}: wrong dtype, got {got}, expected {declared.dtype} of {declared}")
    if declared.dtype is string and not all(type(element) is str for element in array.flat):
        raise InputError(f"input {name!r}: not strings alone, expected {declared}")
    if array.ndim != declared.rank:
        raise InputError(f"input {name!r}: wrong rank, got {list(array.shape)}, expected {declared}")


def _expect_shape(name: str, array: np.ndarray, declared: TensorType, symbols: Mapping[str, int]) -> None:
    for axis, (dim, size) in enumerate(zip(declared.shape, array.shape, strict=True)):
        expected = bind(dim, symbols)
        if expected is not None and expected != size:
            undetermined = sorted(symbols_of(expected))
            detail = f", which leaves {', '.join(undetermined)} undetermined" if undetermined else ""
            raise InputError(f"input {name!r}: wrong dim {axis}, got {size}, expected {expected} of {declared}{detail}")


class _Run:
    """The arrays that are alive while a graph runs, and how many reads each still awaits."""

    def __init__(self, graph: Graph, symbols: Mapping[str, int], float64: bool, watch: Watch | None):
        self.graph = graph
        self.symbols = symbols
        self.float64 = float64
        self.watch = watch
        self.arrays: dict[str, np.ndarray] = {}
        self.reads = {name: sum(value.users.values()) for name, value in graph.values.items()}
        for name in [*graph.outputs.values(), *graph.states.values()]:
            self.reads[name] += 1

    def fed(self, name: str, array: np.ndarray | None) -> np.ndarray:
        """A feed, or zeros for a state that was not fed."""
        if array is None:
            type = bind_type(self.graph.type(name), self.symbols)
            assert isinstance(type, TensorType)
            array = np.zeros(type.dims, type.dtype.numpy)
        return self._widened(array)

    def array(self, name: str) -> np.ndarray:
        """The array of a value, read for one more time; it is dropped after its last read."""
        if name not in self.arrays:
            self.arrays[name] = self._stored(self.graph.values[name])
        array = self.arrays[name]
        self.reads[name] -= 1
        if self.reads[name] == 0:
            del self.arrays[name]
        return array

    def _stored(self, value: Value) -> np.ndarray:
        if value.data is None:
            raise LoadError(f"{value.kind} {value.name!r}: has no data, got only its type {value.type}")
        return self._widened(value.data)

    def _widened(self, array: np.ndarray) -> np.ndarray:
        return array.astype(np.float64) if self.float64 and array.dtype == np.float32 else array

    def step(self, node: Node) -> None:
        """Runs one node."""
        operands = [None if name is None else self.array(name) for name in node.operands]
        attributes = {key: self._attribute(value) for key, value in node.attributes.items()}
        types = [None if array is None else _type_of(array) for array in operands]
        try:
            inferred = node.op.infer(*types, **attributes)
            results = compute(node.op, operands, attributes, f64 if self.float64 else f32)
        except (ShapeError, InputError) as error:
            raise InputError(f"node {node.outputs[0]!r}: {error}") from error
        inferred = inferred if isinstance(inferred, tuple) else (inferred,)
        for name, type, array in zip(node.outputs, inferred, results, strict=True):
            assert _agrees(type, array), f"{name}: op {node.op.name} made {_type_of(array)}, its inference {type}"
            self._expect_declared(name, array)
            if self.watch is not None:
                self.watch(name, array)
            if self.reads[name]:
                self.arrays[name] = array

    def _attribute(self, value: Any) -> Any:
        if value is f32 and self.float64:
            return f64
        return value if isinstance(value, DType) else bind_attribute(value, self.symbols)

    def _expect_declared(self, name: str, array: np.ndarray) -> None:
        declared = bind_type(self.graph.type(name), self.symbols)
        assert isinstance(declared, TensorType)
        if self.float64 and declared.dtype is f32:
            declared = TensorType(f64, declared.shape)
        if not _agrees(declared, array):
            raise InputError(f"node {name!r}: wrong shape, got {_type_of(array)}, expected {declared}")


def _type_of(array: np.ndarray) -> TensorType:
    return TensorType(from_numpy(array.dtype), array.shape)


def _agrees(type: TensorType, array: np.ndarray) -> bool:
    """True when an array has a type's dtype and known dims."""
    if type.dtype.numpy != array.dtype or type.rank != array.ndim:
        return False
    return all(size == dim for size, dim in zip(array.shape, type.shape, strict=True) if isinstance(dim, int))

"""The builder of the loading rules: it adds plain ops to a graph, and evaluates ops on few known numbers at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.errors import InputError, LimitError, LoadError, UnrankedError, UnsupportedError
from ingot.ir.dim import Expr, Known
from ingot.ir.dtype import DType, from_numpy, i64
from ingot.ir.graph import Graph, Node, TensorType, Type, UnrankedType
from ingot.load.onnx import dim_values
from ingot.load.onnx.dim_values import Array, elements, is_symbolic
from ingot.load.onnx.symbols import Symbols
from ingot.load.onnx.tensors import MAX_ELEMENTS
from ingot.ops.define import Builder, compute

# of results that depend on no graph input, views included, which are computed before the first run; the limit is the
# sum of MAX_FIXED_BYTES and MAX_FIXED_GROWTH times the bytes of the file
MAX_FIXED_BYTES = 2**30
MAX_FIXED_GROWTH = 16
MAX_CONSTANT_BYTES = {"i": 65536, "u": 65536, "b": 65536, "f": 1024}  # a larger initializer is a weight
MAX_READ_ELEMENTS = 65536  # of an array whose integers are read at load time
MAX_KNOWN_ELEMENTS = 256  # of a result that is computed at load
MAX_KNOWN_BYTES = 64 << 20  # of all operands and results of what is computed at load


@dataclass(slots=True)
class Totals:
    """State shared by a model and its subgraphs: names of dims, and byte counts.

    stored_bytes: of the arrays of the file; fixed_bytes: of the results that depend on no input; evaluated_bytes: of
    the operands and results of all ops evaluated so far.
    """

    symbols: Symbols
    stored_bytes: int = 0
    fixed_bytes: int = 0
    evaluated_bytes: int = 0


@dataclass(slots=True)
class Facts:
    """Facts about a graph's values at load time.

    constants: values that depend on no graph input. symbolic: the elements of values that hold dims; the graph builds
    each such value with the `dims` op, or it is an input of a subgraph. sizes: values whose elements are named dims.
    nested: True for a subgraph, whose data are all constants. draws: returns the value that `draw_uniform` reads in the
    graph.
    """

    graph: Graph
    totals: Totals
    nested: bool = False
    constants: set[str] = field(default_factory=set)
    symbolic: dict[str, Array] = field(default_factory=dict)
    sizes: dict[str, tuple[Expr, ...]] = field(default_factory=dict)
    draws: Callable[[], str] | None = None

    def rename(self, old: str, new: str) -> None:
        """Rename a value of the graph."""
        self.graph.rename(old, new)
        if old in self.constants:
            self.constants.add(new)
        for table in (self.symbolic, self.sizes):
            if old in table:
                table[new] = table.pop(old)  # type: ignore[index, assignment]

    def spend(self, op: str, type: TensorType) -> None:
        """Count a result that depends on no input. Raises LimitError when these results are too large for the size of
        the file.
        """
        totals = self.totals
        totals.fixed_bytes += type.nbytes if type.is_static else 0
        limit = MAX_FIXED_BYTES + MAX_FIXED_GROWTH * totals.stored_bytes
        if totals.fixed_bytes > limit:
            raise LimitError(
                f"{op}: constants too large, got {type} and {totals.fixed_bytes} bytes in all, expected at most {limit}"
            )

    def measure(self, type: Type) -> Type:
        """Return the type with a new symbol for each unknown dim."""
        if not isinstance(type, TensorType) or type.is_static or not any(d is None for d in type.shape):
            return type
        return TensorType(type.dtype, tuple(self.totals.symbols.measured() if d is None else d for d in type.shape))

    def sweep(self) -> None:
        """Remove unused constants, and nodes over dims that were only needed for load-time arithmetic."""
        graph, returned = self.graph, set(self.graph.outputs.values())
        for node in reversed(list(graph.nodes)):
            name = node.outputs[0]
            is_needed = name in returned or graph.values[name].users or name in graph.measured.values()
            if name in self.symbolic and not is_needed:
                graph.remove(node)
        for name, value in list(graph.values.items()):
            if value.kind == "constant" and not value.users and name not in returned:
                graph.remove_value(name)


class OnnxBuilder(Builder):
    """Add ops to the graph; numbers and dims take the dtype of the last tensor operand, arrays become constants.

    If every operand is known and the result is a few numbers, the op is evaluated instead: by its reference in its own
    dtype, or by `dim_values` if an element is symbolic.
    """

    def __init__(self, facts: Facts, hint: str):
        super().__init__(facts.graph)
        self.facts = facts
        self.hint = hint
        self.added: set[str] = set()  # values that this builder has added
        self.ops: set[str] = set()  # ops that were requested, evaluated ones included

    def type(self, name: str) -> TensorType:
        """Return the type of a tensor. Raises UnsupportedError for other types, UnrankedError if the rank is
        unknown.
        """
        type = self.graph.values[name].type
        if not isinstance(type, TensorType):
            error = UnrankedError if isinstance(type, UnrankedType) else UnsupportedError
            raise error(f"a tensor of known rank is needed: {type} is not supported")
        return type

    def known(self, name: str) -> Array | None:
        """Return the elements of an integer or bool value, symbolic ones included; None when unknown at load time."""
        if name in self.facts.symbolic:
            return self.facts.symbolic[name]
        data = self._data(name)
        return None if data is None or data.dtype.kind == "f" else elements(data)

    def add_all(self, op: str, *operands: str | None, **attributes: Any) -> tuple[str, ...]:
        """Add an op with several outputs, and return them."""
        return self._insert(op, list(operands), attributes)

    def scalar(self, value: Known | float, dtype: DType) -> str:
        """Return a value of rank 0: a constant, or a symbolic dim as data."""
        if isinstance(value, Expr):
            size = self.reshape(self.dims(values=(value,)), shape=())
            return size if dtype is i64 else self.cast(size, dtype=dtype)
        return self.constant(np.array(value, dtype.numpy))

    def constant(self, data: np.ndarray, hint: str = "") -> str:
        """Add a constant to the graph."""
        name = self.graph.add_constant(self.graph.fresh(hint or f"{self.hint}.constant"), data)
        self.facts.constants.add(name)
        return name

    def table(self, data: np.ndarray | str) -> str:
        """Store an array that a rule has computed at load time: a small one as a constant, else as a weight; a value is
        returned unchanged.
        """
        if isinstance(data, str):
            return data
        hint = f"{self.hint}.table"
        self.facts.spend("table", TensorType(from_numpy(data.dtype), data.shape))
        return self._stored(data, hint)

    def literal(self, data: np.ndarray, hint: str) -> str:
        """Store an initializer or Constant: a small one as a constant, else as a weight."""
        self.facts.totals.stored_bytes += data.nbytes
        return self._stored(data, hint)

    def parameter(self, data: np.ndarray, hint: str) -> str:
        """Add an initializer as a weight whatever its size, so that each run can replace it."""
        return self.graph.add_weight(self.graph.fresh(hint), data)

    def without_data(self, type: TensorType, hint: str) -> str:
        """Add an initializer whose type is known, but whose data is absent."""
        weight = self.graph.add_weight(self.graph.fresh(hint), None, type)
        self.facts.constants.add(weight)
        return weight

    def _stored(self, data: np.ndarray, hint: str) -> str:
        kind = data.dtype.kind if data.dtype.kind in "iub" else "f"
        must_be_constant = data.dtype == object or self.facts.nested  # weights are plain bytes, of the main graph
        if must_be_constant or data.nbytes <= MAX_CONSTANT_BYTES[kind]:
            return self.constant(data, hint)
        weight = self.graph.add_weight(self.graph.fresh(hint), data)
        self.facts.constants.add(weight)
        return weight

    # -- insertion and evaluation -----------------------------------------------------------------------------------

    def _add(self, op: str, *operands: str | np.ndarray | Known | float | None, **attributes: Any) -> str:
        if {str, type(None)}.issuperset(map(type, operands)):  # the common case
            names: list[str | None] = [*operands]  # type: ignore[list-item]
        else:
            values = [self.constant(o) if isinstance(o, np.ndarray) else o for o in operands]
            has_numbers = any(isinstance(o, (int, float, Expr)) for o in values)
            dtypes = [self.type(o).dtype for o in values if isinstance(o, str)] if has_numbers else []
            names = [self.scalar(o, dtypes[-1]) if isinstance(o, (int, float, Expr)) else o for o in values]
        (output,) = self._insert(op, names, attributes)
        return output

    def _insert(self, op: str, names: list[str | None], attributes: Mapping[str, Any]) -> tuple[str, ...]:
        self.ops.add(op)
        try:
            node = self.graph.add(op, names, f"{self.hint}.{op}", **attributes)
        except AttributeError:  # of a type without a shape
            for name in filter(None, names):
                self.type(name)
            raise
        fixed = self.facts.constants.issuperset(filter(None, names))
        for output in node.outputs:
            type = self.graph.values[output].type
            if (measured := self.facts.measure(type)) is not type:
                self.graph.narrow(output, measured)
                type = self.graph.values[output].type
            if not isinstance(type, TensorType):
                continue
            if type.extent > MAX_ELEMENTS:
                raise LimitError(f"{op}: result too large, got {type}, expected at most {MAX_ELEMENTS} elements")
            if fixed:
                self.facts.spend(op, type)
        outputs = self._evaluated(node) or node.outputs
        if fixed:
            self.facts.constants.update(outputs)
        self.added.update(outputs)
        return outputs

    def _data(self, name: str) -> np.ndarray | None:
        data = self.graph.data(name)
        if data is None or data.dtype.kind not in "iubf" or self.type(name).extent > MAX_READ_ELEMENTS:
            return None
        return data

    def _evaluated(self, node: Node) -> tuple[str, ...] | None:
        """Evaluate a node over known numbers, and replace it by the results; None when an operand is unknown."""
        operands: list[Array | None] = []
        for name in node.operands:
            operands.append(None if name is None else self.facts.symbolic.get(name, self._data(name)))
            if operands[-1] is None and name is not None:
                return None
        types = [t for name in node.outputs if isinstance(t := self.graph.values[name].type, TensorType)]
        if len(types) < len(node.outputs) or any(isinstance(value, Graph) for value in node.attributes.values()):
            return None
        if node.op.name == "dequantize":  # passes match the nodes of small quantized filters, too
            return None
        if any(not t.is_static or t.extent > MAX_KNOWN_ELEMENTS or t.dtype.kind not in "iubf" for t in types):
            return None
        nbytes = sum(array.nbytes for array in operands if array is not None) + sum(t.nbytes for t in types)
        if self.facts.totals.evaluated_bytes + nbytes > MAX_KNOWN_BYTES:
            return None
        self.facts.totals.evaluated_bytes += nbytes
        try:
            if any(map(is_symbolic, (*operands, *node.attributes.values()))):
                return self._evaluated_dims(node, [a for a in operands if a is not None], types[0].dtype)
            arrays = compute(node.op, operands, node.attributes)  # the caller adds the node's name to errors
        except InputError as error:
            raise LoadError(str(error)) from error
        names = node.outputs
        self.graph.remove(node)
        return tuple(self.constant(np.array(a, order="C"), name) for a, name in zip(arrays, names, strict=True))

    def _evaluated_dims(self, node: Node, operands: list[np.ndarray], dtype: DType) -> tuple[str] | None:
        """As `_evaluated`, if an operand or an attribute is symbolic."""
        arrays = [array if array.dtype == object else elements(array) for array in operands]
        result = dim_values.evaluate(node.op.name, node.attributes, arrays, dtype)
        if result is None:
            return None
        if node.op.name == "dims":
            self.facts.symbolic[node.output] = result
            return (node.output,)
        name = node.output
        self.graph.remove(node)
        return (self._dims(name, result, dtype) if is_symbolic(result) else self._numbers(name, result, dtype),)

    def _numbers(self, name: str, result: Array, dtype: DType) -> str:
        return self.constant(np.array(result.ravel().tolist(), dtype.numpy).reshape(result.shape), name)

    def _dims(self, name: str, result: Array, dtype: DType) -> str:
        """Add dims as data of the graph: the `dims` op, reshaped and cast where needed."""
        steps: list[tuple[str, dict[str, Any]]] = [("dims", {"values": tuple(result.ravel().tolist())})]
        if result.ndim != 1:
            steps.append(("reshape", {"shape": result.shape}))
        if dtype is not i64:
            steps.append(("cast", {"dtype": dtype}))
        added: list[str] = []
        for i, (op, attributes) in enumerate(steps):
            hint = name if i == len(steps) - 1 else f"{name}.{op}"
            added.append(self.graph.add(op, added[-1:], hint, **attributes).output)
            self.facts.symbolic[added[-1]] = result if op != "dims" else result.ravel()
        return added[-1]

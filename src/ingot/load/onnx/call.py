"""One node of an ONNX graph as a rule sees it: operands, attributes, known integers, and a pen for plain ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir

from ingot.dim import Dim, Expr
from ingot.dtype import DType, boolean, i32, i64
from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.ir import OPS, Graph, TensorType
from ingot.load.onnx.shape_values import MAX_KNOWN_ELEMENTS, Known, known_array
from ingot.load.onnx.shapes import Size
from ingot.load.onnx.tensors import MAX_ELEMENTS, dtype_of
from ingot.ops.define import normalize_axis

Operand = str | Known

MAX_CONSTANT_ELEMENTS = 2**28  # of a value that depends on no graph input; passes may fold it
MAX_CONSTANT_BYTES = {"i": 65536, "u": 65536, "b": 65536, "f": 1024}  # a larger initializer is a weight

_REQUIRED: Any = object()


class Emitter:
    """Adds ops to the graph: `emit.mul(x, 0.5)` gives the name of the result. Numbers take the dtype of operand 0."""

    def __init__(self, graph: Graph, constants: set[str], hint: str):
        self.graph = graph
        self.constants = constants  # values that no graph input reaches
        self.hint = hint
        self.made: set[str] = set()

    def __getattr__(self, op: str) -> Callable[..., str]:
        if op not in OPS:
            raise AttributeError(f"no op {op!r}")
        return functools.partial(self._add, op)

    def type(self, name: str) -> TensorType:
        """The type of a value."""
        return self.graph.type(name)

    def add_all(self, op: str, *operands: str, **attributes: Any) -> tuple[str, ...]:
        """The outputs of an op that makes several."""
        return self._insert(op, list(operands), attributes)

    def _add(self, op: str, *operands: str | float | None, **attributes: Any) -> str:
        dtypes = [self.graph.type(o).dtype for o in operands if isinstance(o, str)]
        names = [self.scalar(o, dtypes[-1]) if isinstance(o, (int, float)) else o for o in operands]
        (output,) = self._insert(op, names, attributes)
        return output

    def _insert(self, op: str, names: list[str | None], attributes: Mapping[str, Any]) -> tuple[str, ...]:
        node = self.graph.add(op, names, f"{self.hint}.{op}", **attributes)
        fixed = all(n is None or n in self.constants for n in names)
        for output in node.outputs:
            type = self.graph.type(output)
            limit = MAX_CONSTANT_ELEMENTS if fixed else MAX_ELEMENTS
            if type.is_static and type.size > limit:
                raise LimitError(f"{op}: result too large, got {type}, expected at most {limit} elements")
            if fixed:
                self.constants.add(output)
        self.made.update(node.outputs)
        return node.outputs

    def scalar(self, value: float, dtype: DType) -> str:
        """A constant of rank 0."""
        return self.constant(np.array(value, dtype.numpy))

    def constant(self, data: np.ndarray, hint: str = "") -> str:
        """A constant of the graph."""
        name = self.graph.add_constant(self.graph.fresh(hint or f"{self.hint}.constant"), data)
        self.constants.add(name)
        return name

    def value(self, operand: Operand) -> str:
        """The operand as a value of the graph; known integers become a constant, or the `dims` op when symbolic."""
        if isinstance(operand, str):
            return operand
        if operand.value is None:
            operand.value = self._materialise(operand)
        return operand.value

    def _materialise(self, known: Known) -> str:
        name = self.graph.fresh(known.name)
        if known.is_static:
            return self.constant(np.array(known.array.tolist(), known.dtype.numpy).reshape(known.array.shape), name)
        result = self.dims(values=tuple(known.array.ravel().tolist()))
        if known.array.ndim != 1:
            result = self.reshape(result, shape=known.array.shape)
        return result if known.dtype is i64 else self.cast(result, dtype=known.dtype)


def literal(emit: Emitter, data: np.ndarray, name: str) -> Operand:
    """An initializer or Constant: known integers when few, a constant when small, else a weight."""
    if data.dtype.kind in "ib" and data.dtype.itemsize in (1, 4, 8) and data.size <= MAX_KNOWN_ELEMENTS:
        dtype = {"int64": i64, "int32": i32, "bool": boolean}.get(data.dtype.name)
        if dtype is not None:
            return Known(known_array(data), dtype, name)
    kind = data.dtype.kind if data.dtype.kind in "iub" else "f"
    if data.nbytes <= MAX_CONSTANT_BYTES[kind]:
        return emit.constant(data, name)
    weight = emit.graph.add_weight(emit.graph.fresh(name), data)
    emit.constants.add(weight)
    return weight


class Call:
    """A node with its operands looked up and its attributes resolved.

    `call[i]` is operand i as a graph value (LoadError when it is missing), `call.get(i)` the same or None.
    """

    def __init__(
        self,
        node: onnx_ir.Node,
        opset: int,
        operands: Sequence[Operand | None],
        attributes: Mapping[str, onnx_ir.Attr],
        emit: Emitter,
    ):
        self.node = node
        self.op = node.op_type
        self.domain = "" if node.domain == "ai.onnx" else node.domain
        self.opset = opset
        self.operands = operands
        self.attributes = attributes
        self.outputs = [o.name or "" for o in node.outputs]
        self.emit = emit

    # -- operands -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.operands)

    def has(self, index: int) -> bool:
        """True when operand `index` is given."""
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> Operand:
        """Operand `index`, which the op requires."""
        if not self.has(index):
            raise self.malformed(f"input {index} is missing")
        operand = self.operands[index]
        assert operand is not None
        return operand

    def __getitem__(self, index: int) -> str:
        return self.emit.value(self.operand(index))

    def get(self, index: int) -> str | None:
        """Operand `index` as a graph value, None when it is left out."""
        return self[index] if self.has(index) else None

    def values(self) -> list[str]:
        """All operands as graph values."""
        return [self[i] for i in range(len(self))]

    def type(self, index: int) -> TensorType:
        """The type of operand `index`."""
        operand = self.operand(index)
        if isinstance(operand, Known):
            return TensorType(operand.dtype, operand.array.shape)
        return self.emit.type(operand)

    def shape(self, index: int) -> tuple[Size, ...]:
        """The shape of operand `index`; raises UnsupportedError when a dim is unknown."""
        return self.known_shape(self.type(index))

    def known_shape(self, type: TensorType) -> tuple[Size, ...]:
        """The shape of a type; raises UnsupportedError when a dim is unknown."""
        if any(d is None for d in type.shape):
            raise self.unsupported(f"a shape that depends on data, {type}")
        return type.shape  # type: ignore[return-value]

    # -- known integers -----------------------------------------------------------------------------------------

    def known(self, index: int) -> np.ndarray | None:
        """The elements of an integer or bool operand, symbolic ones included; None when they are not known at load."""
        operand = self.operands[index] if index < len(self.operands) else None
        if isinstance(operand, Known):
            return operand.array
        data = self.emit.graph.data(operand)
        if data is None or data.dtype.kind not in "iub" or data.size > 65536:
            return None
        return known_array(data)

    def sizes(self, index: int) -> tuple[Size, ...]:
        """The elements of a one-dimensional integer operand; raises UnsupportedError when they depend on data."""
        array = self.known(index) if self.has(index) else None
        if array is None:
            raise self.unsupported(f"an input {index} that is not known at load")
        if array.ndim > 1:
            raise self.malformed(f"input {index} has rank {array.ndim}, expected 1")
        return tuple(array.ravel())

    def integers(self, index: int) -> tuple[int, ...]:
        """`sizes` without symbols."""
        sizes = self.sizes(index)
        if any(isinstance(v, Expr) for v in sizes):
            raise self.unsupported(f"a symbolic input {index}, {list(sizes)}")
        return sizes  # type: ignore[return-value]

    def axes(self, index: int, name: str = "axes") -> tuple[int, ...] | None:
        """Axes, which newer opsets pass as operand `index` and older ones as an attribute; None when not given."""
        if name in self.attributes:
            return self.attr_ints(name)
        return self.integers(index) if self.has(index) else None

    def slice_ranges(self) -> tuple[tuple[int, ...], list[tuple[Size, Size]], tuple[int, ...]]:
        """Slice's axes, (start, stop) pairs and steps, of equal lengths."""
        starts, stops = self.sizes(1), self.sizes(2)
        axes = self.integers(3) if self.has(3) else tuple(range(len(starts)))
        steps = self.integers(4) if self.has(4) else (1,) * len(starts)
        if 0 in steps:
            raise self.malformed("a step of 0")
        if not len(starts) == len(stops) == len(axes) == len(steps):
            raise self.malformed(f"starts, ends, axes, steps differ in length, got {starts}, {stops}, {axes}, {steps}")
        rank = self.type(0).rank
        axes = tuple(normalize_axis("axes", axis, rank) for axis in axes)
        if len(set(axes)) != len(axes) or any(axis >= rank for axis in axes):
            raise self.malformed(f"axes are given twice or out of range, got {list(axes)} for rank {rank}")
        return axes, list(zip(starts, stops, strict=True)), steps

    # -- attributes ---------------------------------------------------------------------------------------------

    def _attribute(self, name: str, kind: onnx_ir.AttributeType, default: Any) -> Any:
        if name not in self.attributes:
            if default is _REQUIRED:
                raise self.malformed(f"attribute {name!r} is missing")
            return default
        attribute = self.attributes[name]
        if attribute.type != kind:
            raise self.malformed(
                f"attribute {name!r} has a wrong type, got {attribute.type.name}, expected {kind.name}"
            )
        return attribute.value

    def attr_int(self, name: str, default: Any = _REQUIRED) -> int:
        """An INT attribute."""
        return self._attribute(name, onnx_ir.AttributeType.INT, default)

    def attr_float(self, name: str, default: Any = _REQUIRED) -> float:
        """A FLOAT attribute."""
        return self._attribute(name, onnx_ir.AttributeType.FLOAT, default)

    def attr_text(self, name: str, default: Any = _REQUIRED) -> str:
        """A STRING attribute."""
        value = self._attribute(name, onnx_ir.AttributeType.STRING, default)
        if isinstance(value, bytes):
            raise self.malformed(f"attribute {name!r} is not UTF-8")
        return value

    def attr_ints(self, name: str, default: Any = _REQUIRED) -> tuple[Any, ...]:
        """An INTS attribute."""
        return tuple(self._attribute(name, onnx_ir.AttributeType.INTS, default))

    def attr_floats(self, name: str, default: Any = _REQUIRED) -> tuple[Any, ...]:
        """A FLOATS attribute."""
        return tuple(self._attribute(name, onnx_ir.AttributeType.FLOATS, default))

    def attr_tensor(self, name: str, default: Any = _REQUIRED) -> np.ndarray:
        """A TENSOR attribute."""
        value = self._attribute(name, onnx_ir.AttributeType.TENSOR, default)
        return value if isinstance(value, np.ndarray) else value.numpy()

    def attr_graph(self, name: str) -> onnx_ir.Graph:
        """A GRAPH attribute."""
        return self._attribute(name, onnx_ir.AttributeType.GRAPH, _REQUIRED)

    def attr_axis(self, name: str, default: Any, rank: int) -> int:
        """An axis attribute, counted from the front."""
        return normalize_axis(f"attribute {name!r}", self.attr_int(name, default), rank)

    def attr_dtype(self, name: str, default: Any = _REQUIRED) -> DType:
        """An attribute that names an element type."""
        return dtype_of(self.attr_int(name, default), f"attribute {name!r}")

    # -- small ops that many rules share ------------------------------------------------------------------------

    def reshape(self, x: str, shape: Sequence[Dim]) -> str:
        """x in another shape; x itself when that is its own."""
        return x if self.emit.type(x).shape == tuple(shape) else self.emit.reshape(x, shape=tuple(shape))

    def cast(self, x: str, dtype: DType) -> str:
        """x in another dtype; x itself when that is its own."""
        return x if self.emit.type(x).dtype is dtype else self.emit.cast(x, dtype=dtype)

    def permute(self, x: str, axes: Sequence[int]) -> str:
        """x with its axes in another order; x itself when they are not."""
        return x if tuple(axes) == tuple(range(self.emit.type(x).rank)) else self.emit.permute(x, axes=tuple(axes))

    def slice(self, x: str, axis: int, start: Dim, stop: Dim, step: int = 1) -> str:
        """A canonical range of one axis."""
        shape = self.emit.type(x).shape
        starts: list[Dim] = [0] * len(shape)
        stops, steps = list(shape), [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.emit.slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    # -- errors -------------------------------------------------------------------------------------------------

    def malformed(self, what: str) -> LoadError:
        """The error for content that no reader could accept; raise it."""
        return LoadError(what)

    def unsupported(self, what: str) -> UnsupportedError:
        """The error for content that Ingot does not implement; raise it."""
        return UnsupportedError(f"{what} is not supported")

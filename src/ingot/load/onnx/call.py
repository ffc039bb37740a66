"""One node of an ONNX graph, as seen by a rule: operands, attributes, known integers, and the builder of plain ops."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir
from onnx_ir.convenience import convert_attribute

from ingot.errors import IngotError, LoadError, UnboundError, UnrankedError, UnsupportedError
from ingot.ir.dim import Dim, Expr
from ingot.ir.dtype import DType, i64
from ingot.ir.graph import MAX_RANK, Graph, TensorType, Type
from ingot.load.eager import Eager, Value, is_known
from ingot.load.onnx.builder import OnnxBuilder
from ingot.load.onnx.dim_values import Array
from ingot.load.onnx.shapes import Size, is_negative
from ingot.load.onnx.tensors import array_of, dtype_of
from ingot.ops.define import Builder, normalize_axis
from ingot.ops.sequence import is_single

_REQUIRED: Any = object()


def inputs_of(graph: onnx_ir.Graph) -> list[onnx_ir.Value]:
    """Return the inputs of a graph that are not initializers."""
    return [value for value in graph.inputs if value.name not in graph.initializers]


@dataclass(frozen=True, slots=True)
class Body:
    """A subgraph, and the values of the outer graph that it reads as its last inputs."""

    graph: Graph
    captured: tuple[str, ...]


class Around(Protocol):
    """The graph that contains the node of a call; `Call` forwards its methods of these names to it."""

    def body(self, call: Call, attribute: str, types: Sequence[Type]) -> Body: ...

    def branch(self, call: Call, attribute: str) -> Body | IngotError: ...

    def named(self, name: str) -> str: ...


class Call:
    """A node with resolved operands and attributes.

    `call[i]` is operand i as a graph value (LoadError when it is missing), `call.get(i)` the same or None.
    """

    def __init__(
        self,
        node: onnx_ir.Node,
        opset: int,
        operands: Sequence[str | None],
        attributes: Mapping[str, onnx_ir.Attr],
        build: OnnxBuilder,
        around: Around,
    ):
        self.node = node
        self.around = around
        self.op = node.op_type
        self.domain = "" if node.domain == "ai.onnx" else node.domain
        self.opset = opset
        self.operands = operands
        self.attributes = attributes
        self.outputs = [o.name or "" for o in node.outputs]
        self.build = build

    def body(self, attribute: str, types: Sequence[Type], more: int = 0) -> Body:
        """Load a subgraph whose inputs have these types; more: see `subgraph`."""
        self.subgraph(attribute, len(types), more)
        return self.around.body(self, attribute, types)

    def branch(self, attribute: str) -> Body | IngotError:
        """Load a subgraph without inputs; return the error if it does not fit the values given to symbolic dims."""
        self.subgraph(attribute, 0)
        return self.around.branch(self, attribute)

    def subgraph(self, attribute: str, inputs: int, more: int = 0) -> onnx_ir.Graph:
        """Return a GRAPH attribute with `inputs` inputs, and `more` results in addition to one per output of the node.

        An input that is also an initializer, as in files before IR version 4, does not count. Raises LoadError for any
        other number of inputs or results.
        """
        graph = self._attribute(attribute, onnx_ir.AttributeType.GRAPH, _REQUIRED)
        for noun, got, expected in (
            ("inputs", len(inputs_of(graph)), inputs),
            ("results", len(graph.outputs), len(self.outputs) + more),
        ):
            if got != expected:
                raise self.malformed(
                    f"attribute {attribute!r} has a wrong number of {noun}, got {got}, expected {expected}"
                )
        return graph

    def named(self, name: str) -> str:
        """Return the value with this name in the graph that contains the node."""
        return self.around.named(name)

    def replaced(self, *operands: str | np.ndarray | None, **attributes: int | str | Sequence[int]) -> Call:
        """Return the same node with other operands (arrays become constants) and with some attributes replaced."""
        other = copy.copy(self)
        other.operands = [self.build.constant(o) if isinstance(o, np.ndarray) else o for o in operands]
        other.attributes = {**self.attributes, **{name: convert_attribute(name, v) for name, v in attributes.items()}}
        return other

    def as_op(
        self, op: str, *operands: str | None, opset: int, attributes: Mapping[str, float] | None = None
    ) -> Call:  # fmt: skip
        """Return the node as another op of ai.onnx at an opset; attributes: replace the attributes of this node, if
        given.
        """
        other = copy.copy(self)
        other.op, other.domain, other.operands, other.opset = op, "", operands, opset
        if attributes is not None:
            other.attributes = {name: convert_attribute(name, v) for name, v in attributes.items()}
        return other

    # -- operands -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.operands)

    def has(self, index: int) -> bool:
        """Return True when operand `index` is given."""
        return index < len(self.operands) and self.operands[index] is not None

    def __getitem__(self, index: int) -> str:
        operand = self.operands[index] if index < len(self.operands) else None
        if operand is None:
            raise self.malformed(f"input {index} is missing")
        return operand

    def get(self, index: int) -> str | None:
        """Return operand `index` as a graph value, None when it is omitted."""
        return self[index] if self.has(index) else None

    def values(self) -> list[str]:
        """Return all operands as graph values."""
        return [self[i] for i in range(len(self))]

    def type(self, index: int) -> TensorType:
        """Return the type of operand `index`; raises UnsupportedError unless it is a tensor of known rank."""
        return self.build.type(self[index])

    def value_type(self, index: int) -> Type:
        """Return the type of operand `index`, a tensor or not."""
        return self.build.graph.values[self[index]].type

    def shape(self, index: int) -> tuple[Size, ...]:
        """Return the shape of operand `index`; raises UnsupportedError when a dim is unknown."""
        return self.known_shape(self.type(index))

    def expect_sizes(self, index: int, *axes: int) -> None:
        """Raise UnboundError if an operand has symbolic dims along the given axes (those within its rank), or along any
        axis if none is given.
        """
        shape = self.type(index).shape
        dims = [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)] if axes else shape
        if any(isinstance(d, Expr) for d in dims):
            raise self.unbound(f"a symbolic shape of input {index}, {self.type(index)},")

    def known_shape(self, type: TensorType) -> tuple[Size, ...]:
        """Return the shape of a type; raises UnsupportedError when a dim is unknown."""
        if any(d is None for d in type.shape):
            raise self.unsupported(f"a shape that depends on data, {type}")
        return type.shape  # type: ignore[return-value]

    # -- known integers -----------------------------------------------------------------------------------------

    def known(self, index: int) -> Array | None:
        """Return the elements of an integer or bool operand, symbolic ones included; None when unknown at load time."""
        return self.build.known(self[index])

    def sizes(self, index: int) -> tuple[Size, ...]:
        """Return the elements of a one-dimensional integer operand; raises UnsupportedError when they depend on
        data.
        """
        array = self.known(index)
        if array is None:
            raise self.unsupported(f"an input {index} that is not known at load")
        if array.ndim > 1 and array.size != 1:
            raise self.malformed(f"input {index} has rank {array.ndim}, expected 1")
        return tuple(array.ravel())

    def dims(self, index: int, least: int = 0) -> tuple[Size, ...]:
        """Return the elements of an operand as sizes. If they depend on data, a run rejects an element below
        `least`.
        """
        if self.known(index) is not None:
            return self.sizes(index)
        sizes = self.cast(self[index], i64)
        return self.measured(self.build.where(self.build.less(sizes, least), -1, sizes) if least else self[index])

    def size(self, index: int, least: int = 0) -> Size:
        """Return the only element of an operand as a size of at least `least`; see `dims`."""
        sizes = self.dims(index, least)
        if len(sizes) != 1 or is_negative(sizes[0] - least):
            raise self.malformed(f"a size of {', '.join(map(str, sizes))}, expected one of {least} or more")
        return sizes[0]

    def value(self, index: int) -> Value:
        """Return the elements of an operand if it is constant, else its name."""
        data = self.build.graph.data(self[index])
        return self[index] if data is None else data

    def number(self, index: int, dtype: DType) -> Value:
        """Return the only element of an operand, as a dtype and of rank 0; see `value`."""
        value = self.single(index)
        return self.builder_for(value).cast(value, dtype=dtype)

    def single(self, index: int) -> Value:
        """Return the same as `scalar`, or an array if it is constant; see `value`."""
        scalar = self.scalar(index)
        data = self.build.graph.data(scalar)
        return scalar if data is None else data

    def scalar(self, index: int) -> str:
        """Return the only element of operand `index`, of any rank, as a value of rank 0.

        ONNX Runtime accepts a vector of one element where ONNX expects a scalar, and vice versa. A known number of
        elements other than 1 is a LoadError; if it is only known at run time, the run fails.
        """
        if not is_single(self.type(index), self.type(index).dtype):
            raise self.malformed(f"input {index} has a wrong number of elements, got {self.type(index)}, expected one")
        return self.reshape(self[index], ())

    def builder_for(self, *values: Any) -> Builder:
        """Return the builder for a formula over these values: `Eager` if all are known, else the builder of the
        graph.
        """
        return Eager() if is_known(*values) else self.build

    def measured(self, x: Value) -> tuple[Size, ...]:
        """Return the elements of an integer vector as dims that the run measures; a negative one is an error of the
        run.

        Elements that are known at load time are returned as numbers.
        """
        if isinstance(x, np.ndarray):
            return tuple(x.ravel().tolist())
        known = self.build.known(x)
        if known is not None:
            return tuple(known.ravel())
        sizes = self.build.facts.sizes
        if x not in sizes:
            vector = self.vector(x)
            if self.build.type(vector).size > MAX_RANK:
                raise self.unsupported(f"more than {MAX_RANK} sizes, {self.build.type(vector)}")
            sizes[x] = self.build.type(self.build.measure(vector)).shape  # type: ignore[assignment]
        return sizes[x]

    def vector(self, x: str) -> str:
        """Return integers of rank 0 or 1 as i64 [n]. Raises UnrankedError if n is only known at run time."""
        type = self.build.type(x)
        if type.rank > 1 and type.shape != (1,) * type.rank:
            raise self.unsupported(f"sizes or axes of rank {type.rank}")
        if not type.is_static:
            raise UnrankedError(f"sizes or axes that depend on data: {type} is not supported")
        return self.cast(self.reshape(x, type.dims if type.rank == 1 else (1,)), i64)

    def integers(self, index: int) -> tuple[int, ...]:
        """Return `sizes`; raises UnboundError for symbols."""
        sizes = self.sizes(index)
        if any(isinstance(v, Expr) for v in sizes):
            raise self.unbound(f"a symbolic input {index}, {list(sizes)}")
        return sizes  # type: ignore[return-value]

    def axes(self, index: int, name: str = "axes") -> tuple[int, ...] | None:
        """Return the axes, operand `index` in newer opsets, an attribute in older ones; None when not given."""
        if name in self.attributes:
            return self.attr_ints(name)
        return self.integers(index) if self.has(index) else None

    def slice_ranges(self) -> tuple[tuple[int, ...], list[tuple[Size, Size]], tuple[int, ...]]:
        """Return the axes, (start, stop) pairs and steps of Slice, of equal lengths."""
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
        """Return an INT attribute."""
        return self._attribute(name, onnx_ir.AttributeType.INT, default)

    def attr_float(self, name: str, default: Any = _REQUIRED) -> float:
        """Return a FLOAT attribute."""
        return self._attribute(name, onnx_ir.AttributeType.FLOAT, default)

    def attr_text(self, name: str, default: Any = _REQUIRED) -> str:
        """Return a STRING attribute."""
        value = self._attribute(name, onnx_ir.AttributeType.STRING, default)
        if isinstance(value, bytes):
            raise self.malformed(f"attribute {name!r} is not UTF-8")
        return value

    def attr_ints(self, name: str, default: Any = _REQUIRED) -> tuple[Any, ...]:
        """Return an INTS attribute."""
        return tuple(self._attribute(name, onnx_ir.AttributeType.INTS, default))

    def attr_floats(self, name: str, default: Any = _REQUIRED) -> tuple[Any, ...]:
        """Return a FLOATS attribute."""
        return tuple(self._attribute(name, onnx_ir.AttributeType.FLOATS, default))

    def attr_tensor(self, name: str, default: Any = _REQUIRED) -> np.ndarray:
        """Return a TENSOR attribute."""
        value = self._attribute(name, onnx_ir.AttributeType.TENSOR, default)
        return value if isinstance(value, np.ndarray) else array_of(value, f"attribute {name!r}")

    def attr_texts(self, name: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        """Return a STRINGS attribute."""
        values = self._attribute(name, onnx_ir.AttributeType.STRINGS, default)
        if any(not isinstance(value, str) for value in values):
            raise self.malformed(f"attribute {name!r} is not UTF-8")
        return tuple(values)

    def word(self, name: str, default: str, known: Sequence[str]) -> str:
        """Return a STRING attribute that must be one of the known words."""
        word = self.attr_text(name, default)
        if word not in known:
            raise self.malformed(f"attribute {name!r} is {word[:100]!r}, expected one of {', '.join(known)}")
        return word

    def attr_type(self, name: str) -> onnx_ir.TypeAndShape:
        """Return a TYPE_PROTO attribute."""
        return self._attribute(name, onnx_ir.AttributeType.TYPE_PROTO, _REQUIRED)

    def attr_axis(self, name: str, default: Any, rank: int) -> int:
        """Return an axis attribute, counted from the front."""
        return normalize_axis(f"attribute {name!r}", self.attr_int(name, default), rank)

    def attr_dtype(self, name: str, default: Any = _REQUIRED) -> DType:
        """Return an attribute that is an element type."""
        return dtype_of(self.attr_int(name, default), f"attribute {name!r}")

    # -- small ops shared by many rules -----------------------------------------------------------------------------

    def reshape(self, x: str, shape: Sequence[Dim]) -> str:
        """Reshape x; return x itself when it has this shape."""
        return x if self.build.type(x).shape == tuple(shape) else self.build.reshape(x, shape=tuple(shape))

    def cast(self, x: str, dtype: DType) -> str:
        """Cast x; return x itself when it has this dtype."""
        return x if self.build.type(x).dtype is dtype else self.build.cast(x, dtype=dtype)

    def permute(self, x: str, axes: Sequence[int]) -> str:
        """Permute the axes of x; return x itself when the order stays the same."""
        return x if tuple(axes) == tuple(range(self.build.type(x).rank)) else self.build.permute(x, axes=tuple(axes))

    def slice(self, x: str, axis: int, start: Dim, stop: Dim, step: int = 1) -> str:
        """Slice a canonical range of one axis."""
        shape = self.build.type(x).shape
        starts: list[Dim] = [0] * len(shape)
        stops, steps = list(shape), [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.build.slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    # -- errors -------------------------------------------------------------------------------------------------

    def malformed(self, what: str) -> LoadError:
        """Return the error for malformed content; the caller raises it."""
        return LoadError(what)

    def unbound(self, what: str) -> UnboundError:
        """Return the error for content that is only supported once symbolic dims have values; the caller raises it."""
        return UnboundError(f"{what} is not supported")

    def unsupported(self, what: str) -> UnsupportedError:
        """Return the error for content that Ingot does not implement; the caller raises it."""
        return UnsupportedError(f"{what} is not supported")

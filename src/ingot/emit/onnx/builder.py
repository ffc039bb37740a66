"""The builder of ONNX graphs: adds nodes, constants, and computations of dims that a node needs as data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ingot.errors import UnsupportedError
from ingot.ir.dim import Atom, Dim, Expr, Known
from ingot.ir.dtype import DType, i64
from ingot.ir.graph import Graph, MapType, Node, OptionalType, SequenceType, TensorType, Type, Value
from ingot.load.onnx.shapes import is_negative, sign
from ingot.load.onnx.tensors import DTYPES

ML = "ai.onnx.ml"

# ONNX's number of each dtype.
NUMBERS = {d: n for n, d in DTYPES.items()}


class Names:
    """Names of values in use, in a model's graph and in the subgraphs that can refer to it."""

    def __init__(self, used: Sequence[str] = ()):
        self.used = set(used)

    def fresh(self, hint: str) -> str:
        """Return an unused name, the hint itself if possible."""
        name, count = hint, 0
        while not name or name in self.used:
            count += 1
            name = f"{hint}.{count}"
        self.used.add(name)
        return name


class Builder:
    """Build one ONNX graph, subgraph or function: `builder.Relu(x)` adds a node and returns the name of its result.

    Operands are ONNX names, arrays, which become constants, or None for omitted ones; keyword arguments are attributes.
    `call(node)` adds a node as a call of a function with the op's expansion as its body; `define(text)` adds a function
    from its text and returns its name; `body(graph, given)` builds a subgraph, whose inputs in `given` have ONNX names
    of the outer graph, and returns it as an attribute. domains: of nodes; the builder adds those that it uses.
    is_function: constants are nodes, because a function has no initializers.
    """

    call: Callable[[Node], tuple[str, ...]]
    define: Callable[[str], str]
    body: Callable[[Graph, Mapping[str, str]], onnx.GraphProto]

    def __init__(
        self, graph: Graph, names: Names, domains: set[str], outer: Builder | None = None, *, is_function: bool = False
    ):
        self.graph = graph
        self.names = names
        self.domains = domains
        self.outer = outer
        self.is_function = is_function
        self.values: dict[str, str] = {}  # of the graph -> ONNX names
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.hint = "t"
        self._constants: dict[tuple[Any, ...], str] = {}
        self._symbols: dict[str, str] = {}

    # -- nodes --------------------------------------------------------------------------------------------------

    def __getattr__(self, op: str) -> Callable[..., str]:
        if not op[:1].isupper():
            raise AttributeError(f"no op {op!r}")
        return functools.partial(self._add, op)

    def _add(self, op: str, *operands: str | np.ndarray | None, **attributes: Any) -> str:
        return self.add_all(op, 1, *operands, **attributes)[0]

    def add_all(
        self, op: str, outputs: int, *operands: str | np.ndarray | None, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several results; return their names. Attributes that are None are omitted."""
        inputs = [self.constant(o) if isinstance(o, np.ndarray) else o or "" for o in operands]
        while inputs and not inputs[-1]:
            inputs.pop()
        names = tuple(self.names.fresh(f"{self.hint}.{op.lower()}") for _ in range(outputs))
        onnx_node = helper.make_node(op, inputs, names, name=names[0], domain=domain)
        for key, value in sorted(attributes.items()):
            if isinstance(value, onnx.AttributeProto):
                onnx_node.attribute.append(value)
            elif value is not None:
                given = int(value) if isinstance(value, bool) else value
                onnx_node.attribute.append(helper.make_attribute(key, given))
        self.nodes.append(onnx_node)
        self.domains.add(domain)
        return names

    def constant(self, array: np.ndarray) -> str:
        """Return a constant of the graph; equal constants are shared."""
        key = (array.dtype, array.shape, tuple(array.ravel().tolist()) if array.dtype == object else array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.store(self.names.fresh(f"{self.hint}.constant"), array)
        return self._constants[key]

    def number(self, value: Any, dtype: DType) -> str:
        """Return a constant of rank 0."""
        return self.constant(np.array(value, dtype.numpy))

    def store(self, name: str, array: np.ndarray) -> str:
        """Add an array to the graph under an unused name."""
        if self.is_function:
            self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor(name, array)))
        else:
            self.initializers.append(tensor(name, array))
        return name

    def type(self, node: Node, operand: int) -> TensorType:
        """Return the type of a node's operand, a tensor of known rank."""
        return self.graph.type(str(node.operands[operand]))

    # -- dims ---------------------------------------------------------------------------------------------------

    def sizes(self, dims: Sequence[Dim]) -> str:
        """Return dims as data, i64[n]."""
        if all(isinstance(dim, int) for dim in dims):
            return self.constant(np.array(dims, np.int64))
        parts: list[str] = []
        known: list[int] = []
        for dim in dims:
            if isinstance(dim, int):
                known.append(int(dim))
                continue
            parts += [self.constant(np.array(known, np.int64))] if known else []
            parts.append(self.size(dim))
            known = []
        parts += [self.constant(np.array(known, np.int64))] if known else []
        return parts[0] if len(parts) == 1 else self.Concat(*parts, axis=0)

    def size(self, dim: Dim) -> str:
        """Return a dim as data, i64[1]. Raises UnsupportedError for an unknown dim."""
        if dim is None:
            raise UnsupportedError("a dim that is unknown before a run is not supported")
        if not isinstance(dim, Expr):
            return self.constant(np.array([dim], np.int64))
        total = ""
        for monomial, coefficient in dim.terms:
            term = "" if abs(coefficient) == 1 and monomial else self.size(abs(coefficient))
            for atom in monomial:
                factor = self._atom(atom)
                term = self.Mul(term, factor) if term else factor
            if not total:
                total = term if coefficient > 0 else self.Neg(term)
            else:
                total = self.Add(total, term) if coefficient > 0 else self.Sub(total, term)
        return total

    def _atom(self, atom: Atom) -> str:
        if not atom.args:
            return self.symbol(atom.name)
        if atom.name == "floordiv":
            return self._quotient(*atom.args)
        first, *rest = map(self.size, atom.args)
        for other in rest:
            if atom.name == "broadcast":
                first = self.Where(self.Equal(first, np.array([1], np.int64)), other, first)
            else:
                first = (self.Min if atom.name == "min" else self.Max)(first, other)
        return first

    def _quotient(self, a: Known, b: Known) -> str:
        """Return a // b. ONNX rounds toward zero, so a is first outputs non-negative by multiples of b, if possible."""
        shift = 0
        if isinstance(a, Expr) and isinstance(b, int):
            shift = max(-(dict(a.terms).get((), 0) // b), 0)
            a = a + shift * b
        above, below = self.size(a), self.size(b)
        if is_negative(a) is not False or sign(b) != 1:
            above = self.Sub(above, self.Mod(above, below))
        quotient = self.Div(above, below)
        return self.Sub(quotient, self.size(shift)) if shift else quotient

    def symbol(self, name: str) -> str:
        """Return a symbol, i64[1]: from a dim of an input, of a state or of the value that defines it.

        Raises UnsupportedError for a symbol that no dim determines.
        """
        if name not in self._symbols:
            found = self._read(name)
            if found is None and self.outer is None:
                raise UnsupportedError(
                    f"symbol {name!r} is not a dim by itself: a size computed from it is not supported"
                )
            self._symbols[name] = self.outer.symbol(name) if found is None and self.outer else str(found)
        return self._symbols[name]

    def _read(self, name: str) -> str | None:
        measured = [self.graph.measured[name]] if name in self.graph.measured else []
        for value in [*self.graph.inputs, *self.graph.states, *measured]:
            kind = self.graph.values[value].type
            if value not in self.values or not isinstance(kind, TensorType):
                continue
            for axis, dim in enumerate(kind.shape):
                linear = _linear(dim, name)
                if linear is None:
                    continue
                size, (factor, offset) = self.Shape(self.values[value], start=axis, end=axis + 1), linear
                size = size if offset == 0 else self.Sub(size, self.size(offset))
                return size if factor == 1 else self.Div(size, self.size(factor))
        return None

    def is_shared(self, name: str) -> bool:
        """Return whether an ONNX value is a constant or a symbol, which nodes of other rules may read."""
        return name in self._symbols.values() or name in self._constants.values()

    def scalar_size(self, dim: Known) -> str:
        """Return a dim as data of rank 0."""
        if isinstance(dim, int):
            return self.number(dim, i64)
        return self.Squeeze(self.size(dim), np.array([0], np.int64))


def _linear(dim: Dim, name: str) -> tuple[int, int] | None:
    """Return (factor, offset) if a dim is factor * symbol + offset."""
    if not isinstance(dim, Expr):
        return None
    rest = dict(dim.terms)
    factor, offset = rest.pop((Atom(name),), 0), rest.pop((), 0)
    return None if rest or factor == 0 else (factor, offset)


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    """Return an array as an ONNX tensor."""
    if array.dtype == object:
        texts = [text.encode() for text in array.ravel().tolist()]
        return helper.make_tensor(name, onnx.TensorProto.STRING, array.shape, texts)
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def type_proto(type: Type, *, named: bool = True) -> onnx.TypeProto:
    """Return an ONNX type. named: include symbolic dims; else only numbers."""
    if isinstance(type, SequenceType):
        return helper.make_sequence_type_proto(type_proto(type.element, named=named))
    if isinstance(type, OptionalType):
        return helper.make_optional_type_proto(type_proto(type.element, named=named))
    if isinstance(type, MapType):
        return helper.make_map_type_proto(NUMBERS[type.key], helper.make_tensor_type_proto(NUMBERS[type.value], []))
    if not isinstance(type, TensorType):
        return helper.make_tensor_type_proto(NUMBERS[type.dtype], None)
    dims = [d if isinstance(d, int) else str(d) if named and d is not None else None for d in type.shape]
    return helper.make_tensor_type_proto(NUMBERS[type.dtype], dims)


def value_info(name: str, value: Value, *, named: bool = True) -> onnx.ValueInfoProto:
    """Return the declaration of a value under an ONNX name."""
    return helper.make_value_info(name, type_proto(value.type, named=named))

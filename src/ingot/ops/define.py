"""The `op` decorator, samples, and shape inference shared by several ops."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import numpy as np

from ingot.errors import InputError, ShapeError
from ingot.ir.dim import Dim, Expr, Known
from ingot.ir.dim import broadcast as broadcast_dims
from ingot.ir.dtype import DTYPES, DType, bf16, boolean, f16, f32, f64, from_numpy, i64, string
from ingot.ir.graph import (
    OPS,
    REQUIRED,
    Graph,
    Index,
    MapType,
    Node,
    Op,
    OptionalType,
    Sample,
    SequenceType,
    TensorType,
    Type,
)
from ingot.ir.node import shown_sources

Reference = Callable[..., Any]

# Attribute types in addition to bool, int, float, DType and Literal words. Dims may be symbolic in a graph; a reference
# gets bound ones.
Ints = tuple[int, ...]
Subgraph = Annotated[Any, Graph]
Size = Annotated[Any, Known]
Sizes = Annotated[Any, tuple[Known, ...]]


def op(
    *,
    infer: Callable[..., Any],
    samples: Sequence[Sample],
    outputs: int = 1,
    view: bool = False,
    computes: bool = True,
    inplace: tuple[int, ...] = (),
    acts_on: str = "tensor",
    addresses: Mapping[str, Index | str] | None = None,
    tolerance: dict[DType, float] | None = None,
    domain: tuple[float, float] = (-2.0, 2.0),
    any_type: bool = False,
    expand: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Callable[[Reference], Reference]:
    """Declare an op: the function is its reference, its signature the schema, its first docstring line the docs.

    Positional parameters are operands (default None: optional; `*xs`: variadic); keyword-only ones are attributes,
    whose annotations define the values accepted from text (see `ingot.ir.text`).
    infer(*types, **attributes) returns the output type, or a tuple of them; it raises ShapeError with values.
    outputs: the number of results; 0 if the inference determines it, and returns a tuple.
    view: the result is a view of the operand's memory.
    computes: whether it computes in the dtype of its operands, so that `compute` may widen them; False if it only moves
    or converts elements, or rounds each step itself.
    inplace: operands that the result may overwrite; of several results, each the operand of its own index.
    acts_on: "element", if an element of the result depends only on the operands' elements at its position, after
    broadcasting; "row", if this holds for rows of the last dim, and operands with one dim are shared by all rows;
    "tensor" otherwise. addresses: for every operand that only accepts integers, its range, if its elements address
    something, or the reason why any number is valid. Executors reject elements outside of the range, with an InputError
    or a fault.
    tolerance: per dtype, relative to max(1, |expected|), for any executor against the float64 reference; default f32
    2e-6. domain: the range from which samples draw floats.
    any_type: operands may be sequences, optionals and tensors of unknown rank, which its inference checks; a reference
    gets a list, None or an array.
    A graph as an attribute is a function of arrays for its reference; see `ingot.run.interpret`.
    expand(g, *operands, **attributes): build the op from simpler ops, through an `Expansion`; returns the value name,
    or a tuple of them. The record's `expand(graph, node)` adds those nodes before `node`; see `expand_node`.
    """
    assert acts_on == "tensor" or (acts_on in ("element", "row") and outputs == 1), (acts_on, outputs)

    def declare(function: Reference) -> Reference:
        operands, optional, attributes, variadic = [], set(), {}, False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                variadic = True
                operands.append(parameter.name)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                attributes[parameter.name] = REQUIRED if parameter.default is parameter.empty else parameter.default
            else:
                operands.append(parameter.name)
                if parameter.default is None:
                    optional.add(parameter.name)
        hints = get_type_hints(function, include_extras=True)
        label = name or function.__name__.rstrip("_")
        known = OPS[label].function if label in OPS else function
        # After an interrupted import, the next import declares the same ops again.
        assert known.__qualname__ == function.__qualname__, f"op {label} is declared twice"
        assert function.__doc__, f"op {label} has no documentation"
        OPS[label] = Op(
            label, function, infer, tuple(operands), frozenset(optional), variadic, attributes,
            {attribute: hints[attribute] for attribute in attributes},
            outputs, view, computes and not view, inplace, acts_on, dict(addresses or {}), tuple(samples),
            {f32: 2e-6, f16: 2e-3, f64: 1e-12} | (tolerance or {}), domain, any_type,
            any(hints[attribute] == Subgraph for attribute in attributes), expand and _bound(expand),
            " ".join((function.__doc__ or "").partition("\n\n")[0].split()),  # `python -OO` removes docstrings
        )  # fmt: skip
        return function

    return declare


class Builder:
    """Add ops to a graph by name: `builder.mul(x, 0.5)` returns the name of the result."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def __getattr__(self, op: str) -> Callable[..., str]:
        if op not in OPS:
            raise AttributeError(f"no op {op!r}")
        return functools.partial(self._add, op)

    def type(self, name: str) -> TensorType:
        """Return the type of a value."""
        return self.graph.type(name)

    def _add(self, op: str, *operands: str | float | int | None, **attributes: Any) -> str:
        """Add a node; numbers become constants. Returns the name of its output."""
        raise NotImplementedError


class Expansion(Builder):
    """Add the nodes that an op expands into, before the expanded node, and name their values after its value.

    A float operand becomes a constant of the dtype of the node's first output, an int operand one of i64.
    """

    def __init__(self, graph: Graph, node: Node):
        super().__init__(graph)
        self.node = node

    def _add(self, op: str, *operands: str | float | int | None, **attributes: Any) -> str:
        names = [self._constant(o) if isinstance(o, (int, float)) else o for o in operands]
        hint = f"{self.node.outputs[0]}.{op}"
        return self.graph.add(op, names, hint, before=self.node, **attributes).output

    def add_all(self, op: str, *operands: str | None, **attributes: Any) -> tuple[str, ...]:
        """Add an op with several results, and return all of them."""
        names = self.node.outputs
        hints = [f"{names[min(i, len(names) - 1)]}.{op}" for i in range(OPS[op].outputs or len(names))]
        return self.graph.add(op, operands, hints, before=self.node, **attributes).outputs

    def constant(self, value: float | int | np.ndarray, dtype: DType) -> str:
        """Add a constant of a dtype: a number, shape [], or an array."""
        name = self.graph.fresh(f"{self.node.outputs[0]}.constant")
        return self.graph.add_constant(name, np.array(value, dtype.numpy))

    def _constant(self, value: float | int) -> str:
        return self.constant(value, i64 if isinstance(value, int) else self.type(self.node.outputs[0]).dtype)


def _bound(expand: Callable[..., Any]) -> Callable[[Graph, Node], str | tuple[str, ...]]:
    return lambda graph, node: expand(Expansion(graph, node), *node.operands, **node.attributes)


def expand_node(graph: Graph, node: Node) -> tuple[str, ...]:
    """Replace a node by simpler ones; its values keep their names, which are returned."""
    assert node.op.expand is not None, f"op {node.op.name} has no expansion"
    results = node.op.expand(graph, node)
    return replace_node(graph, node, results if isinstance(results, tuple) else (results,))


def replace_node(graph: Graph, node: Node, results: Sequence[str]) -> tuple[str, ...]:
    """Replace the results of a node by other values, which get their names; return the names."""
    names, operands = node.outputs, node.operands
    for name, result in zip(names, results, strict=True):
        graph.replace_uses(name, result)
    graph.remove(node)
    for name, result in zip(names, results, strict=True):
        if result not in operands and result in graph.values:  # one value may serve several results
            graph.rename(result, name)
    return names


def compute(
    op: Op,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    wide: DType = f32,
    *,
    types: Sequence[Type | None] | None = None,
    bodies: Mapping[str, Callable[..., Any]] = {},
    function: Callable[..., Any] | None = None,
) -> list[Any]:
    """Evaluate an op without symbols with its reference. Raises InputError for operands that it rejects.

    Floats of 16 bits are computed in the dtype `wide`, and rounded once. types: of operands, if some are not arrays.
    bodies: the functions that the reference gets for attributes that are graphs. function: replaces the reference.
    """
    if types is None:
        types = [None if a is None else TensorType(from_numpy(a.dtype), a.shape) for a in operands]
    given = list(operands)
    if op.computes:
        given = [
            a.astype(wide.numpy) if isinstance(a, np.ndarray) and from_numpy(a.dtype) in (f16, bf16) else a
            for a in operands
        ]
    _check_addresses(op, operands, attributes)
    with np.errstate(all="ignore"):
        result = (function or op.function)(*given, **{**attributes, **bodies})
        results = result if isinstance(result, tuple) else (result,)
        inferred = op.infer(*types, **attributes)
        inferred = inferred if isinstance(inferred, tuple) else (inferred,)
        return [_stored(each, type) for each, type in zip(results, inferred, strict=True)]


def _check_addresses(op: Op, operands: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    """Raise InputError for an element of an operand outside of the range in the op's record."""
    for name, index in op.indices.items():
        position = op.operand_names.index(name)
        if not index.own and position < len(operands) and operands[position] is not None:
            expect_within(attributes.get("what", name), operands[position], index.range(*operands, **attributes))


def expect_within(what: str, indices: np.ndarray, allowed: range) -> None:
    """Raise InputError unless each index is in a range of step 1."""
    bad = indices[(indices < allowed.start) | (indices >= allowed.stop)]
    if bad.size:
        got, expected = bad.flat[0], f"{allowed.start}..{allowed.stop - 1}"
        raise InputError(f"{what}: index out of range, got {got}, expected {expected}")


def _stored(result: Any, type: Type) -> Any:
    """Convert a result to an array: numpy returns scalars for rank 0, and converts `str` to fixed-length text.

    A sequence, a dictionary and an absent value are returned unchanged.
    """
    if result is None or isinstance(result, (list, dict)):
        return result
    while isinstance(type, OptionalType):
        type = type.element
    assert not isinstance(type, (MapType, SequenceType)), f"got {result} for {type}"
    if type.dtype is string:
        return np.asarray(result, object)
    return np.asarray(result).astype(type.dtype.numpy, copy=False) if type.dtype in (f16, bf16) else np.asarray(result)


def evaluate(node: Node, operands: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Evaluate a node as `compute` does; an InputError names the node."""
    try:
        return compute(node.op, operands, node.attributes)
    except InputError as error:
        name = node.outputs[0]
        raise InputError(f"node {name!r}: {error}{shown_sources(node.sources, name)}") from error


def sample(operands: str, **attributes: Any) -> Sample:
    """Describe a test case: `x[2,5,64] ids:i64>-3<7[3] mask:bool[5] none`.

    Floats are drawn from the op's domain, `>` and `<` narrow it (for integers low <= value < high, by default 0 and 5);
    a plain `none` omits an optional operand.
    """
    return Sample(operands, attributes)


_OPERAND = re.compile(r"\w+(?::(\w+))?(?:>(-?[\d.]+))?(?:<(-?[\d.]+))?\[([\d,]*)\]")


def draw(operands: str, rng: np.random.Generator, domain: tuple[float, float]) -> list[np.ndarray | None]:
    """Draw random arrays for a sample's operands; None for an omitted one."""
    return [None if part == "none" else _draw_array(part, rng, domain) for part in operands.split()]


def _draw_array(part: str, rng: np.random.Generator, domain: tuple[float, float]) -> np.ndarray:
    match = _OPERAND.fullmatch(part)
    assert match, f"not an operand of a sample: {part!r}"
    word, low, high, dims = match.groups()
    dtype = DTYPES[word or "f32"]
    shape = tuple(int(d) for d in dims.split(",")) if dims else ()
    if dtype is boolean:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype is string:
        array = np.empty(shape, object)
        array.ravel()[:] = ["".join(word) for word in rng.choice(["a", "b", "B", " "], (array.size, 3))]
        return array
    if dtype.kind == "f":
        return rng.uniform(float(low or domain[0]), float(high or domain[1]), shape).astype(dtype.numpy)
    return rng.integers(int(low or 0), int(high or 5), shape).astype(dtype.numpy)


def expect_kind(where: str, type: TensorType, kinds: str) -> None:
    """Raise ShapeError unless the dtype's kind is one of `kinds`; see `DType`."""
    if type.dtype.kind not in kinds:
        names = {"f": "float", "i": "signed", "u": "unsigned", "b": "bool", "n": "narrow", "s": "string"}
        expected = " or ".join(names[k] for k in kinds)
        raise ShapeError(f"{where}: wrong dtype, got {type}, expected {expected}")


def expect_numbers(where: str, dtype: DType, *values: Any) -> None:
    """Raise ShapeError unless each value is a number of the dtype, or symbolic."""
    for value in values:
        if isinstance(value, (int, float)) and not dtype.holds(value):
            raise ShapeError(f"{where}: bad number, got {value}, expected one of {dtype}")


def same_as(index: int, kinds: str = "fiub", name: str = "op") -> Callable[..., TensorType]:
    """Return an inference: the type of operand `index`, whose dtype must be of one of `kinds`."""

    def infer(*types: TensorType, **_: Any) -> TensorType:
        expect_kind(name, types[index], kinds)
        return types[index]

    return infer


def unify(where: str, a: Dim, b: Dim, *arguments: object) -> Dim:
    """Return the dim that two equal dims denote; an int is preferred. Raises ShapeError when they cannot be
    equal.

    arguments: the values for the placeholders {} of `where`, formatted only for an error.
    """
    if a is None or b is None:
        return b if a is None else a
    is_known = isinstance(a, int) and isinstance(b, int)
    if a != b and (is_known or isinstance(a - b, int)):
        position = where.format(*arguments) if arguments else where
        raise ShapeError(f"{position}: dims differ, got {a} and {b}")
    return a if isinstance(a, int) or not isinstance(b, int) else b


def broadcast(name: str, dtype: DType | None = None, first: int = 0, kinds: str = "fiub") -> Callable[..., TensorType]:
    """Return an inference with numpy broadcasting; operands from `first` on share one dtype, the result's unless
    `dtype` is given.
    """

    def infer(*types: TensorType, **_: Any) -> TensorType:
        operands = types[first:]
        if any(t.dtype is not operands[0].dtype for t in operands):
            raise ShapeError(f"{name}: operands differ in dtype, got {', '.join(map(str, types))}")
        expect_kind(name, operands[0], kinds)
        return TensorType(dtype or operands[0].dtype, broadcast_shapes(name, *(t.shape for t in types)))

    return infer


def broadcast_shapes(where: str, *shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return the broadcast shape; a symbolic dim is assumed equal to an int other than 1. Raises ShapeError."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max(map(len, shapes))
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            result[i] = _broadcast_dim(where, result[i], dim, shapes)
    return tuple(result)


def _broadcast_dim(where: str, a: Dim, b: Dim, shapes: Sequence[tuple[Dim, ...]]) -> Dim:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise ShapeError(f"{where}: shapes do not broadcast, got {' and '.join(str(list(s)) for s in shapes)}")
    if a is None or b is None:
        return b if a is None else a
    return broadcast_dims(a, b)


def normalize_axis(where: str, axis: int, rank: int) -> int:
    """Return `axis` counted from the front. Raises ShapeError when it is out of range."""
    if not -rank <= axis < max(rank, 1):
        raise ShapeError(f"{where}: axis out of range, got {axis}, expected {-rank}..{rank - 1}")
    return axis + rank if axis < 0 else axis


def product(dims: Sequence[Dim]) -> Dim:
    """Return the product of dims; None when one is unknown."""
    total: int | Expr = 1
    for dim in dims:
        if dim is None:
            return None
        total = total * dim
    return total

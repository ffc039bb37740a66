"""Packed weights: the computation of a kernel's weight bytes from weights and constants.

A packed weight belongs to no graph, so programs may outlive the graph they were lowered from. Its key is the text of
the computation: two lowerings of one graph agree on it, and constants with the same name but different elements get
different keys.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError, ResourceError
from ingot.ir.dtype import DType, content, f32
from ingot.ir.graph import OPS, REQUIRED, Graph, Node, TensorType, Type, type_symbols
from ingot.ir.sized import has_sizes, is_sized
from ingot.ir.text import dump_call
from ingot.lower.formats import Format
from ingot.ops.define import evaluate
from ingot.support.files import release
from ingot.support.record import record

_MAX_TEXT = 1 << 20  # of a key: a value that each of many nodes reads twice would exhaust memory


@record(eq=False)
class WeightExpr:
    """A value that depends on no input, as an expression of weights, constants and states.

    name: as in graphs and keys. types: of all results of its op; for a weight or constant, its own type. output: the
    index of the result. node: the op with its attributes, or None. operands: of the op. data: the array of a weight or
    constant; None for a weight of which only the type is known.
    """

    name: str
    types: tuple[Type, ...]
    output: int = 0
    node: Node | None = None
    operands: tuple[WeightExpr | None, ...] = ()
    data: np.ndarray | None = None
    is_weight: bool = False

    @property
    def type(self) -> TensorType:
        """The type of a tensor."""
        type = self.types[self.output]
        assert isinstance(type, TensorType), f"{self.name} is {type}"
        return type

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.type.dims

    @property
    def source(self) -> WeightExpr:
        """The first operand."""
        source = self.operands[0]
        assert source is not None
        return source

    @property
    def inputs(self) -> tuple[WeightExpr, ...]:
        """The operands of an op that allows no absent operands."""
        return tuple([operand for operand in self.operands if operand is not None])

    @property
    def op(self) -> str | None:
        """The name of the op; None for a weight or constant."""
        return None if self.node is None else self.node.op.name

    def derive(self, op: str, *others: WeightExpr, **attributes: Any) -> WeightExpr:
        """Apply an op of one result to the value and the values after it."""
        return _build_expr(op, (self, *others), f"{self.name}.{op}", attributes)

    def text(self) -> str:
        """Return the text of the computation, down to the names of weights and the contents of constants.

        It contains no names of constants and intermediate values, which differ between graphs of the same computation.

        Raises LimitError.
        """
        if self.node is None:
            return self.name if self.is_weight else f"{self.types[0]} {_digest(self.data)}"
        inner = " ".join(f"({operand.text()})" for operand in self.inputs)
        if len(inner) > _MAX_TEXT:
            raise LimitError(
                f"value {self.name!r}: expression too large, expected at most {_MAX_TEXT} characters of text"
            )
        which = f"output {self.output} of " if len(self.types) > 1 else ""
        operands = [None if operand is None else f"x{i}" for i, operand in enumerate(self.operands)]
        return f"{which}{dump_call(self.node, operands, self.types)} of {inner}"

    def sources(self) -> Iterator[WeightExpr]:
        """Yield the weights and constants of the expression; one that is read twice comes twice."""
        if self.node is None:
            yield self
        for operand in self.inputs:
            yield from operand.sources()

    def evaluate(self) -> np.ndarray:
        """Evaluate with the reference ops.

        Raises ResourceError when out of memory, LoadError for a weight without data, InputError for operands that an op
        is not defined for.
        """
        if self.node is None:
            if self.data is None:
                reason = "a saved program may contain it only as packed for native"
                raise LoadError(f"weight {self.name!r}: has no data, got only its type {self.types[0]}; {reason}")
            return self.data
        return self._apply(*(None if operand is None else operand.evaluate() for operand in self.operands))

    def _apply(self, *operands: np.ndarray | None) -> np.ndarray:
        assert self.node is not None
        try:
            return evaluate(self.node, operands)[self.output]
        except MemoryError as error:
            raise ResourceError(f"constant {self.name!r}: no memory, {error}") from error

    @property
    def is_divisible(self) -> bool:
        """Whether slices can be read without evaluating all of the matrix: a weight, a cast, or computed by rows."""
        return self.node is None or (self.op == "cast" and self.source.is_divisible) or self.is_by_rows

    def part(self, ranges: tuple[slice, ...]) -> np.ndarray:
        """Return a slice of a matrix; a cast or a matrix computed by rows is evaluated for this slice only."""
        if self.node is not None and self.op == "cast":
            source = self.source.part(ranges)
            result = self._apply(source)
            release(source)
            return result
        if self.node is not None and self.is_by_rows:
            return self.rows(ranges[0])[(slice(None), *ranges[1:])]
        return self.evaluate()[ranges]

    @property
    def is_by_rows(self) -> bool:
        """Whether rows can be computed from the same rows of the operands and from constants of one element.

        Rows of a transposed matrix come from columns of the operand, rows of a concat from rows of one of its operands.
        """
        node = self.node
        if node is None:
            return True
        if self.op == "concat" and node.axis == 0:
            return all(operand.is_by_rows for operand in self.inputs)
        if self.op == "permute" and self.type.rank == 2 and node.axes == (1, 0):
            return self.source.node is None or self.source.op == "cast"
        if self.op == "gather":
            return node.axis > 0 and self.source.is_by_rows
        if self.op not in _BY_ROWS or 0 in node.attributes.get("axes", ()):
            return False
        if self.op in ("quantize", "dequantize") and node.axis != (1 if node.block else 0):
            return False
        if (self.op == "unpack" and node.axis == 0) or (self.op == "reshape" and self.source.type.rank == 0):
            return False
        return all(o.type.rank == 0 or (o.dims[:1] == self.dims[:1] and o.is_by_rows) for o in self.inputs)

    def rows(self, rows: slice, known: dict[WeightExpr, np.ndarray] | None = None) -> np.ndarray:
        """Return some rows of a value that `is_by_rows`; the pages of files that were read for them are released.

        known: rows of subexpressions that were read before and are not released.
        """
        evaluated = {} if known is None else known
        if self.type.rank == 0:
            return self.evaluate()
        node = self.node
        if self not in evaluated and node is None:
            evaluated[self] = self.evaluate()[rows]
        elif self not in evaluated and self.op == "concat":
            evaluated[self] = self._joined_rows(*rows.indices(self.dims[0])[:2])
        elif self not in evaluated and self.op == "permute":
            evaluated[self] = self.source.part((slice(None), rows)).T
        elif self not in evaluated and self.op == "gather":
            evaluated[self] = self._apply(self.source.rows(rows, evaluated), self.inputs[1].evaluate())
        elif self not in evaluated and node is not None:
            operands = [operand.rows(rows, evaluated) for operand in self.inputs]
            if self.op == "reshape":
                evaluated[self] = operands[0].reshape(len(operands[0]), *self.dims[1:])
            else:
                evaluated[self] = self._apply(*operands)
        if known is None and node is not None:
            for value, array in evaluated.items():
                if value.node is None:
                    release(array)
        return evaluated[self]

    def _joined_rows(self, begin: int, end: int) -> np.ndarray:
        """Return rows of a concat from the operands that contain them; the file pages that were read are released."""
        pieces: list[np.ndarray] = []
        first = 0
        for operand in self.inputs:
            low, high = max(begin, first), min(end, first + operand.dims[0])
            if low < high or (begin == end and not pieces):
                pieces.append(operand.rows(slice(low - first, max(low, high) - first)))
            first += operand.dims[0]
        joined = np.concatenate(pieces)
        for piece in pieces:
            release(piece)
        return joined

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the value piece by piece along its first axis: for a concat on that axis, one weight after another."""
        node = self.node
        if node is None or self.op not in ("cast", "permute", "reshape", "concat"):
            yield self.evaluate()
        elif self.op == "cast":
            for piece in self.source.pieces():
                result = node.op.function(piece, **node.attributes)
                release(piece)
                yield result
        elif self.op == "permute" and node.axes[0] == 0:
            yield from (piece.transpose(node.axes) for piece in self.source.pieces())
        elif self.op == "concat" and node.axis == 0:
            for operand in self.inputs:
                yield from operand.pieces()
        elif self.op == "reshape" and self.source.dims[1:] == self.dims[2:] != ():
            rows, held = self.dims[1], 0
            waiting: list[np.ndarray] = []
            for piece in self.source.pieces():
                waiting.append(piece)
                held += len(piece)
                if rows and held % rows == 0:
                    whole = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
                    yield whole.reshape(-1, *self.dims[1:])
                    waiting, held = [], 0
        else:
            yield self.evaluate()

    def side_by_side(self, axis: int, panel: int) -> list[WeightExpr]:
        """Return the operands of a concat of columns if each but the last fills panels of this width; else [self]."""
        if self.node is None or self.op != "concat" or self.node.axis != axis:
            return [self]
        whole = all(operand.dims[axis] % panel == 0 for operand in self.inputs[:-1])
        return [each for operand in self.inputs for each in operand.side_by_side(axis, panel)] if whole else [self]

    def halves(self, axis: int) -> list[tuple[WeightExpr, int]]:
        """Return the matrix of each half of the columns, and the half's first column in that matrix."""
        half = self.dims[axis] // 2
        is_pair = self.node is not None and self.op == "concat" and self.node.axis == axis
        if is_pair and [operand.dims[axis] for operand in self.inputs] == [half, half]:
            return [(operand, 0) for operand in self.inputs]
        return [(self, 0), (self, half)]

    def is_stored(self, format: Format) -> bool:
        """Return whether a matrix of floats is stored in a format in a file, possibly moved after it was decoded."""
        if format.decoder is None:
            return True
        if format.scales is not None:
            return self.groups(format) is not None
        if not self._begins_with(format):
            return False
        if self.op == format.decoder:
            return True
        return self._keeps_blocks(format) and all(operand.is_stored(format) for operand in self.inputs)

    def _begins_with(self, format: Format) -> bool:
        """Return whether the first operand of all moves is decoded from a format's arrays."""
        value = self
        while value.op in format.moves:
            value = value.source
        node = value.node
        if node is None or value.op != format.decoder or value.type.dtype is not f32:
            return False
        is_type = format.type is None or node.type == format.type
        return is_type and tuple([operand.type.dtype for operand in value.inputs]) == format.arrays

    def _keeps_blocks(self, format: Format) -> bool:
        """Return whether a move splits no block of a row."""
        node = self.node
        if format.stored.elements == 1 or node is None or self.op != "slice":
            return True
        return (node.starts[-1], node.stops[-1], node.steps[-1]) == (0, self.source.dims[-1], 1)

    def groups(self, format: Format) -> Groups | None:
        """Return how the values of a quantized matrix share scales; None if it is not stored in the format."""
        if not self._begins_with(format):
            return None
        if self.op == format.decoder:
            return Groups.of(self, format.shared.elements) if self.type.rank == 2 else None
        found = {operand.groups(format) for operand in self.inputs}
        return next(iter(found)).moved(self) if len(found) == 1 and None not in found else None  # type: ignore[union-attr]

    def stored(self, format: Format) -> tuple[WeightExpr, ...]:
        """Return the stored arrays of a matrix: moves are applied before decoding, also to scales and zero points."""
        if format.decoder is None:
            return (self,)
        if self.op == format.decoder:
            return (self.source, *(_as_matrix(self, beside) for beside in self.inputs[1:]))
        parts = zip(*(operand.stored(format) for operand in self.inputs), strict=True)
        return tuple(self._moved(operands, f"{self.name}.{format}.{i}") for i, operands in enumerate(parts))

    def _moved(self, operands: tuple[WeightExpr, ...], name: str) -> WeightExpr:
        """Apply the op of the value to other operands; a slice of scales or blocks ends at their last index."""
        assert self.node is not None and self.op is not None
        attributes = self.node.attributes
        if self.op == "slice":
            attributes = attributes | {"stops": tuple(map(min, attributes["stops"], operands[0].dims))}
        return _build_expr(self.op, operands, name, attributes)


# Ops whose result rows are computed from the same rows of their operands, unless they reduce the first axis.
_BY_ROWS = frozenset(
    (
        "abs",
        "bitcast",
        "bitwise_xor",
        "cast",
        "decode_blocks",
        "dequantize",
        "div",
        "greater",
        "mul",
        "neg",
        "quantize",
        "quantize_groups",
        "reduce_max",
        "reduce_min",
        "reshape",
        "unpack",
        "where",
    )
)


@dataclass(frozen=True, slots=True)
class Groups:
    """How a quantized matrix shares scales: one per index of `axis` and per `size` elements along the other axis."""

    axis: int
    size: int

    @staticmethod
    def of(decoded: WeightExpr, unit: int) -> Groups | None:
        """Return the groups of a dequantized matrix if they are whole units of a panel or span the axis; else None."""
        node = decoded.node
        assert node is not None
        axis, size, scales = node.axis, node.block, decoded.inputs[1].type
        if size == 0:
            return Groups(axis, decoded.dims[1 - axis]) if scales.rank == 1 and scales.dims[0] > 1 else None
        return Groups(1 - axis, size) if size % unit == 0 or size >= decoded.dims[axis] else None

    def moved(self, value: WeightExpr) -> Groups | None:
        """Return the groups after a move; None if the move splits or merges groups."""
        node = value.node
        assert node is not None
        if value.op == "permute":
            return Groups(node.axes.index(self.axis), self.size)
        if value.op == "concat":
            return self if node.axis == self.axis else None
        other = 1 - self.axis
        is_whole = (node.starts[other], node.stops[other], node.steps[other]) == (0, value.source.dims[other], 1)
        return self if is_whole else None


def _as_matrix(decoded: WeightExpr, beside: WeightExpr) -> WeightExpr:
    """Return the scales or zero points of a dequantized matrix as a matrix."""
    assert decoded.node is not None
    if beside.type.rank == 2:
        return beside
    (count,) = beside.dims
    return beside.derive("reshape", shape=(count, 1) if decoded.node.axis == 0 else (1, count))


def _build_expr(op: str, operands: tuple[WeightExpr, ...], name: str, attributes: dict[str, Any]) -> WeightExpr:
    """Return the weight expression of an op of one result, such as permute of `w`; its type is inferred."""
    definition = OPS[op]
    values = {k: v for k, v in definition.attributes.items() if v is not REQUIRED} | attributes
    inferred = definition.infer(*(operand.type for operand in operands), **values)
    node = Node(definition, tuple(operand.name for operand in operands), (name,), values)
    return WeightExpr(name, (inferred,), node=node, operands=operands)


def _digest(constant: np.ndarray | None) -> str:
    assert constant is not None
    return hashlib.sha256(content(constant)).hexdigest()[:32]


def weight_expr(graph: Graph, name: str, known: dict[str, WeightExpr] | None = None) -> WeightExpr:
    """Return the expression of a value that depends on no input. known: expressions built before, by name."""
    known = {} if known is None else known
    if name not in known:
        edge = graph.values[name]
        node = edge.producer
        if node is None:
            known[name] = WeightExpr(name, (edge.type,), data=edge.data, is_weight=edge.kind == "weight")
        else:
            operands = tuple(None if o is None else weight_expr(graph, o, known) for o in node.operands)
            types = tuple(graph.values[output].type for output in node.outputs)
            attributes = dict(node.attributes)  # the graph may change its own
            own = Node(node.op, node.operands, node.outputs, attributes, node.sources)
            known[name] = WeightExpr(name, types, node.outputs.index(name), own, operands)
    return known[name]


def weight_exprs(
    graph: Graph, kinds: tuple[str, ...] = ("weight", "constant"), known: Collection[str] = ()
) -> set[str]:
    """Return the values that depend only on values of these kinds and on sources (iota, dims).

    Their shapes must be known at compile time.

    A shape that depends on data or on a size of a run excludes a value. known: values of other kinds that are also
    allowed.
    """
    static = {name for name, value in graph.values.items() if value.kind in kinds}
    static.update(known)
    may_be_sized = has_sizes(graph)
    for node in graph.nodes:
        if node.outputs[0] in known:
            continue
        for operand in node.operands:
            if operand is not None and operand not in static:
                break
        else:
            if has_shapes(graph, node) and not (may_be_sized and is_sized(graph, node)):
                static.update(node.outputs)
    return static


def has_shapes(graph: Graph, node: Node) -> bool:
    """Return whether a node computes tensors from tensors without a subgraph, and uses no dim that a run measures."""
    types = [graph.values[name].type for name in (*node.operands, *node.outputs) if name is not None]
    if not all(isinstance(type, TensorType) and None not in type.shape for type in types):
        return False
    if any(isinstance(value, Graph) for value in node.attributes.values()):
        return False
    if not graph.measured:
        return True
    return not graph.mentioned(node) and graph.measured.keys().isdisjoint(
        s for type in types for s in type_symbols(type)
    )


@record(eq=False)
class PackedWeight:
    """How the bytes of a packed matrix are computed: once, in a store, or by steps of each run if it reads a state.

    layout: "raw" (unchanged, row-major), "panels" (a [k, n] matrix as [n/32][k][32], zero-padded; transposed: the value
    is [n, k]; several matrices one after another) or "gate_panels" (one [k, 2f] matrix, f a multiple of 16, as
    [f/16][k][32]: panel p holds columns 16p.. of the first half, then 16p.. of the second), for panels of 32 columns.
    format: the storage format of elements, always set for panels; None for consecutive elements of the value's dtype.
    beside: the scales and optionally the zero points of quantized weights, each [columns, groups of `group` elements],
    transposed like the value. key: the text of the complete computation; the name of the value if steps pack it,
    without a store. nbytes: the size of the result in bytes.
    """

    key: str
    value: WeightExpr
    layout: str
    transposed: bool
    format: Format | None
    beside: tuple[WeightExpr, ...] = ()
    group: int = 0
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", self._size())

    @property
    def dtype(self) -> DType:
        """The dtype of the value and of the array of bytes; quantized values and scales are packed without gaps."""
        dtype = self.value.type.dtype
        return dtype if self.beside else dtype.held

    @property
    def parts(self) -> tuple[WeightExpr, ...]:
        """The packed expressions: the value, then its scales and zero points."""
        return (self.value, *self.beside)

    def sources(self) -> Iterator[WeightExpr]:
        """Yield the weights and constants of the expressions; one that is read twice comes twice."""
        for part in self.parts:
            yield from part.sources()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value; for blocks, the shape of the decoded elements."""
        dims = self.value.dims
        return (*dims[:-1], self.format.columns(dims[-1])) if self.format is not None and dims else dims

    @property
    def panels(self) -> Format:
        """The format of panels."""
        assert self.format is not None and self.layout != "raw", f"{self.key}: no panels"
        return self.format

    def _size(self) -> int:
        if self.format is None:
            return self.dtype.nbytes(self.value.type.size)
        if self.layout != "raw":
            *several, k, n = self.shape
            n, k = (k, n) if self.transposed else (n, k)
            return math.prod(several) * self.format.panel_bytes(k, n)
        *rows, columns = self.shape
        return math.prod(rows) * self.format.stored.size(columns)


def make_packed_weight(
    value: WeightExpr,
    layout: str = "raw",
    transposed: bool = False,
    format: Format | None = None,
    beside: tuple[WeightExpr, ...] = (),
    group: int = 0,
) -> PackedWeight:
    """Return the packed weight of a value in a layout. Raises LimitError if the value's expression is too large."""
    key = f"{layout}{'.transposed' if transposed else ''} {value.text()}"
    for each in beside:
        key += f" by groups of {group} ({each.text()})"
    return PackedWeight(key, value, layout, transposed, format, beside, group)


def panel_tables(graph: Graph, static: set[str]) -> set[str]:
    """Return the static [n, k] values that some matmul reads packed by rows."""
    found = set()
    for node in graph.nodes:
        if node.op.name != "matmul" or not node.transpose_b or node.operands[1] not in static:
            continue
        if graph.type(str(node.operands[1])).rank == 2:
            found.add(str(node.operands[1]))
    return found

"""Weight expressions: values that depend on no input, as computations over weights, constants and states."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError, ResourceError
from ingot.ir.dtype import content
from ingot.ir.graph import OPS, REQUIRED, Graph, Node, TensorType, Type, type_symbols
from ingot.ir.sized import has_sizes, is_sized
from ingot.ir.text import dump_call
from ingot.ops.define import evaluate
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
        return build_expr(op, (self, *others), f"{self.name}.{op}", attributes)

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
        return self.apply(*(None if operand is None else operand.evaluate() for operand in self.operands))

    def apply(self, *operands: np.ndarray | None) -> np.ndarray:
        """Apply the op to other arrays than its operands. Raises ResourceError when out of memory."""
        assert self.node is not None
        try:
            return evaluate(self.node, operands)[self.output]
        except MemoryError as error:
            raise ResourceError(f"constant {self.name!r}: no memory, {error}") from error


def build_expr(op: str, operands: tuple[WeightExpr, ...], name: str, attributes: dict[str, Any]) -> WeightExpr:
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

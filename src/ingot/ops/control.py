"""Ops that run subgraphs. A subgraph is an attribute; values that it reads from the enclosing graph are its op's last
operands.

For a reference, a subgraph is a function of arrays that returns a tuple of them; `outputs` is their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingot.errors import InputError, LimitError, ShapeError
from ingot.ir.dtype import boolean, i64
from ingot.ir.graph import (
    Graph,
    Node,
    OptionalType,
    TensorType,
    Type,
    UnrankedType,
    compatible,
    forget,
    join,
    type_symbols,
)
from ingot.ops.define import Ints, Subgraph, op
from ingot.ops.sequence import is_single

MAX_SCAN_BYTES = 1 << 34  # of all scan outputs of one loop


def result_types(body: Graph, operands: Sequence[Type | None]) -> list[Type]:
    """Return the types of a subgraph's results for its readers: symbols of its own are unknown dims outside."""
    known = {name for type in operands if type is not None for name in type_symbols(type)}
    return [forget(body.values[name].type, known) for name in body.outputs.values()]


def _fits(declared: Type, type: Type) -> bool:
    """Return whether a value of a type fits a declared type; a present value also fits an optional type."""
    if isinstance(declared, OptionalType) and not isinstance(type, OptionalType):
        return _fits(declared.element, type)
    return compatible(declared, type)


def _expect_operands(where: str, body: Graph, types: Sequence[Type | None]) -> None:
    """Raise ShapeError unless values of these types fit the inputs of a subgraph."""
    declared = [body.values[name].type for name in body.inputs]
    fits = len(types) == len(declared) and all(
        type is not None and _fits(each, type) for each, type in zip(declared, types, strict=True)
    )
    if not fits:
        got = ", ".join(map(str, types))
        expected = ", ".join(map(str, declared))
        raise ShapeError(f"{where}: operands do not fit the subgraph, got {got}, expected {expected}")


def _expect_flag(where: str, type: Type | None) -> None:
    if type is None or not is_single(type, boolean):
        raise ShapeError(f"{where}: bad condition, got {type}, expected one bool")


def _infer_if(condition, *operands, then_branch, else_branch):
    _expect_flag("if", condition)
    count = len(then_branch.inputs)
    _expect_operands("if", then_branch, operands[:count])
    _expect_operands("if", else_branch, operands[count:])
    chosen, other = (result_types(branch, operands) for branch in (then_branch, else_branch))
    if len(chosen) != len(other):
        raise ShapeError(f"if: branches differ, got {len(chosen)} and {len(other)} results")
    return tuple(join(a, b) for a, b in zip(chosen, other, strict=True))


@op(infer=_infer_if, outputs=0, any_type=True, computes=False, samples=[])
def if_(condition, *operands, then_branch: Subgraph, else_branch: Subgraph):
    """The results of one of two subgraphs; the operands are those of the first, then those of the second."""
    count = then_branch.inputs
    return then_branch(*operands[:count]) if condition.item() else else_branch(*operands[count:])


@dataclass(frozen=True, slots=True)
class Inner:
    """A subgraph of a node. captured: inputs with the same value in each iteration, and their operands."""

    attribute: str
    graph: Graph
    captured: dict[str, str]


def inner_graphs(node: Node) -> list[Inner]:
    """Return the subgraphs of a node; of an `if`, the branch for true comes first."""
    if node.op.name == "if":
        starts = {"then_branch": (0, 1), "else_branch": (0, 1 + len(node.then_branch.inputs))}
    elif node.op.name == "loop":
        starts = {"body": (2 + node.carried, 2 + node.carried)}
    elif node.op.name == "scan":
        first = node.carried + len(node.input_axes)
        starts = {"body": (first, first)}
    elif node.op.name == "sequence_map":
        starts = {"body": (node.sequences, node.sequences)}
    else:
        return []
    found = []
    for name, (first, operand) in starts.items():
        graph: Graph = node.attributes[name]
        operands = [str(each) for each in node.operands[operand:]]
        found.append(Inner(name, graph, dict(zip(graph.inputs[first:], operands, strict=False))))
    return found


def _infer_refuse(condition, *, why, result):
    if type_symbols(result):
        raise ShapeError(f"refuse: bad type, got {result}, expected one without symbols")
    return result


@op(infer=_infer_refuse, any_type=True, computes=False, samples=[])
def refuse(condition, *, why: str, result: Type):
    """An error instead of a result: a branch that does not fit the dims of the graph."""
    raise InputError(f"condition {condition.item()}: takes a branch that does not fit these dims, {why}")


def _infer_loop(trips, condition, *operands, body, carried):
    if trips is not None and not is_single(trips, i64):
        raise ShapeError(f"loop: bad number of trips, got {trips}, expected one i64")
    if condition is not None:
        _expect_flag("loop", condition)
    if not 0 <= carried <= len(operands) or len(body.outputs) < 1 + carried:
        raise ShapeError(f"loop: bad body, got {len(operands)} operands and {len(body.outputs)} results for {carried}")
    _expect_operands("loop", body, [TensorType(i64, ()), TensorType(boolean, ()), *operands])
    flag, *results = result_types(body, operands)
    _expect_flag("loop", flag)
    _expect_carried("loop", body, 2, results[:carried])
    carried_types = [join(a, b) for a, b in zip(operands, results[:carried], strict=False)]
    return (*carried_types, *(_stacked("loop", type) for type in results[carried:]))


def _expect_carried(where: str, body: Graph, first: int, results: Sequence[Type]) -> None:
    for name, type in zip(body.inputs[first:], results, strict=False):
        declared = body.values[name].type
        if not _fits(declared, type):
            raise ShapeError(f"{where}: a carried value changes its type, got {type}, expected {declared}")


def _stacked(where: str, type: Type) -> Type:
    if not isinstance(type, (TensorType, UnrankedType)):
        raise ShapeError(f"{where}: a scan output is a tensor, got {type}")
    return type if isinstance(type, UnrankedType) else TensorType(type.dtype, (None, *type.shape))


class _Scanned:
    """The scan outputs of a loop so far."""

    def __init__(self, count: int, types: Sequence[Type]):
        self.rows: list[list[np.ndarray]] = [[] for _ in range(count)]
        self.types = types
        self.nbytes = 0

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """Append an element to each output. Raises LimitError if they become too large, InputError if shapes differ."""
        self.nbytes += sum(array.nbytes for array in arrays)
        if self.nbytes > MAX_SCAN_BYTES:
            raise LimitError(f"loop: scan outputs too large, got {self.nbytes} bytes, expected {MAX_SCAN_BYTES}")
        for row, array in zip(self.rows, arrays, strict=True):
            if row and row[0].shape != array.shape:
                raise InputError(f"loop: a scan output changes its shape, got {array.shape} after {row[0].shape}")
            row.append(array)

    def stacked(self) -> list[np.ndarray]:
        """Stack the elements of each output along a new first axis."""
        return [np.stack(row) if row else _nothing(type) for row, type in zip(self.rows, self.types, strict=True)]


def _nothing(type: Type) -> np.ndarray:
    """Return an empty array of a type; unknown dims are 0."""
    assert isinstance(type, (TensorType, UnrankedType))
    shape = [] if isinstance(type, UnrankedType) else [dim if isinstance(dim, int) else 0 for dim in type.shape]
    return np.empty((0, *shape), type.dtype.numpy)


@op(infer=_infer_loop, outputs=0, any_type=True, computes=False, samples=[])
def loop(trips=None, condition=None, *operands, body: Subgraph, carried: int):
    """The body, at most `trips` times while its condition is true: the carried values, then the stacked scan
    outputs.

    The inputs of the body are the iteration, the condition, the first `carried` operands and the others; its results
    are the condition, the carried values and elements of scan outputs. Carried values may change their shape.
    """
    values, captured = operands[:carried], operands[carried:]
    scanned = _Scanned(body.outputs - 1 - carried, body.types[1 + carried :])
    keep_on = True if condition is None else bool(condition.item())
    limit = None if trips is None else int(trips.item())
    iteration = 0
    while keep_on and (limit is None or iteration < limit):
        flag, *results = body(np.array(iteration, np.int64), np.array(keep_on), *values, *captured)
        values, keep_on = tuple(results[:carried]), bool(flag.item())
        scanned.add(results[carried:])
        iteration += 1
    return (*values, *scanned.stacked())


def _infer_scan(*operands, body, carried, input_axes, input_backward, output_axes, output_backward):
    scanned = operands[carried : carried + len(input_axes)]
    outputs = len(body.outputs) - carried
    fits = len(input_axes) == len(input_backward) == len(scanned) >= 1
    if carried < 0 or not fits or not len(output_axes) == len(output_backward) == outputs:
        raise ShapeError(f"scan: bad body, got {len(operands)} operands and {len(body.outputs)} results for {carried}")
    elements: list[Type] = []
    for type, axis in zip(scanned, input_axes, strict=True):
        if not isinstance(type, TensorType) or not 0 <= axis < type.rank:
            raise ShapeError(f"scan: axis out of range, got {axis} for {type}")
        elements.append(TensorType(type.dtype, (*type.shape[:axis], *type.shape[axis + 1 :])))
    _expect_operands("scan", body, [*operands[:carried], *elements, *operands[carried + len(scanned) :]])
    results = result_types(body, operands)
    _expect_carried("scan", body, 0, results[:carried])
    carried_types = [join(a, b) for a, b in zip(operands, results[:carried], strict=False)]
    length = scanned[0].shape[input_axes[0]]
    scanned_types = [_placed(type, axis, length) for type, axis in zip(results[carried:], output_axes, strict=True)]
    return (*carried_types, *scanned_types)


def _placed(type: Type, axis: int, length) -> Type:
    if not isinstance(type, TensorType) or not 0 <= axis <= type.rank:
        raise ShapeError(f"scan: output axis out of range, got {axis} for elements {type}")
    return TensorType(type.dtype, (*type.shape[:axis], length, *type.shape[axis:]))


@op(infer=_infer_scan, outputs=0, any_type=True, computes=False, samples=[])
def scan(
    *operands,
    body: Subgraph,
    carried: int,
    input_axes: Ints,
    input_backward: tuple[bool, ...],
    output_axes: Ints,
    output_backward: tuple[bool, ...],
):
    """The body at each index of the scanned axes: the carried values, then the stacked results.

    The operands are the carried values, the scanned ones, and those that are the same at each index.
    """
    count = len(input_axes)
    values, captured = operands[:carried], operands[carried + count :]
    moved = [np.moveaxis(x, axis, 0) for x, axis in zip(operands[carried:], input_axes, strict=False)]
    moved = [x[::-1] if backward else x for x, backward in zip(moved, input_backward, strict=True)]
    if len({len(x) for x in moved}) > 1:
        raise InputError(f"scan: lengths differ, got {[len(x) for x in moved]}")
    scanned_types = _Scanned(body.outputs - carried, body.types[carried:])
    for row in zip(*moved, strict=True):
        results = body(*values, *(np.ascontiguousarray(x).reshape(x.shape) for x in row), *captured)
        values = tuple(results[:carried])
        scanned_types.add(results[carried:])
    stacked = [x[::-1] if backward else x for x, backward in zip(scanned_types.stacked(), output_backward, strict=True)]
    return (*values, *(np.moveaxis(x, 0, axis) for x, axis in zip(stacked, output_axes, strict=True)))

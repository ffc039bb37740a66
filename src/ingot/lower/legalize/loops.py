"""Legalize loops with a known number of iterations by unrolling their bodies."""

from __future__ import annotations

from typing import Any

from ingot.ir.dim import solve
from ingot.ir.dtype import boolean, i64
from ingot.ir.graph import Graph, TensorType, bind_attribute
from ingot.lower.legalize.table import legalizes
from ingot.ops.define import Expansion

MAX_UNROLLED = 1024  # nodes; longer loops run on the reference, where the graph stays small


@legalizes("scan")
def _scan(
    g: Expansion, *operands: str, body: Graph, carried: int, input_axes: tuple[int, ...],
    input_backward: tuple[bool, ...], output_axes: tuple[int, ...], output_backward: tuple[bool, ...],
) -> tuple[str, ...] | None:  # fmt: skip
    """Unroll a scan: each iteration reads a slice of the scanned inputs, and the scanned outputs are concatenated."""
    types = [g.graph.values[name].type for name in (*operands, *g.node.outputs)]
    if not all(isinstance(type, TensorType) and type.is_static for type in types) or _is_measured(body):
        return None
    scanned = list(zip(operands[carried:], input_axes, input_backward, strict=False))
    length = g.type(scanned[0][0]).dims[input_axes[0]]
    if not 0 < length * len(body) <= MAX_UNROLLED:
        return None
    values, captured = operands[:carried], operands[carried + len(scanned) :]
    scanned_rows: list[tuple[str, ...]] = []
    fixed: dict[str, str] = {}
    for turn in range(length):
        rows = [_row(g, x, axis, length - 1 - turn if backward else turn) for x, axis, backward in scanned]
        results = _inlined(g, body, [*values, *rows, *captured], fixed)
        values = results[:carried]
        scanned_rows.append(results[carried:])
    stacked = []
    for column, axis, backward in zip(zip(*scanned_rows, strict=True), output_axes, output_backward, strict=True):
        dims = g.type(column[0]).dims
        rows = [g.reshape(row, shape=(*dims[:axis], 1, *dims[axis:])) for row in column]
        stacked.append(rows[0] if length == 1 else g.concat(*(rows[::-1] if backward else rows), axis=axis))
    return (*values, *stacked)


@legalizes("loop")
def _loop(
    g: Expansion, trips: str | None = None, condition: str | None = None, *operands: str, body: Graph, carried: int
) -> tuple[str, ...] | None:
    """Unroll a loop with a known trip count and no other end condition."""
    types = [g.graph.values[name].type for name in (*operands, *g.node.outputs)]
    count = g.graph.data(trips)
    if count is None or not all(isinstance(type, TensorType) and type.is_static for type in types):
        return None
    if _is_measured(body):
        return None
    flag = next(iter(body.outputs.values()))
    begins = condition is None or _is_true(g.graph, condition)
    if not begins or not (flag == body.inputs[1] or _is_true(body, flag)):
        return None
    if not 0 < int(count.item()) * max(len(body), 1) <= MAX_UNROLLED:
        return None
    values, captured = operands[:carried], operands[carried:]
    fixed: dict[str, str] = {}
    on = g.constant(True, boolean)
    for turn in range(int(count.item())):
        _, *results = _inlined(g, body, [g.constant(turn, i64), on, *values, *captured], fixed)
        values = tuple(results)
    return values


def _is_true(graph: Graph, name: str) -> bool:
    data = graph.data(name)
    return data is not None and bool(data.item())


def _is_measured(body: Graph) -> bool:
    """Return whether a node reads a dim that a run of the body measures: only the reference has its value."""
    return bool(body.measured) and any(body.mentioned(node) for node in body.nodes)


def _row(g: Expansion, x: str, axis: int, index: int) -> str:
    """Return the slice of x at an index of an axis, without that axis."""
    dims = g.type(x).dims
    starts = tuple(index if i == axis else 0 for i in range(len(dims)))
    stops = tuple(index + 1 if i == axis else dim for i, dim in enumerate(dims))
    row = g.slice(x, starts=starts, stops=stops, steps=(1,) * len(dims))
    return g.reshape(row, shape=(*dims[:axis], *dims[axis + 1 :]))


def _inlined(g: Expansion, body: Graph, operands: list[str], fixed: dict[str, str]) -> tuple[str, ...]:
    """Inline a body for operands; return its results.

    fixed: its weights and constants in the graph, filled on first use.
    """
    for name, value in body.values.items():
        if value.kind in ("weight", "constant") and name not in fixed:
            fixed[name] = _copied(g.graph, g.graph.fresh(f"{g.node.outputs[0]}.{name}"), value)
    names = dict(zip(body.inputs, operands, strict=True)) | fixed
    sizes = _sizes(g, body, operands)
    for node in body.nodes:
        read = [None if operand is None else names[operand] for operand in node.operands]
        hints = [f"{g.node.outputs[0]}.{name}" for name in node.outputs]
        attributes = {key: bind_attribute(value, sizes) for key, value in node.attributes.items()}
        added = g.graph.add(node.op.name, read, hints, before=g.node, **attributes)
        names.update(zip(node.outputs, added.outputs, strict=True))
    return tuple(names[name] for name in body.outputs.values())


def _sizes(g: Expansion, body: Graph, operands: list[str]) -> dict[str, int]:
    """Return the values of the symbols in the types of a body's inputs: dims that a loader does not know."""
    sizes: dict[str, int] = {}
    for name, operand in zip(body.inputs, operands, strict=True):
        declared = body.values[name].type
        if isinstance(declared, TensorType):
            pairs = zip(declared.shape, g.type(operand).dims, strict=True)
            sizes |= dict(found for dim, size in pairs if (found := solve(dim, size)) is not None)
    return sizes


def _copied(graph: Graph, name: str, value: Any) -> str:
    if value.kind == "weight":
        return graph.add_weight(name, value.data, value.type)
    return graph.add_constant(name, value.data)

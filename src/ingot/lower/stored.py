"""Find the format of a weight expression that decodes and moves elements, and the arrays that store it."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.ir.dtype import f32
from ingot.lower.formats import Format
from ingot.lower.weight_expr import WeightExpr, build_expr


@dataclass(frozen=True, slots=True)
class Groups:
    """How a quantized matrix shares scales: one per index of `axis` and per `size` elements along the other axis."""

    axis: int
    size: int


def is_stored_as(value: WeightExpr, format: Format) -> bool:
    """Return whether a matrix of floats is stored in a format in a file, possibly moved after it was decoded."""
    if format.decoder is None:
        return True
    if format.scales is not None:
        return groups_of(value, format) is not None
    if not _begins_with(value, format):
        return False
    if value.op == format.decoder:
        return True
    return _keeps_blocks(value, format) and all(is_stored_as(operand, format) for operand in value.inputs)


def groups_of(value: WeightExpr, format: Format) -> Groups | None:
    """Return how the values of a quantized matrix share scales; None if it is not stored in the format."""
    if not _begins_with(value, format):
        return None
    if value.op == format.decoder:
        return _decoded_groups(value, format.shared.elements) if value.type.rank == 2 else None
    first, *others = (groups_of(operand, format) for operand in value.inputs)
    return None if first is None or any(other != first for other in others) else _moved_groups(value, first)


def stored_arrays(value: WeightExpr, format: Format) -> tuple[WeightExpr, ...]:
    """Return the stored arrays of a matrix: moves are applied before decoding, also to scales and zero points."""
    if format.decoder is None:
        return (value,)
    if value.op == format.decoder:
        return (value.source, *(_as_matrix(value, qparam) for qparam in value.inputs[1:]))
    parts = zip(*(stored_arrays(operand, format) for operand in value.inputs), strict=True)
    return tuple(_moved(value, operands, f"{value.name}.{format}.{i}") for i, operands in enumerate(parts))


def _begins_with(value: WeightExpr, format: Format) -> bool:
    """Return whether the first operand of all moves is decoded from a format's arrays."""
    while value.op in format.moves:
        value = value.source
    node = value.node
    if node is None or value.op != format.decoder or value.type.dtype is not f32:
        return False
    is_type = format.type is None or node.type == format.type
    return is_type and tuple([operand.type.dtype for operand in value.inputs]) == format.arrays


def _keeps_blocks(value: WeightExpr, format: Format) -> bool:
    """Return whether a move splits no block of a row."""
    node = value.node
    if format.stored.elements == 1 or node is None or value.op != "slice":
        return True
    return (node.starts[-1], node.stops[-1], node.steps[-1]) == (0, value.source.dims[-1], 1)


def _decoded_groups(decoded: WeightExpr, unit: int) -> Groups | None:
    """Return the groups of a dequantized matrix if they are whole units of a panel or span the axis; else None."""
    node = decoded.node
    assert node is not None
    axis, size, scales = node.axis, node.block, decoded.inputs[1].type
    if size == 0:
        return Groups(axis, decoded.dims[1 - axis]) if scales.rank == 1 and scales.dims[0] > 1 else None
    return Groups(1 - axis, size) if size % unit == 0 or size >= decoded.dims[axis] else None


def _moved_groups(value: WeightExpr, groups: Groups) -> Groups | None:
    """Return the groups after a move; None if the move splits or merges groups."""
    node = value.node
    assert node is not None
    if value.op == "permute":
        return Groups(node.axes.index(groups.axis), groups.size)
    if value.op == "concat":
        return groups if node.axis == groups.axis else None
    other = 1 - groups.axis
    is_whole = (node.starts[other], node.stops[other], node.steps[other]) == (0, value.source.dims[other], 1)
    return groups if is_whole else None


def _moved(value: WeightExpr, operands: tuple[WeightExpr, ...], name: str) -> WeightExpr:
    """Apply the move of a value to other operands; a slice of all elements is one of all scales or bytes of blocks."""
    assert value.node is not None and value.op is not None
    attributes = value.node.attributes
    if value.op == "slice":
        bounds = zip(attributes["stops"], value.source.dims, operands[0].dims, strict=True)
        stops = tuple(own if stop == whole else min(stop, own) for stop, whole, own in bounds)
        attributes = attributes | {"stops": stops}
    return build_expr(value.op, operands, name, attributes)


def _as_matrix(decoded: WeightExpr, qparam: WeightExpr) -> WeightExpr:
    """Return the scales or zero points of a dequantized matrix as a matrix."""
    assert decoded.node is not None
    if qparam.type.rank == 2:
        return qparam
    (count,) = qparam.dims
    return qparam.derive("reshape", shape=(count, 1) if decoded.node.axis == 0 else (1, count))

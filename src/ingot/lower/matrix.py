"""Matrices in the layouts of kernels: weights packed by a store, or panels packed by steps of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.lower.formats import Format
from ingot.lower.lowering import Lowering
from ingot.lower.packed_weight import PackedWeight
from ingot.lower.stored import groups_of, stored_arrays
from ingot.lower.view import View
from ingot.lower.weight_expr import WeightExpr

Moves = Callable[[WeightExpr], WeightExpr]


def column_runs(lowering: Lowering, value: str, format: Format, layout: str, transposed: bool) -> list[range]:
    """Return the columns of a [k, n] matrix, [n, k] when transposed, in ranges whose panels fit into a memory region.

    For gate_panels the ranges are columns of one half; for a raw [n, k] they are rows. One range if all panels fit or
    the matrix cannot be split.
    """
    k, n = lowering.graph.type(value).dims[:: -1 if transposed else 1]
    panel = format.panel
    if layout == "gate_panels":
        n, panel = n // 2, panel // 2
    most = lowering.target.region_bytes // max(1, format.panel_bytes(k, format.panel)) * panel
    if n <= most or not most or format.scales is not None or value not in lowering.static:
        return [range(n)]
    return [range(begin, min(begin + most, n)) for begin in range(0, n, most)]


def matrix(
    lowering: Lowering,
    value: str,
    format: Format,
    layout: str,
    transposed: bool,
    order: Moves | None = None,
    columns: range | None = None,
) -> View:
    """Return a [k, n] matrix, [n, k] when transposed, stored in a format, in a layout of `PackedWeight`.

    A static matrix is a weight and keeps its shape; experts have one more dim in front. A matrix that reads a state is
    the state's row-major contents if the layout is "raw". Otherwise it is a view of one axis: panels that a step packs
    in each run, as for a matrix of floats that the run computes. order: moves of its elements before they are packed.
    columns: one of several ranges of `column_runs`.
    """
    if columns is not None:
        piece = stored_arrays(_some_columns(lowering.weight_expr(value), layout, int(not transposed), columns), format)[
            0
        ]
        is_plain = layout == "raw" and format.decoder is None
        return lowering.weight(piece, layout, transposed, None if is_plain else format)
    expression = (
        lowering.weight_expr(value)
        if value in lowering.state_invariant
        else WeightExpr(value, (lowering.graph.type(value),))
    )
    stored, *scales_and_zeros = stored_arrays(expression, format)
    if scales_and_zeros:
        groups = groups_of(expression, format)
        assert groups is not None and order is None, f"{value} is not stored as {format}"
        return lowering.weight(stored, layout, transposed, format, tuple(scales_and_zeros), groups.size)
    packed = order(stored) if order else stored
    if value in lowering.static:
        return lowering.weight(packed, layout, transposed, format)
    if layout == "raw":
        return lowering.contiguous(_undecoded(lowering, expression, stored))
    key = value, format.name, transposed, order
    if key not in lowering.panels:
        packed_weight = PackedWeight(value, packed, layout, transposed, format)
        source = _reordered(lowering, packed, stored, _undecoded(lowering, expression, stored))
        lowering.panels[key] = _pack(lowering, packed_weight, source)
    return lowering.panels[key]


def _some_columns(value: WeightExpr, layout: str, axis: int, columns: range) -> WeightExpr:
    """Return a range of columns of a matrix, i.e. of indices of an axis; for gate_panels, the range in both halves."""

    def cut(begin: int, end: int) -> WeightExpr:
        starts, stops = [0, 0], list(value.dims)
        starts[axis], stops[axis] = begin, end
        return value.derive("slice", starts=tuple(starts), stops=tuple(stops), steps=(1, 1))

    if layout != "gate_panels":
        return cut(columns.start, columns.stop)
    half = value.dims[axis] // 2
    return cut(columns.start, columns.stop).derive("concat", cut(half + columns.start, half + columns.stop), axis=axis)


def _pack(lowering: Lowering, packed_weight: PackedWeight, source: View) -> View:
    """Add a step that packs the result of earlier steps into panels that no store has."""
    assert packed_weight.layout == "panels" and len(packed_weight.shape) == 2, f"{packed_weight.key} is no weight"
    items = packed_weight.nbytes // packed_weight.dtype.itemsize
    panels = lowering.temporary(f"{packed_weight.value.name}.panels", packed_weight.dtype, (items,))
    lowering.backend.pack(lowering, packed_weight, source, panels)
    return panels


def _undecoded(lowering: Lowering, value: WeightExpr, stored: WeightExpr) -> View:
    """Return the stored form of a value of the graph: a view, or the moves of its format applied to stored views.

    For permute(cast(state)) this is a permuted view of the state; for a concat it is a copy of each operand.
    """
    if stored is value or stored in value.operands:
        return lowering.view(stored.name)
    sources = [_undecoded(lowering, *pair) for pair in zip(value.inputs, stored.inputs, strict=True)]
    return _moved(lowering, stored, sources)


def _reordered(lowering: Lowering, value: WeightExpr, stored: WeightExpr, view: View) -> View:
    """Apply the moves of `value` to `stored`, whose view is `view`."""
    if value is stored:
        return view
    return _moved(lowering, value, [_reordered(lowering, operand, stored, view) for operand in value.inputs])


def _moved(lowering: Lowering, value: WeightExpr, sources: Sequence[View]) -> View:
    """Apply the op of a value, which only moves elements, to views."""
    node = value.node
    assert node is not None
    match value.op:
        case "permute":
            return sources[0].permute(node.axes)
        case "slice":
            return sources[0].slice(node.starts, node.stops, node.steps)
        case "reshape":
            moved = sources[0].reshape(value.dims) or lowering.copy(sources[0]).reshape(value.dims)
            assert moved is not None
            return moved
        case "concat":
            return _joined(lowering, value, sources, node.axis)
    raise AssertionError(f"{value.name}: {value.op} moves nothing")


def _joined(lowering: Lowering, value: WeightExpr, sources: Sequence[View], axis: int) -> View:
    """Copy the sources into one tensor, one after another along an axis."""
    joined = lowering.temporary(value.name, value.type.dtype, value.dims)
    begin = 0
    for source in sources:
        starts, stops = [0] * len(joined.shape), list(joined.shape)
        starts[axis], stops[axis] = begin, begin + source.shape[axis]
        lowering.add_copy(source, joined.slice(starts, stops, [1] * len(starts)))
        begin = stops[axis]
    return joined

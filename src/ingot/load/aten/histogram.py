"""Rules for histograms of points in bins between edges, along one axis or several."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir.dtype import i64
from ingot.load.aten.builder import AtenBuilder, Tensor, element_count
from ingot.load.aten.registry import aten
from ingot.load.aten.search import sorted_positions

Pair = tuple[Tensor, Tensor]


@aten("histogram.bin_ct")
def histogram(
    b: AtenBuilder, x: Tensor, bins: int = 100, *, range: Sequence[float] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> Pair:  # fmt: skip
    points = b.reshape(x, (element_count(b.shape(x)), 1))
    return histogram_between(b, x, _edges(b, points, [bins], range)[0], weight=weight, density=density)


@aten("histogram.bins_tensor")
def histogram_between(
    b: AtenBuilder, x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> Pair:
    points = b.reshape(x, (element_count(b.shape(x)), 1))
    return _counted(b, points, [bins], weight, density, is_even=False), bins


@aten("_histogramdd_bin_edges.default")
def bin_edges(
    b: AtenBuilder, x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None,
    weight: Tensor | None = None, density: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    return tuple(_edges(b, _points(b, x), bins, range))


@aten("_histogramdd_from_bin_cts.default")
def histogram_of_counts(
    b: AtenBuilder, x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None,
    weight: Tensor | None = None, density: bool = False,
) -> Tensor:  # fmt: skip
    points = _points(b, x)
    return _counted(b, points, _edges(b, points, bins, range), weight, density, is_even=True)


@aten("_histogramdd_from_bin_tensors.default")
def histogram_of_edges(
    b: AtenBuilder, x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return _counted(b, _points(b, x), bins, weight, density, is_even=False)


def _points(b: AtenBuilder, x: Tensor) -> Tensor:
    """Reshape x [..., axes] to [points, axes]."""
    *lead, axes = b.shape(x)
    return b.reshape(x, (element_count(lead), axes))


def _column(b: AtenBuilder, points: Tensor, axis: int) -> Tensor:
    return b.reshape(b.slice(points, 1, axis, axis + 1), (b.shape(points)[0],))


def _edges(b: AtenBuilder, points: Tensor, bins: Sequence[int], range: Sequence[float] | None) -> list[Tensor]:
    """Return, for each axis, the edges of equal bins: between given ends, or from the smallest point to the
    largest.

    Equal ends are moved by 1 in opposite directions. Edges are computed from the nearer end, as torch does.
    """
    edges, dtype = [], b.dtype(points)
    for axis, count in enumerate(bins):
        if range is not None or b.shape(points)[0] == 0:
            ends = [0.0, 1.0] if range is None else range[2 * axis : 2 * axis + 2]
            low, high = (b.scalar(float(end), dtype) for end in ends)
        else:
            column = _column(b, points, axis)
            low, high = (b.add(f"reduce_{end}", column, axes=(0,), keepdims=False) for end in ("min", "max"))
        half, is_one = b.scalar(0.5, dtype), b.add("equal", low, high)
        low = b.add("where", is_one, b.add("sub", low, half), low)
        high = b.add("where", is_one, b.add("add", high, half), high)
        step = b.add("div", b.add("sub", high, low), b.scalar(count, dtype))
        position = b.add("iota", length=count + 1, start=0, step=1, dtype=i64)
        from_low = b.add("add", low, b.add("mul", step, b.cast(position, dtype)))
        behind = b.cast(b.add("sub", b.scalar(count, i64), position), dtype)
        from_high = b.add("sub", high, b.add("mul", step, behind))
        is_near = b.add("less", position, b.scalar((count + 1) // 2, i64))
        edges.append(b.add("where", is_near, from_low, from_high))
    return edges


def _counted(
    b: AtenBuilder, points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool, *, is_even: bool
) -> Tensor:
    """Count the points, or sum their weights, in each bin; a point outside, or NaN, is counted separately and
    cut off.

    The last bin of an axis includes its end. is_even: bins have one size, and the bin is computed by a division.
    """
    dtype, (number, _) = b.dtype(points), b.shape(points)
    sizes = [b.static(b.shape(edge)[0], "the number of edges") - 1 for edge in edges]
    total = element_count(sizes)
    position = b.expand(b.scalar(0, i64), (number,))
    inside = None
    for axis, (edge, size) in enumerate(zip(edges, sizes, strict=True)):
        x = _column(b, points, axis)
        low, high = (b.slice(edge, 0, end, end + 1) for end in (0, size))
        if is_even:
            scaled = b.add("mul", b.add("sub", x, low), b.scalar(size, dtype))
            found = b.cast(b.add("div", scaled, b.add("sub", high, low)), i64)
        else:
            found = b.add("sub", sorted_positions(b, edge, x, right=True), b.scalar(1, i64))
        found = b.add("minimum", found, b.scalar(size - 1, i64))
        position = b.add("add", b.add("mul", position, b.scalar(size, i64)), found)
        is_in = b.add("logical_and", b.add("greater_equal", x, low), b.add("less_equal", x, high))
        inside = is_in if inside is None else b.add("logical_and", inside, is_in)
    assert inside is not None
    position = b.add("where", inside, position, b.scalar(total, i64))
    one = b.scalar(1, dtype) if weight is None else b.cast(b.reshape(weight, (number,)), dtype)
    counts = b.expand(b.scalar(0, dtype), (total + 1,))
    counts = b.add("scatter_elements", counts, position, b.expand(one, (number,)), axis=0, reduction="add")
    counts = b.reshape(b.slice(counts, 0, 0, total), sizes)
    return _density(b, counts, edges, sizes) if density else counts


def _density(b: AtenBuilder, counts: Tensor, edges: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Divide the share of each bin by the size of the bin."""
    axes = tuple(range(len(sizes)))
    counts = b.add("div", counts, b.add("reduce_sum", counts, axes=axes, keepdims=True))
    for axis, (edge, size) in enumerate(zip(edges, sizes, strict=True)):
        width = b.add("sub", b.slice(edge, 0, 1, size + 1), b.slice(edge, 0, 0, size))
        counts = b.add("div", counts, b.reshape(width, (size, *[1] * (len(sizes) - 1 - axis))))
    return counts

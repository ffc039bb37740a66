"""Packed weights: the computation of a kernel's weight bytes from weights and constants.

A packed weight belongs to no graph, so programs may outlive the graph they were lowered from. Its key is the text of
the computation: two lowerings of one graph agree on it, and constants with the same name but different elements get
different keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field

from ingot.ir.dtype import DType
from ingot.ir.graph import Graph
from ingot.lower.formats import Format
from ingot.lower.weight_expr import WeightExpr
from ingot.support.record import record


@record(eq=False)
class PackedWeight:
    """How the bytes of a packed matrix are computed: once, in a store, or by steps of each run if it reads a state.

    layout: "raw" (unchanged, row-major), "panels" (a [k, n] matrix as [n/32][k][32], zero-padded; transposed: the value
    is [n, k]; several matrices one after another) or "gate_panels" (one [k, 2f] matrix, f a multiple of 16, as
    [f/16][k][32]: panel p holds columns 16p.. of the first half, then 16p.. of the second), for panels of 32 columns.
    format: the storage format of elements, always set for panels; None for consecutive elements of the value's dtype.
    qparams: the scales and optionally the zero points of quantized weights, each [columns, groups of `group` elements],
    transposed like the value. key: the text of the complete computation; the name of the value if steps pack it,
    without a store. nbytes: the size of the result in bytes.
    """

    key: str
    value: WeightExpr
    layout: str
    transposed: bool
    format: Format | None
    qparams: tuple[WeightExpr, ...] = ()
    group: int = 0
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", self._size())

    @property
    def dtype(self) -> DType:
        """The dtype of the value and of the array of bytes; quantized values and scales are packed without gaps."""
        dtype = self.value.type.dtype
        return dtype if self.qparams else dtype.held

    @property
    def parts(self) -> tuple[WeightExpr, ...]:
        """The packed expressions: the value, then its scales and zero points."""
        return (self.value, *self.qparams)

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
    def axis(self) -> int:
        """The axis of the value along which the columns of panels run."""
        return 0 if self.transposed else 1

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
    qparams: tuple[WeightExpr, ...] = (),
    group: int = 0,
) -> PackedWeight:
    """Return the packed weight of a value in a layout. Raises LimitError if the value's expression is too large."""
    key = f"{layout}{'.transposed' if transposed else ''} {value.text()}"
    for each in qparams:
        key += f" by groups of {group} ({each.text()})"
    return PackedWeight(key, value, layout, transposed, format, qparams, group)


def panel_tables(graph: Graph, static: set[str]) -> set[str]:
    """Return the static [n, k] values that some matmul reads packed by rows."""
    found = set()
    for node in graph.nodes:
        if node.op.name != "matmul" or not node.transpose_b or node.operands[1] not in static:
            continue
        if graph.type(str(node.operands[1])).rank == 2:
            found.add(str(node.operands[1]))
    return found

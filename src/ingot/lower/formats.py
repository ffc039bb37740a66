"""Weight formats: how constant matrices are stored in files and in panels, and which kernels read them.

A backend has a table of formats, such as `cpu/formats.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ingot.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Block:
    """A storage unit: `elements` consecutive elements take `nbytes` bytes; the last block is padded with zeros."""

    elements: int
    nbytes: int

    def size(self, elements: int) -> int:
        """Return the bytes of the blocks for a number of elements."""
        return -(-elements // self.elements) * self.nbytes


@dataclass(frozen=True, slots=True)
class Dots:
    """The kernels that round the rows of a product to another dtype, if the target allows it.

    family: the part of the kernel names. rows: the dtype that rows are rounded to; i32 means 24-bit integers. few:
    whether the kernels also cover few rows.
    """

    family: str
    rows: DType
    few: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """A storage format of a matrix of floats, such as bf16: two bytes per element, interleaved in pairs in panels.

    dtype: of arrays with its elements. panel: columns of a panel. stored: the block along a row of a file. packed: the
    block along a column of a panel, [ceil(k / elements)][panel][elements]. shared: additional data in panels per group
    of elements of a column, such as the scale. decoder: the op that converts stored elements to f32; None for f32.
    moves: ops that keep every block intact, so that they may run before decoding. pack: the kernel that packs panels.
    products, tables: the part of the names of kernels that multiply f32 rows with panels, and that gather rows of a
    table; None if there are no such kernels. dots: the dot-product families for rounded rows. scales: the dtype of the
    scales of quantized weights, which are a separate array in a file; in panels they follow the values that share them.
    zeros: whether quantized weights have zero points, which then follow the scales. flip: an XOR mask for each
    quantized value, so that values count from 0. type: for blocks, the attribute of the decoder. arrays: the dtypes of
    a matrix's arrays in a file: elements, then scales and zero points.
    """

    name: str
    dtype: DType
    panel: int
    stored: Block
    packed: Block
    decoder: str | None
    moves: frozenset[str]
    pack: str
    products: str | None
    tables: str
    dots: tuple[Dots, ...] = ()
    scales: DType | None = None
    zeros: bool = False
    flip: int = 0
    shared: Block = Block(1, 0)
    type: str | None = None
    arrays: tuple[DType, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        arrays = (self.dtype, self.scales, self.dtype if self.zeros else None)
        object.__setattr__(self, "arrays", tuple(dtype for dtype in arrays if dtype is not None))

    def __str__(self) -> str:
        return self.name

    @property
    def is_quantized(self) -> bool:
        """Return whether elements are quantized with scales; kernels read such elements only from panels."""
        return self.scales is not None or self.type is not None

    @property
    def element_bytes(self) -> float:
        """Return the bytes of an element in panels; a fraction for blocks of several elements."""
        return self.packed.nbytes / self.packed.elements + self.shared.nbytes / self.shared.elements

    def column_bytes(self, k: int) -> int:
        """Return the bytes of a column of k elements in panels."""
        return self.packed.size(k) + self.shared.size(k)

    def columns(self, items: int) -> int:
        """Convert a number of array items along a row to elements; the items of blocks are bytes."""
        return items if self.type is None else items // self.stored.nbytes * self.stored.elements

    def panel_bytes(self, k: int, n: int) -> int:
        """Return the bytes of the panels of a [k, n] matrix; the last panel is padded with zeros."""
        return -(-n // self.panel) * self.panel * self.column_bytes(k)

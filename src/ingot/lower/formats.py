"""How elements of fixed matrices lie in a file and in panels, and which kernels read them: what a row says.

A backend has a table of them, as `cpu/formats.py` is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ingot.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Block:
    """So many elements that follow one another take so many bytes; the last block is filled up with zeros."""

    elements: int
    nbytes: int

    def size(self, elements: int) -> int:
        """Bytes of the blocks that hold so many elements."""
        return -(-elements // self.elements) * self.nbytes


@dataclass(frozen=True, slots=True)
class Dots:
    """Kernels that round the rows of a product to another dtype, where the target says so.

    family: stands in their names. rows: what rows are rounded to; integers of 24 bits are i32. few: whether they are
    for few rows, too.
    """

    family: str
    rows: DType
    few: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """One way to hold a matrix of floats, such as bf16: two bytes an element, by pairs of a column in panels.

    dtype: of arrays that hold its elements. panel: columns of a panel. stored: the block along a row of a file. packed:
    the block along a column of a panel, [ceil(k / elements)][panel][elements]. shared: what panels have beside so many
    elements of a column, such as their scale. decoder: the op that makes f32 of what
    is stored; None for f32 itself. moves: ops that leave every block whole, so that they may be done before decoding.
    pack: the kernel that makes panels. products, tables: stand in the names of kernels that multiply f32 rows with
    panels, and that take rows of a table; None where there are none. dots: the families that round those rows. scales:
    of elements that are codes, the dtype of their scales, an array beside theirs; in panels they lie behind the codes
    that share them. zeros: whether the codes have zero points beside them, which then lie there too.
    flip: the bits that a code is xored with, to count from 0. type: of blocks, the attribute of the op that decodes
    them. arrays: the dtypes of what a file holds of a matrix, its elements, and beside codes their scales and zero
    points.
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
        """Whether elements are codes with scales, which kernels know in panels alone."""
        return self.scales is not None or self.type is not None

    @property
    def element_bytes(self) -> float:
        """Bytes of an element in panels; blocks of several may make it a fraction."""
        return self.packed.nbytes / self.packed.elements + self.shared.nbytes / self.shared.elements

    def column_bytes(self, k: int) -> int:
        """Bytes of a column of k elements in panels."""
        return self.packed.size(k) + self.shared.size(k)

    def columns(self, items: int) -> int:
        """The elements that so many items of an array along a row are; those of blocks are bytes."""
        return items if self.type is None else items // self.stored.nbytes * self.stored.elements

    def panel_bytes(self, k: int, n: int) -> int:
        """Bytes of the panels of a [k, n] matrix, the last of them filled up with zeros."""
        return -(-n // self.panel) * self.panel * self.column_bytes(k)

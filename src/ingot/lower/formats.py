"""How elements of fixed matrices lie in a file and in panels, and which kernels read them: one row a format."""

from __future__ import annotations

from dataclasses import dataclass

from ingot import abi
from ingot.dtype import DType, bf16, f32

PANEL = abi.constant("INGOT_PANEL")  # columns of a packed panel
HALF_PANEL = PANEL // 2


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
    """Kernels that round the rows of a product to another dtype, for the dot products of a CPU.

    family: stands in their names. rows: what rows are rounded to. needs: the field of Target that allows them.
    """

    family: str
    rows: DType
    needs: str


@dataclass(frozen=True, slots=True)
class Format:
    """One way to hold a matrix of floats, such as bf16: two bytes an element, by pairs of a column in panels.

    dtype: of the arrays that hold its bytes. stored: the block along a row of a file. packed: the block along a column
    of a panel, [ceil(k / elements)][32][elements]. decoder: the op that makes f32 of what is stored; None for f32
    itself. moves: ops that leave every block whole, so that they may be done before decoding. pack: the kernel that
    makes panels. products, tables: stand in the names of kernels that multiply f32 rows with panels, and that take rows
    of a table. dots: the family that rounds those rows, if there is one.
    """

    name: str
    dtype: DType
    stored: Block
    packed: Block
    decoder: str | None
    moves: frozenset[str]
    pack: str
    products: str
    tables: str
    dots: Dots | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def element_bytes(self) -> float:
        """Bytes of an element in panels; blocks of several may make it a fraction."""
        return self.packed.nbytes / self.packed.elements

    def column_items(self, k: int) -> int:
        """Items of `dtype` that a column of k elements takes in a panel."""
        return self.packed.size(k) // self.dtype.itemsize

    def panel_bytes(self, k: int, n: int) -> int:
        """Bytes of the panels of a [k, n] matrix, the last of them filled up with zeros."""
        return -(-n // PANEL) * PANEL * self.packed.size(k)


F32 = Format("f32", f32, Block(1, 4), Block(1, 4), None, frozenset(), "pack_f32", "f32", "f32")
BF16 = Format(
    "bf16", bf16, Block(1, 2), Block(2, 4), "cast", frozenset(("concat", "permute", "reshape", "slice")),
    "pack_bf16", "f32_bf16", "bf16", Dots("bf16", bf16, "bf16_dot"),
)  # fmt: skip

# The last that a matrix is stored in is taken; F32, the first, holds every matrix of floats.
FORMATS = (F32, BF16)
_BY_DTYPE = {format.dtype: format for format in FORMATS}


def format_of(dtype: DType) -> Format | None:
    """The format whose bytes arrays of a dtype hold; None for one that is no matrix of floats."""
    return _BY_DTYPE.get(dtype)

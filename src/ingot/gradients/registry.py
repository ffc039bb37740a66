"""The table of gradients: what a row is, and which ops have none, each with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.ir.dtype import DType, i64
from ingot.ir.graph import Graph, Node
from ingot.ops.define import Builder
from ingot.support import abi

ROWS = abi.constant("INGOT_K_BLOCK")  # that are summed together, as products sum them


class Backward(Builder):
    """Writes the nodes of gradients at the end of a graph, and names them after the value whose gradient they pass on.

    A float operand becomes a constant of the dtype of that value, an int operand one of i64. All dims are ints.
    """

    def __init__(self, graph: Graph):
        super().__init__(graph)
        self._about, self._constants = "", dict[tuple[float, DType], str]()

    def at(self, value: str) -> None:
        """Says whose gradient is passed on from here: nodes stand for what makes it."""
        self._about, maker = value, self.graph.producer(value)
        self.graph.origin = () if maker is None else maker.sources

    def _add(self, op: str, *operands: str | float | int | None, **attributes: Any) -> str:
        names = [self.constant(o) if isinstance(o, (int, float)) else o for o in operands]
        return self.graph.add(op, names, f"{self._about}.gradient", **attributes).output

    def constant(self, value: float | int, dtype: DType | None = None) -> str:
        """A number, shape []: each once, by default of the dtype that the class says."""
        dtype = dtype or (i64 if isinstance(value, int) else self.type(self._about).dtype)
        if (value, dtype) not in self._constants:
            name = self.graph.fresh(f"{self._about}.gradient.constant")
            self._constants[value, dtype] = self.array(name, np.array(value, dtype.numpy))
        return self._constants[value, dtype]

    def array(self, name: str, data: np.ndarray) -> str:
        """A constant of several numbers."""
        return self.graph.add_constant(self.graph.fresh(name), data)

    def zeros(self, like: str) -> str:
        """Zeros of a value's type, as a view of one."""
        type = self.type(like)
        return self.expand(self.constant(0.0, type.dtype), shape=type.shape)

    def like(self, d: str, value: str) -> str:
        """The elements of d in the shape of a value, which has as many."""
        shape = self.type(value).shape
        return d if self.type(d).shape == shape else self.reshape(d, shape=shape)

    def summed(self, d: str, value: str) -> str:
        """d summed over what a value was repeated along to get d's shape."""
        shape, wide = self.type(value).shape, self.type(d).shape
        lead = len(wide) - len(shape)
        axes = tuple(i for i, dim in enumerate(wide) if i < lead or (shape[i - lead] == 1 and dim != 1))
        if axes == tuple(range(len(wide) - 1)) and (blocks := row_blocks(math.prod(self.type(d).dims[:-1]))) > 1:
            return self.like(self._sum_of_blocks(d, blocks), value)
        return self.like(self.reduce_sum(d, axes=axes, keepdims=True) if axes else d, value)

    def _sum_of_blocks(self, d: str, blocks: int) -> str:
        """The sum of the rows of d: those of each block, and of these one after another."""
        columns = self.type(d).dims[-1]
        sums = self.reduce_sum(self.reshape(d, shape=(blocks, ROWS, columns)), axes=(1,), keepdims=False)
        total = None
        for i in range(blocks):
            block = self.slice(sums, starts=(i, 0), stops=(i + 1, columns), steps=(1, 1))
            total = block if total is None else self.add(total, block)
        assert total is not None
        return total


def row_blocks(rows: int) -> int:
    """How many blocks of ROWS are summed one after another, so that parts of a batch which are such blocks have its
    bits; 1 where rows are not cut."""
    return rows // ROWS if rows and rows % ROWS == 0 else 1


# A row gets the node and a gradient for each result, None where nothing depends on it, and gives one for each operand,
# None where there is none; of one operand, that alone.
Row = Callable[..., "str | Sequence[str | None] | None"]


@dataclass(frozen=True, slots=True)
class Gradient:
    """A row of the table. refuse: why it is not for a node, or ""; the op is then as one without a row."""

    row: Row
    refuse: Callable[[Node], str]


GRADIENTS: dict[str, Gradient] = {}


def gradient(*ops: str, refuse: Callable[[Node], str] = lambda node: "") -> Callable[[Row], Row]:
    """Declares the row of ops: `row(g, node, *gradients)` writes plain ops through a `Backward`."""

    def declare(row: Row) -> Row:
        for op in ops:
            assert op not in GRADIENTS or GRADIENTS[op].row.__qualname__ == row.__qualname__, f"{op} has two rows"
            GRADIENTS[op] = Gradient(row, refuse)
        return row

    return declare


@dataclass(frozen=True, slots=True)
class Unrolled:
    """How an op is taken apart that has a kernel of its own, where gradients flow through it. refuse: of a node and of
    how many steps it has, why it cannot be, or "".
    """

    write: Callable[..., Any]
    refuse: Callable[[Node, int], str]


UNROLLED: dict[str, Unrolled] = {}


def unrolled(op: str, *, refuse: Callable[[Node, int], str]) -> Callable[..., Any]:
    """Declares how an op is taken apart: `write(g, *operands, **attributes)` gives its result or its results, by an
    `Expansion`.
    """

    def declare(write: Callable[..., Any]) -> Callable[..., Any]:
        UNROLLED[op] = Unrolled(write, refuse)
        return write

    return declare


def _listed(reason: str, ops: str) -> dict[str, str]:
    return dict.fromkeys(ops.split(), reason)


# Through these nothing flows, and nothing is missing: a small change of the operands changes no float of the result.
FLAT: dict[str, str] = {
    **_listed("constant between its steps", "floor ceil round sign floor_div tree_ensemble"),
    **_listed(
        "its result is no float",
        """isnan isinf equal not_equal less less_equal greater greater_equal logical_not logical_and logical_or
        logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor shift_left shift_right argmax argmin
        max_pool_indices nonzero non_max_suppression measure dims quantize matmul_integer conv_integer
        quantize_groups string_concat string_normalize string_split regex_full_match sequence_length has_element
        decode_image refuse has_rank checked_index gcd pivoted_rows""",
    ),
    **_listed(
        "its operands are no floats", "iota random_uniform draw_uniform tfidf label_encode unpack decode_blocks absent"
    ),
    **_listed("other bits, not other numbers", "bitcast"),
    **_listed("a model says that none flow", "detach"),
}

# These have one that nobody has written: a model that needs it is refused, and the reason is said.
MISSING: dict[str, str] = {
    **_listed("it runs subgraphs", "if loop scan sequence_map"),
    **_listed(
        "sequences, dictionaries and optionals carry no gradients",
        """sequence sequence_insert sequence_erase sequence_at split_to_sequence concat_from_sequence zip_map
        optional get_element""",
    ),
    **_listed("its result is as long as data say", "compress unique arange"),
    **_listed("its axes are data", "reduce_over"),
    **_listed("its rank is known to a run alone", "as_rank squeeze"),
    **_listed(
        "it reads or writes a cache that runs share",
        """append_keys append_values append_keys_int8 append_values_int8 append_keys_int4 append_values_int4
        cached_attention""",
    ),
    **_listed("the cofactors that it needs are no op", "det"),
    **_listed("a quotient of products fails at zeros", "cumprod"),
    **_listed("its scale is chosen for the data", "dynamic_quantize"),
    **_listed("it is the end of a step", "adamw sgd"),
    **_listed("it is solved in steps", "pairwise_coupling"),
    **_listed("its derivative is no op", "airy_ai bessel digamma erfcx i0e i1 i1e igamma ndtri polynomial zeta"),
    **_listed(
        "the derivative of a factorisation is no op",
        """cholesky eig eigh householder_product ldl_factor ldl_solve lu_factor matrix_exp qr_factor solve_triangular
        svd""",
    ),
}

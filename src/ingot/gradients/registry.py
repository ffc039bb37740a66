"""The table of gradient rules, and of ops without one, each with the reason."""

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

ROWS = abi.constant("INGOT_K_BLOCK")  # rows that are summed together, as in matrix products


class Backward(Builder):
    """Add the nodes of gradients at the end of a graph, named after the value whose gradient they propagate.

    A float operand becomes a constant of the dtype of that value, an int operand one of i64. All dims are ints.
    """

    def __init__(self, graph: Graph):
        super().__init__(graph)
        self._about, self._constants = "", dict[tuple[float, DType], str]()

    def at(self, value: str) -> None:
        """Select the value whose gradient is propagated next: new nodes get the origin of its producer."""
        self._about, maker = value, self.graph.producer(value)
        self.graph.origin = () if maker is None else maker.sources

    def _add(self, op: str, *operands: str | float | int | None, **attributes: Any) -> str:
        names = [self.constant(o) if isinstance(o, (int, float)) else o for o in operands]
        return self.graph.add(op, names, f"{self._about}.gradient", **attributes).output

    def constant(self, value: float | int, dtype: DType | None = None) -> str:
        """Return a number as a constant of shape []; each number is added once. The default dtype is described by the
        class.
        """
        dtype = dtype or (i64 if isinstance(value, int) else self.type(self._about).dtype)
        if (value, dtype) not in self._constants:
            name = self.graph.fresh(f"{self._about}.gradient.constant")
            self._constants[value, dtype] = self.array(name, np.array(value, dtype.numpy))
        return self._constants[value, dtype]

    def array(self, name: str, data: np.ndarray) -> str:
        """Add an array as a constant."""
        return self.graph.add_constant(self.graph.fresh(name), data)

    def zeros(self, like: str) -> str:
        """Return zeros of a value's type, as a view of one element."""
        type = self.type(like)
        return self.expand(self.constant(0.0, type.dtype), shape=type.shape)

    def like(self, d: str, value: str) -> str:
        """Reshape d to the shape of a value, which has as many elements."""
        shape = self.type(value).shape
        return d if self.type(d).shape == shape else self.reshape(d, shape=shape)

    def summed(self, d: str, value: str) -> str:
        """Sum d over the axes along which a value was broadcast to d's shape."""
        shape, wide = self.type(value).shape, self.type(d).shape
        lead = len(wide) - len(shape)
        axes = tuple(i for i, dim in enumerate(wide) if i < lead or (shape[i - lead] == 1 and dim != 1))
        if axes == tuple(range(len(wide) - 1)) and (blocks := row_blocks(math.prod(self.type(d).dims[:-1]))) > 1:
            return self.like(self._sum_of_blocks(d, blocks), value)
        return self.like(self.reduce_sum(d, axes=axes, keepdims=True) if axes else d, value)

    def _sum_of_blocks(self, d: str, blocks: int) -> str:
        """Sum the rows of d: within each block, then block by block."""
        columns = self.type(d).dims[-1]
        sums = self.reduce_sum(self.reshape(d, shape=(blocks, ROWS, columns)), axes=(1,), keepdims=False)
        total = None
        for i in range(blocks):
            block = self.slice(sums, starts=(i, 0), stops=(i + 1, columns), steps=(1, 1))
            total = block if total is None else self.add(total, block)
        assert total is not None
        return total


def row_blocks(rows: int) -> int:
    """Return the number of blocks of ROWS that are summed one after another, so that a batch processed in parts of
    whole blocks gives the same bits; 1 if rows are not split.
    """
    return rows // ROWS if rows and rows % ROWS == 0 else 1


# A rule gets the node and a gradient for each result, None where nothing depends on it. It returns a gradient for each
# operand, None where there is none; for one operand, the gradient itself.
Rule = Callable[..., "str | Sequence[str | None] | None"]


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient rule. refuse: why it does not apply to a node, or ""; the op then counts as having no rule."""

    row: Rule
    refuse: Callable[[Node], str]


GRADIENTS: dict[str, Gradient] = {}


def gradient(*ops: str, refuse: Callable[[Node], str] = lambda node: "") -> Callable[[Rule], Rule]:
    """Declare the gradient rule of ops: `row(g, node, *gradients)` adds plain ops through a `Backward`."""

    def declare(row: Rule) -> Rule:
        for op in ops:
            assert op not in GRADIENTS or GRADIENTS[op].row.__qualname__ == row.__qualname__, f"{op} has two rules"
            GRADIENTS[op] = Gradient(row, refuse)
        return row

    return declare


@dataclass(frozen=True, slots=True)
class Unrolled:
    """The decomposition of an op into steps through which gradients flow. refuse: why a node, with a number of steps,
    cannot be decomposed, or "".
    """

    write: Callable[..., Any]
    refuse: Callable[[Node, int], str]


UNROLLED: dict[str, Unrolled] = {}


def unrolled(op: str, *, refuse: Callable[[Node, int], str]) -> Callable[..., Any]:
    """Declare the decomposition of an op: `write(g, *operands, **attributes)` returns its result or results, built
    through an `Expansion`.
    """

    def declare(write: Callable[..., Any]) -> Callable[..., Any]:
        UNROLLED[op] = Unrolled(write, refuse)
        return write

    return declare


def _listed(reason: str, ops: str) -> dict[str, str]:
    return dict.fromkeys(ops.split(), reason)


# Ops through which no gradient flows, correctly: a small change of the operands changes no float of the result.
FLAT: dict[str, str] = {
    **_listed("constant between its steps", "floor ceil round sign floor_div tree_ensemble"),
    **_listed(
        "its result is not a float",
        """isnan isinf equal not_equal less less_equal greater greater_equal logical_not logical_and logical_or
        logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor shift_left shift_right argmax argmin
        max_pool_indices nonzero non_max_suppression measure dims quantize matmul_integer conv_integer
        quantize_groups affine_blocks string_concat string_normalize string_split regex_full_match sequence_length
        has_element decode_image refuse has_rank checked_index gcd pivoted_rows""",
    ),
    **_listed(
        "its operands are not floats",
        """iota random_uniform draw_uniform tfidf label_encode unpack unpack_bits decode_blocks absent
        repeated_ngrams""",
    ),
    **_listed("it reinterprets bits", "bitcast"),
    **_listed("the model stops gradients here", "detach"),
}

# Ops that have a gradient which is not implemented: a model that needs one is rejected, with this reason.
MISSING: dict[str, str] = {
    **_listed("it runs subgraphs", "if loop scan sequence_map"),
    **_listed(
        "sequences, dictionaries and optionals carry no gradients",
        """sequence sequence_insert sequence_erase sequence_at split_to_sequence concat_from_sequence zip_map
        optional get_element""",
    ),
    **_listed("its result size depends on data", "compress unique arange"),
    **_listed("its axes are data", "reduce_over"),
    **_listed("its rank is only known at run time", "as_rank squeeze"),
    **_listed(
        "it reads or writes a cache shared by runs",
        """append_keys append_values append_keys_int8 append_values_int8 append_keys_int4 append_values_int4
        cached_attention causal_conv linear_attention_of_rows linear_recurrence selective_scan
        wkv""",
    ),
    **_listed("no op computes the cofactors that it needs", "det"),
    **_listed("a quotient of products fails at zeros", "cumprod"),
    **_listed("its scale is chosen for the data", "dynamic_quantize"),
    **_listed("it ends a training step", "adamw sgd"),
    **_listed("it is solved iteratively", "pairwise_coupling"),
    **_listed("it keeps no states of its steps", "linear_attention"),
    **_listed("no op computes its derivative", "airy_ai bessel digamma erfcx i0e i1 i1e igamma ndtri polynomial zeta"),
    **_listed(
        "no op computes the derivative of a factorization",
        """cholesky eig eigh householder_product ldl_factor ldl_solve lu_factor matrix_exp qr_factor solve_triangular
        svd""",
    ),
}

"""Multi-head latent attention: keys and values of all heads are computed from one short vector of a position.

DeepSeek-AI, "DeepSeek-V2", 2024 (arXiv:2405.04434).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dtype import f32
from ingot.load.hf.builder import LayerBuilder
from ingot.load.hf.layers import Latent
from ingot.load.hf.settings import MAX_SIZE


class _Sizes(NamedTuple):
    """Heads, the plain and the rotated elements of keys, the elements of values, and those of the short vector."""

    heads: int
    plain: int
    rotated: int
    value: int
    rank: int


def project_latent(builder: LayerBuilder, latent: Latent, x: str) -> tuple[str, str, str]:
    """Compute the queries, keys and values of x [.., width], each [.., heads, its size].

    The rotated elements of queries and keys come first. Raises LoadError.
    """
    add, columns, sizes = builder.add, builder.columns, _sizes(builder, latent)
    heads, plain, rotated, value, rank = sizes
    rotated_q, plain_q = _queries(builder, latent, x, sizes)
    vector, rotated_k = _vector(builder, latent, x, sizes)
    each = builder.linear(latent.kv_b, vector, rank, heads * (plain + value))
    each = add("reshape", each, hint="heads", shape=(*builder.rows, heads, plain + value))
    rotated_k = add("expand", rotated_k, hint="rotary_part", shape=(*builder.rows, heads, rotated))
    q = _joined(builder, rotated_q, plain_q, "queries")
    k = _joined(builder, rotated_k, columns(each, 0, plain), "keys")
    return q, k, columns(each, plain, plain + value)


def is_absorbed(builder: LayerBuilder, latent: Latent) -> bool:
    """Return whether a cache of short vectors, as keys and as values, is smaller than one of the keys and values of
    all heads.
    """
    heads, plain, rotated, value, rank = _sizes(builder, latent)
    is_plain = latent.kv_b.adapter is None and not latent.kv_b.bias.evaluate(builder.names)
    return is_plain and rotated + 2 * rank < heads * (plain + rotated + value)


def absorb_latent(builder: LayerBuilder, latent: Latent, x: str) -> tuple[str, str, str, str]:
    """Compute queries [rows, heads, rotated + rank] of x [rows, width], and what all heads share: keys [rows, 1,
    rotated + rank] and values [rows, 1, rank]. Return also the matrices [heads, value, rank] of the attended vectors.

    A key is a matrix of its head times the short vector, so a query times that matrix gives the scores of the vectors
    themselves; a value is another matrix times the mean of the vectors that attention gives. Raises LoadError.
    """
    add, sizes = builder.add, _sizes(builder, latent)
    heads, plain, _, value, rank = sizes
    rotated_q, plain_q = _queries(builder, latent, x, sizes)
    vector, rotated_k = _vector(builder, latent, x, sizes)
    vector = add("reshape", vector, hint="vector", shape=(*builder.rows, 1, rank))
    # The matrices of the heads stay floats: those of the queries are read transposed, across the groups of a
    # quantized matrix.
    matrices, is_transposed = builder.weights.matrix(
        f"{builder.path}{latent.kv_b.path}.weight",
        rank,
        heads * (plain + value),
        latent.kv_b.transposed,
        latent.kv_b.where,
        min_bits=f32.bits,
    )
    if is_transposed:
        matrices = add("permute", matrices, hint="matrices", axes=(1, 0))
    matrices = add("reshape", matrices, hint="matrices", shape=(heads, plain + value, rank))
    of_keys, of_values = (
        add("slice", matrices, hint="matrices", starts=(0, start, 0), stops=(heads, stop, rank), steps=(1, 1, 1))
        for start, stop in ((0, plain), (plain, plain + value))
    )
    of_queries = add("permute", of_keys, hint="matrices", axes=(0, 2, 1))
    q = _joined(builder, rotated_q, multiply_heads(builder, plain_q, of_queries), "queries")
    return q, _joined(builder, rotated_k, vector, "keys"), vector, of_values


def multiply_heads(builder: LayerBuilder, x: str, matrices: str) -> str:
    """Multiply each head of x [rows, heads, inputs] by a matrix of [heads, outputs, inputs]: [rows, heads, outputs]."""
    graph = builder.graph
    heads = graph.type(matrices).shape[0]
    assert isinstance(heads, int)
    numbers = graph.add_constant(graph.fresh("heads.numbers"), np.arange(heads, dtype=np.int64)[None])
    chosen = builder.add("expand", numbers, hint="heads", shape=(*builder.rows, heads))
    return builder.add("expert_matmul", x, chosen, matrices, hint="heads")


def _sizes(builder: LayerBuilder, latent: Latent) -> _Sizes:
    plain, rotated, value, rank = (
        each.integer(builder.names, 1, MAX_SIZE)
        for each in (latent.plain, latent.rotated, latent.value, latent.kv_rank)
    )
    return _Sizes(builder.names["heads"], plain, rotated, value, rank)


def _joined(builder: LayerBuilder, rotated: str, plain: str, hint: str) -> str:
    return builder.add("concat", rotated, plain, hint=hint, axis=len(builder.rows) + 1)


def _vector(builder: LayerBuilder, latent: Latent, x: str, sizes: _Sizes) -> tuple[str, str]:
    """Return the short vector [.., rank], and the rotated elements [.., 1, rotated] of all keys."""
    rank, rotated = sizes.rank, sizes.rotated
    both = builder.linear(latent.kv_a, x, builder.names["width"], rank + rotated)
    vector = builder.norm(latent.kv_norm, builder.columns(both, 0, rank))
    vector = builder.scaled(latent.kv_factor.number(builder.names), vector)
    part = builder.columns(both, rank, rank + rotated)
    return vector, builder.add("reshape", part, hint="rotary_part", shape=(*builder.rows, 1, rotated))


def _queries(builder: LayerBuilder, latent: Latent, x: str, sizes: _Sizes) -> tuple[str, str]:
    """Return the rotated and the plain elements of queries, each [.., heads, its size]."""
    heads, plain, rotated = sizes.heads, sizes.plain, sizes.rotated
    width, rank = builder.names["width"], latent.q_rank.integer(builder.names, 0, MAX_SIZE)
    outputs = heads * (plain + rotated)
    if not rank:
        if latent.q is None:
            fields = builder.settings.field(*latent.q_rank.names)
            raise LoadError(f"{fields}: got none, expected the rank of the queries ({latent.where})")
        q = builder.linear(latent.q, x, width, outputs)
    else:
        if latent.q_a is None or latent.q_norm is None or latent.q_b is None:
            raise LoadError(f"{latent.where}: q_rank: got {rank}, expected q_a, q_norm and q_b with it")
        short = builder.norm(latent.q_norm, builder.linear(latent.q_a, x, width, rank))
        q = builder.linear(latent.q_b, short, rank, outputs)
    q = builder.scaled(latent.q_factor.number(builder.names), q)
    q = builder.add("reshape", q, hint="heads", shape=(*builder.rows, heads, plain + rotated))
    return builder.columns(q, plain, plain + rotated), builder.columns(q, 0, plain)

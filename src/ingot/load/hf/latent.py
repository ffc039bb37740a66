"""Multi-head latent attention: keys and values of all heads are computed from one short vector of a position.

DeepSeek-AI, "DeepSeek-V2", 2024 (arXiv:2405.04434).
"""

from __future__ import annotations

from ingot.errors import LoadError
from ingot.load.hf.builder import LayerBuilder
from ingot.load.hf.layers import Latent
from ingot.load.hf.settings import MAX_SIZE


def project_latent(builder: LayerBuilder, latent: Latent, x: str) -> tuple[str, str, str]:
    """Compute the queries, keys and values of x [.., width], each [.., heads, its size].

    The rotated elements of queries and keys come first. Raises LoadError.
    """
    names, add, columns = builder.names, builder.add, builder.columns
    heads, width = names["heads"], names["width"]
    plain, rotated, value, kv_rank = (
        each.integer(names, 1, MAX_SIZE) for each in (latent.plain, latent.rotated, latent.value, latent.kv_rank)
    )
    last = len(builder.rows) + 1

    def per_head(x: str, size: int) -> str:
        return add("reshape", x, hint="heads", shape=(*builder.rows, heads, size))

    q = per_head(_queries(builder, latent, x, heads * (plain + rotated)), plain + rotated)
    q = add("concat", columns(q, plain, plain + rotated), columns(q, 0, plain), hint="queries", axis=last)
    both = builder.linear(latent.kv_a, x, width, kv_rank + rotated)
    shared = builder.scaled(latent.kv_factor.number(names), builder.norm(latent.kv_norm, columns(both, 0, kv_rank)))
    each = per_head(builder.linear(latent.kv_b, shared, kv_rank, heads * (plain + value)), plain + value)
    rotary_part = add(
        "reshape", columns(both, kv_rank, kv_rank + rotated), hint="rotary_part", shape=(*builder.rows, 1, rotated)
    )
    rotary_part = add("expand", rotary_part, hint="rotary_part", shape=(*builder.rows, heads, rotated))
    k = add("concat", rotary_part, columns(each, 0, plain), hint="keys", axis=last)
    return q, k, columns(each, plain, plain + value)


def _queries(builder: LayerBuilder, latent: Latent, x: str, outputs: int) -> str:
    width, rank = builder.names["width"], latent.q_rank.integer(builder.names, 0, MAX_SIZE)
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
    return builder.scaled(latent.q_factor.number(builder.names), q)

"""Multi-head latent attention: keys and values of all heads are computed from one short vector of a position.

DeepSeek-AI, "DeepSeek-V2", 2024 (arXiv:2405.04434).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingot.errors import LoadError
from ingot.load.hf.document import Item
from ingot.load.hf.expression import Expression
from ingot.load.hf.settings import MAX_SIZE

if TYPE_CHECKING:
    from ingot.load.hf.builder import LayerBuilder
    from ingot.load.hf.template import Linear, Norm


@dataclass(frozen=True, slots=True)
class Latent:
    """The projections of latent attention.

    Queries are q(x), or q_b(q_norm(q_a(x))) where `q_rank` is not 0: heads of `plain` and then `rotated` elements.
    kv_a(x) gives a vector of kv_rank elements, and the rotated elements of the keys of all heads. kv_b(kv_norm(vector))
    gives heads of the plain elements of a key, and a value of `value` elements.
    """

    where: str
    q: Linear | None
    q_a: Linear | None
    q_norm: Norm | None
    q_b: Linear | None
    q_rank: Expression
    q_factor: Expression  # of the queries
    kv_a: Linear
    kv_norm: Norm
    kv_b: Linear
    kv_rank: Expression
    kv_factor: Expression  # of the normalised vector
    plain: Expression
    rotated: Expression
    value: Expression


def read_latent(item: Item, linear: Callable[[Item], Linear], norm: Callable[[Item], Norm]) -> Latent:
    """Return the projections that an item describes. Raises LoadError."""
    found = item.fields(
        ("kv_a", "kv_norm", "kv_b", "kv_rank", "plain", "rotated", "value"),
        ("q", "q_a", "q_norm", "q_b", "q_rank", "q_factor", "kv_factor"),
    )
    if not {"q"} <= found.keys() and not {"q_a", "q_norm", "q_b", "q_rank"} <= found.keys():
        raise LoadError(f"{item.where}: no queries, expected q, or q_a, q_norm, q_b and q_rank")
    linears = {key: linear(found[key]) for key in ("q", "q_a", "q_b") if key in found}

    def number(key: str, default: str) -> Expression:
        return found[key].expression() if key in found else Expression(default, item.where)

    return Latent(
        item.where,
        q=linears.get("q"),
        q_a=linears.get("q_a"),
        q_norm=norm(found["q_norm"]) if "q_norm" in found else None,
        q_b=linears.get("q_b"),
        q_rank=number("q_rank", "0"),
        q_factor=number("q_factor", "1"),
        kv_a=linear(found["kv_a"]),
        kv_norm=norm(found["kv_norm"]),
        kv_b=linear(found["kv_b"]),
        kv_rank=found["kv_rank"].expression(),
        kv_factor=number("kv_factor", "1"),
        plain=found["plain"].expression(),
        rotated=found["rotated"].expression(),
        value=found["value"].expression(),
    )


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
    turned = add("reshape", columns(both, kv_rank, kv_rank + rotated), hint="turned", shape=(*builder.rows, 1, rotated))
    turned = add("expand", turned, hint="turned", shape=(*builder.rows, heads, rotated))
    k = add("concat", turned, columns(each, 0, plain), hint="keys", axis=last)
    return q, k, columns(each, plain, plain + value)


def _queries(builder: LayerBuilder, latent: Latent, x: str, outputs: int) -> str:
    width, rank = builder.names["width"], latent.q_rank.integer(builder.names, 0, MAX_SIZE)
    if not rank:
        if latent.q is None:
            fields = builder.settings.field(*latent.q_rank.names)
            raise LoadError(f"{fields}: got none, expected the rank of the queries ({latent.where})")
        q = builder.linear(latent.q, x, width, outputs)
    else:
        assert latent.q_a and latent.q_norm and latent.q_b
        short = builder.norm(latent.q_norm, builder.linear(latent.q_a, x, width, rank))
        q = builder.linear(latent.q_b, short, rank, outputs)
    return builder.scaled(latent.q_factor.number(builder.names), q)

"""Records of the layers of steps: linear layers, norms and the projections of latent attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingot.errors import LoadError
from ingot.load.hf.document import Item
from ingot.load.hf.expression import Expression


@dataclass(frozen=True, slots=True)
class Adapter:
    """A product of low rank that is added to that of a linear layer: up(down(x)) with `rank` elements; 0 for none.

    {index} in a path is the number `index`.
    """

    down: str
    up: str
    rank: Expression
    index: Expression


@dataclass(frozen=True, slots=True)
class Linear:
    """`<path>.weight`, [out, in] or [in, out], and `<path>.bias` where `bias` is true.

    bias_paths: other names of the bias; the first one that the folder has is read.
    """

    where: str
    path: str
    bias: Expression
    transposed: bool
    bias_paths: tuple[str, ...] = ()
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """`rms_norm` or `layer_norm` with `<path>.weight` where `weight` is true.

    over, for norms of queries and keys: "head" (each head), "all" (all heads together), "heads" (each head, with
    weights of its own).
    """

    where: str
    path: str
    op: str
    eps: Expression
    bias: Expression
    unit_offset: Expression
    over: str
    weight: Expression
    when: Expression  # without the norm where it is false


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


def read_adapter(item: Item) -> Adapter:
    """Return the adapter that an item describes. Raises LoadError."""
    found = item.fields(("down", "up", "rank"), ("index",))
    index = found["index"].expression() if "index" in found else Expression("0", item.where)
    return Adapter(found["down"].text(), found["up"].text(), found["rank"].expression(), index)


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

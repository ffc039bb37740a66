"""Parts of the attention step of a template: projections, norms, rotation, and the product with the output matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from ingot.errors import LoadError
from ingot.load.hf.builder import LayerBuilder
from ingot.load.hf.latent import absorb_latent, is_absorbed, project_latent
from ingot.load.hf.layers import Norm
from ingot.load.hf.rope import Rotations, rope_of
from ingot.load.hf.settings import MAX_SIZE
from ingot.load.hf.template import Attention, PositionScale

# Adds a table [context, columns] to the graph under a name; returns the row of each position, [rows.., 1, columns].
Placed = Callable[[LayerBuilder, str, np.ndarray], str]


class Projected(NamedTuple):
    """Queries, keys and values, each [.., heads, head_dim]; None for keys and values of another layer.

    gate: [.., heads, head_dim], whose sigmoid multiplies the result of attention; None for none. expansion: [heads,
    outputs, inputs], the matrix of each head that the result of attention is multiplied by; None for none.
    """

    q: str
    k: str | None
    v: str | None
    gate: str | None = None
    expansion: str | None = None


def projected(builder: LayerBuilder, attention: Attention, x: str, *, is_cached: bool = False) -> Projected:
    """Compute the queries, keys and values of x [.., width].

    is_cached: whether keys and values should be small, with one head for all heads of queries if possible.
    """
    if attention.latent is not None:
        if is_cached and is_absorbed(builder, attention.latent):
            q, k, v, expansion = absorb_latent(builder, attention.latent, x)
            return Projected(q, k, v, expansion=expansion)
        return Projected(*project_latent(builder, attention.latent, x))
    names = builder.names
    heads, kv_heads, head_dim = names["heads"], names["kv_heads"], names["head_dim"]
    if heads % kv_heads:
        fields = builder.settings.field("heads", "kv_heads")
        raise LoadError(f"{fields}: heads do not divide into groups, got {heads} and {kv_heads}")
    q_norm, k_norm = (None, None) if attention.is_rotated_first else (attention.q_norm, attention.k_norm)
    gate, value = None, head_dim
    if attention.qkv is not None:
        q, k, v = _split(builder, attention, x)
    else:
        assert attention.q and attention.k
        width = builder.columns_of(x)
        if attention.gated.evaluate(names):
            both = builder.linear(attention.q, x, width, heads * 2 * head_dim)
            both = builder.add("reshape", both, hint="heads", shape=(*builder.rows, heads, 2 * head_dim))
            gate, q = builder.columns(both, head_dim, 2 * head_dim), builder.columns(both, 0, head_dim)
        else:
            q = builder.linear(attention.q, x, width, heads * head_dim)
        if is_sharing(attention, names):
            return Projected(_heads(builder, attention, q, q_norm, head_dim), None, None, gate)
        k = builder.linear(attention.k, x, width, kv_heads * head_dim)
        value = attention.value.integer(names, 1, MAX_SIZE)
        v = k if attention.v is None else builder.linear(attention.v, x, width, kv_heads * value)
    k, v = _heads(builder, attention, k, k_norm, head_dim), _heads(builder, attention, v, attention.v_norm, value)
    v = builder.scaled(attention.value_scale.number(names), v)
    return Projected(_heads(builder, attention, q, q_norm, head_dim), k, v, gate)


def is_sharing(attention: Attention, names: Mapping[str, Any]) -> bool:
    """Return whether the layer with these names reads the keys and values of another one."""
    shared = attention.shared
    return shared is not None and names["layer"] >= shared.start.integer(names, 0, MAX_SIZE)


class Kept:
    """What layers keep of their keys and values, for the layers that share them."""

    def __init__(self) -> None:
        self._last: dict[Any, Any] = {}

    def keep(self, builder: LayerBuilder, attention: Attention, built: Any) -> None:
        """Keep what a layer built, if later layers can read it."""
        if attention.shared is not None:
            self._last[attention.shared.like.evaluate(builder.names)] = built

    def of(self, builder: LayerBuilder, attention: Attention) -> Any:
        """Return what the layer that the current one shares with built. Raises LoadError if there is none."""
        assert attention.shared is not None
        like = attention.shared.like.evaluate(builder.names)
        if like not in self._last:
            raise LoadError(f"{attention.shared.like.where}: no earlier layer with keys to share, got {like!r}")
        return self._last[like]


def output(builder: LayerBuilder, attention: Attention, x: str, result: str, gate: str | None) -> str:
    """Return the output [.., width] of an attention step for x, from the attended values [.., heads, head_dim].

    gate: as in `Projected`.
    """
    if gate is not None:
        result = builder.add("mul", result, builder.add("sigmoid", gate, hint="gate"), hint="gated")
    *_, heads, head_dim = builder.graph.type(result).shape
    assert isinstance(heads, int) and isinstance(head_dim, int)
    columns = heads * head_dim
    if attention.head_gate is not None:
        share = builder.add("sigmoid", builder.linear(attention.head_gate, x, builder.columns_of(x), heads))
        share = builder.add("reshape", share, hint="gate", shape=(*builder.rows, heads, 1))
        result = builder.add("mul", result, share, hint="gated")
    result = builder.add("reshape", result, hint="heads", shape=(*builder.rows, columns))
    if attention.out_norm is not None:
        result = builder.norm(attention.out_norm, result)
    if attention.gate is not None:
        share = builder.add("sigmoid", builder.linear(attention.gate, x, builder.names["width"], columns))
        result = builder.add("mul", result, share, hint="gated")
    return builder.linear(attention.out, result, columns, builder.names["width"])


def sinks(builder: LayerBuilder, attention: Attention) -> str | None:
    """Return the additional score of each head, [heads]; None for a layer without."""
    if attention.sinks is None or not attention.has_sinks.evaluate(builder.names):
        return None
    name = f"{builder.path}{attention.sinks}"
    return builder.weights.value(name, (builder.names["heads"],), attention.where)


def _heads(builder: LayerBuilder, attention: Attention, x: str, norm: Norm | None, head_dim: int) -> str:
    """Return x [.., heads * head_dim] or [.., heads, head_dim] as the latter, clipped, and normalized by `norm`."""
    bound = attention.clip.number(builder.names)
    if norm is not None and norm.over == "all":
        x = builder.norm(norm, x)
    if bound:
        x = builder.add("clip", x, minimum=-bound, maximum=bound)
    if len(builder.graph.type(x).shape) == len(builder.rows) + 1:
        columns = builder.graph.type(x).shape[-1]
        assert isinstance(columns, int)
        x = builder.add("reshape", x, hint="heads", shape=(*builder.rows, columns // head_dim, head_dim))
    return builder.norm(norm, x) if norm is not None and norm.over != "all" else x


def _split(builder: LayerBuilder, attention: Attention, x: str) -> list[str]:
    """Return q, k and v, split from one product, each [.., heads * head_dim] or [.., heads, head_dim]."""
    assert attention.qkv is not None and attention.split is not None
    names, order = builder.names, attention.split.order
    heads, kv_heads, head_dim = (names[name] for name in ("heads", "kv_heads", "head_dim"))
    blocks = attention.split.blocks.integer(names, 1, MAX_SIZE)
    if kv_heads % blocks or heads % blocks:
        fields = builder.settings.field("heads", "kv_heads")
        raise LoadError(f"{fields}: got {heads} and {kv_heads}, expected multiples of {blocks} ({attention.where})")
    columns = (heads + 2 * kv_heads) * head_dim
    fused = builder.linear(attention.qkv, x, names["width"], columns)
    if blocks > 1:
        fused = builder.add("reshape", fused, hint="blocks", shape=(*builder.rows, blocks, columns // blocks))
    each = {"q": heads // blocks, "k": kv_heads // blocks, "v": kv_heads // blocks}
    ends = accumulate((each[part] * head_dim for part in order), initial=0)
    found = {part: builder.columns(fused, a, b) for part, (a, b) in zip(order, pairwise(ends), strict=True)}
    if blocks > 1:
        for part, count in each.items():
            if count > 1:
                shape = (*builder.rows, blocks * count, head_dim)
                found[part] = builder.add("reshape", found[part], hint="heads", shape=shape)
    return [found[part] for part in ("q", "k", "v")]


class Positions:
    """Rotation and scaling of queries and keys by their positions, with tables that all layers share."""

    def __init__(self, rotations: Rotations, context: int, placed: Placed):
        self._rotations, self._context, self._placed = rotations, context, placed
        self._factors: dict[tuple[float, float, int], str] = {}

    def queries(self, builder: LayerBuilder, attention: Attention, q: str) -> str:
        """Rotate q [.., heads, head_dim], apply a norm that follows the rotation, and scale it."""
        q = self._rotated(builder, attention, q, attention.q_norm)
        if attention.position_scale is not None and attention.position_scale.beta.number(builder.names):
            q = builder.add("mul", q, self._factor(builder, attention.position_scale), hint="scaled")
        return q

    def keys(self, builder: LayerBuilder, attention: Attention, k: str) -> str:
        """Rotate k [.., kv_heads, head_dim], and apply a norm that follows the rotation."""
        return self._rotated(builder, attention, k, attention.k_norm)

    def _rotated(self, builder: LayerBuilder, attention: Attention, x: str, norm: Norm | None) -> str:
        rope = rope_of(attention, builder.names, builder.template)
        if rope is not None:
            cos, sin = self._rotations.of(rope, builder.names, lambda name, table: self._placed(builder, name, table))
            x = rotated(builder, x, cos, sin, builder.template.ropes[rope].pairs)
        return builder.norm(norm, x) if norm is not None and attention.is_rotated_first else x

    def _factor(self, builder: LayerBuilder, scale: PositionScale) -> str:
        """Return the factor of queries at each position, [rows.., 1, 1]."""
        beta, length = scale.beta.number(builder.names), scale.length.number(builder.names)
        first = scale.first.integer(builder.names, 0, MAX_SIZE)
        if (beta, length, first) not in self._factors:
            table = 1 + beta * np.log(1 + np.floor(np.arange(first, first + self._context) / length))
            name = f"position_scale.{len(self._factors)}"
            self._factors[beta, length, first] = self._placed(builder, name, table.astype(np.float32)[:, None])
        return self._factors[beta, length, first]


def rotated(builder: LayerBuilder, x: str, cos: str, sin: str, pairs: str) -> str:
    """Rotate the first elements of x [.., heads, head_dim], as many as there are angles.

    Pairs of adjacent elements are moved to the same positions of two halves and stay there: products of queries with
    keys do not depend on the order of elements.
    """
    *_, head_dim = builder.graph.type(x).shape
    *_, dim = builder.graph.type(cos).shape
    assert isinstance(head_dim, int) and isinstance(dim, int)
    part = x if dim == head_dim else builder.columns(x, 0, dim)
    if pairs == "adjacent":
        *outer, _ = builder.graph.type(part).shape
        part = builder.add("reshape", part, hint="pairs", shape=(*outer, dim // 2, 2))
        last = len(outer)
        part = builder.add("permute", part, hint="pairs", axes=(*range(last), last + 1, last))
        part = builder.add("reshape", part, hint="halves", shape=(*outer, dim))
    part = builder.add("rotary", part, cos, sin, hint="rotated")
    if dim == head_dim:
        return part
    axis = len(builder.graph.type(x).shape) - 1
    return builder.add("concat", part, builder.columns(x, dim, head_dim), hint="rotated", axis=axis)

"""Mixtures of experts: a router selects some of many gated mlps for each row.

Shazeer et al., 2017 (arXiv:1701.06538); groups and biased selection: DeepSeek-AI, 2024 (arXiv:2405.04434, 2412.19437);
sparsemixer: Liu et al., 2023 (arXiv:2310.00811).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingot.errors import LoadError
from ingot.load.hf.document import Item
from ingot.load.hf.expression import Expression
from ingot.load.hf.layers import Linear

SCORES = ("softmax", "sigmoid", "logits", "sparsemixer")


@dataclass(frozen=True, slots=True)
class Experts:
    """The matrices of all experts: `tensor` with {expert}, or one tensor for all of them.

    bias: a tensor [count, outputs], or with {expert}. transposed: each matrix is [inputs, outputs]. is_flat: the one
    tensor has no dim of experts, their rows are below each other. alternates: gate and up are alternating outputs.
    """

    where: str
    tensor: str
    bias: str | None
    transposed: bool
    is_flat: bool
    alternates: bool


@dataclass(frozen=True, slots=True)
class Groups:
    """Experts in `count` equal groups, of which `chosen` are open to a row: those with the largest sum of their `best`
    largest scores.
    """

    count: Expression
    chosen: Expression
    best: Expression


@dataclass(frozen=True, slots=True)
class Clamp:
    """The gated product (up + shift) * gate * sigmoid(alpha * gate), with gate at most `limit`, and up of at most this
    size.
    """

    limit: Expression
    alpha: Expression
    shift: Expression


@dataclass(frozen=True, slots=True)
class LatentExperts:
    """Experts that read `into` of the rows, vectors of `size` elements; `out_of` maps their sum back.

    If `size` is 0, they read the rows.
    """

    into: Linear
    out_of: Linear
    size: Expression


@dataclass(frozen=True, slots=True)
class Correction:
    """A tensor that is added to the scores for the selection, where `when` is true; rank 2: it is stored as one row.

    is_optional: whether files without it select by the scores alone.
    """

    tensor: str
    rank: int
    when: Expression
    is_optional: bool


@dataclass(frozen=True, slots=True)
class Together:
    """Two tensors with the weights of all experts: one of the gate and up projections, one of the down projections."""

    gate_up: Experts
    down: Experts


@dataclass(frozen=True, slots=True)
class Mixture:
    """A router selects `chosen` of `count` mlps for each row; their results are summed, weighted by its scores.

    The experts with the largest corrected score are selected. Without gate, an expert is down(activation(up)).
    """

    where: str
    router: Linear
    scores: str
    correction: Correction | None
    groups: Groups | None
    count: Expression
    identities: Expression  # the number of further experts, which return the row as it is
    chosen: Expression
    weights: str  # "scores", or the "softmax" or "sigmoid" of the selected ones
    normalised: Expression  # whether the weights of the selected experts are normalized to sum 1
    floor: Expression  # the least number to divide by
    epsilon: Expression  # added to the number to divide by
    factor: Expression  # of the weights
    at: str  # what the weights multiply: "output" of the experts, or their "input"
    jitter: Expression  # the margin of sparsemixer
    gate: Experts | None
    up: Experts | None
    gate_up: Experts | None
    down: Experts
    together: Together | None  # used if the file has its tensors
    latent: LatentExperts | None
    activation: Expression
    clamp: Clamp | None
    size: Expression


def read_mixture(item: Item, linear: Callable[[Item], Linear], activation: Expression) -> Mixture:
    """Return the step that an item describes. linear: reads a linear layer; activation: of experts, by default.

    Raises LoadError.
    """
    found = item.fields(
        ("router", "down", "count", "chosen", "normalised", "size"),
        (
            "gate", "up", "gate_up", "activation", "scores", "correction", "groups", "weights", "floor", "epsilon",
            "factor", "at", "jitter", "clamp", "latent", "together",
            "identities",
        ),
    )  # fmt: skip
    projections = {key for key in ("gate", "up", "gate_up") if key in found}
    if projections not in ({"gate", "up"}, {"gate_up"}, {"up"}):
        raise LoadError(f"{item.where}: bad projections, got {sorted(projections)}, expected up, gate or gate_up")
    if "together" in found and projections != {"gate", "up"}:
        raise LoadError(f"{item.where}: together: got {sorted(projections)} next to it, expected gate and up")
    transposed = linear(found["router"]).transposed
    experts = {key: _experts(found[key], transposed) for key in ("gate", "up", "gate_up", "down") if key in found}

    def number(key: str, default: str) -> Expression:
        return found[key].expression() if key in found else Expression(default, item.where)

    def word(key: str, *options: str) -> str:
        return found[key].word(*options) if key in found else options[0]

    return Mixture(
        item.where,
        linear(found["router"]),
        scores=word("scores", *SCORES),
        correction=_correction(found["correction"]) if "correction" in found else None,
        groups=_groups(found["groups"]) if "groups" in found else None,
        count=found["count"].expression(),
        identities=number("identities", "0"),
        chosen=found["chosen"].expression(),
        weights=word("weights", "scores", "softmax", "sigmoid"),
        normalised=found["normalised"].expression(),
        floor=number("floor", "0"),
        epsilon=number("epsilon", "0"),
        factor=number("factor", "1"),
        at=word("at", "output", "input"),
        jitter=number("jitter", "0"),
        gate=experts.get("gate"),
        up=experts.get("up"),
        gate_up=experts.get("gate_up"),
        down=experts["down"],
        together=_together(found["together"], transposed) if "together" in found else None,
        latent=_latent(found["latent"], linear) if "latent" in found else None,
        activation=found["activation"].expression() if "activation" in found else activation,
        clamp=_clamp(found["clamp"]) if "clamp" in found else None,
        size=found["size"].expression(),
    )


def _experts(item: Item, transposed: bool) -> Experts:
    if item.is_text:
        return Experts(item.where, f"{item.text()}.weight", None, transposed, False, False)
    found = item.fields(("tensor",), ("bias", "layout", "stored", "order"))
    return Experts(
        item.where,
        found["tensor"].text(),
        found["bias"].text() if "bias" in found else None,
        found["layout"].word("out_in", "in_out") == "in_out" if "layout" in found else transposed,
        "stored" in found and found["stored"].word("stacked", "flat") == "flat",
        "order" in found and found["order"].word("halves", "alternating") == "alternating",
    )


def _together(item: Item, transposed: bool) -> Together:
    found = item.fields(("gate_up", "down"))
    return Together(_experts(found["gate_up"], transposed), _experts(found["down"], transposed))


def _latent(item: Item, linear: Callable[[Item], Linear]) -> LatentExperts:
    found = item.fields(("into", "out_of", "size"))
    return LatentExperts(linear(found["into"]), linear(found["out_of"]), found["size"].expression())


def _correction(item: Item) -> Correction:
    found = {"tensor": item} if item.is_text else item.fields(("tensor",), ("rank", "when", "optional"))
    rank = int(found["rank"].word("1", "2")) if "rank" in found else 1
    when = found["when"].expression() if "when" in found else Expression("true", item.where)
    is_optional = "optional" in found and found["optional"].word("true", "false") == "true"
    return Correction(found["tensor"].text(), rank, when, is_optional)


def _groups(item: Item) -> Groups:
    found = item.fields(("count", "chosen", "best"))
    return Groups(found["count"].expression(), found["chosen"].expression(), found["best"].expression())


def _clamp(item: Item) -> Clamp:
    found = item.fields(("limit", "alpha", "shift"))
    return Clamp(found["limit"].expression(), found["alpha"].expression(), found["shift"].expression())

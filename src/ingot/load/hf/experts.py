"""Build mixtures of experts: the router, the selection, the products with the selected experts, and their sum."""

from __future__ import annotations

import operator
from functools import reduce

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dtype import f32
from ingot.load.hf.activations import ACTIVATIONS
from ingot.load.hf.builder import LayerBuilder
from ingot.load.hf.mixture import Clamp, Correction, Experts, Groups, Mixture
from ingot.load.hf.settings import MAX_SIZE

MAX_EXPERTS = 1 << 14  # of a mixture, in a layer of a language model


def write_mixture(builder: LayerBuilder, mixture: Mixture, x: str) -> str:
    """Apply to every row of x the experts that its router selects: [..., width]. Raises LoadError."""
    rows = reduce(operator.mul, builder.rows)
    width = builder.names["width"]
    if len(builder.rows) > 1:
        x = builder.add("reshape", x, hint="rows", shape=(rows, width))
    mixed = _Writer(builder, mixture).mixed(x)
    return (
        builder.add("reshape", mixed, hint="mixture", shape=(*builder.rows, width)) if len(builder.rows) > 1 else mixed
    )


class _Writer:
    """Build one mixture for rows [rows, width]."""

    def __init__(self, builder: LayerBuilder, mixture: Mixture):
        names = builder.names
        self._builder = builder
        self._mixture = mixture
        self._add = builder.add
        self._rows = reduce(operator.mul, builder.rows)
        self._width = names["width"]
        self._size = mixture.size.integer(names, 1, MAX_SIZE)
        self._count = mixture.count.integer(names, 1, MAX_EXPERTS)
        self._identities = mixture.identities.integer(names, 0, MAX_EXPERTS)
        self._routed = self._count + self._identities
        self._chosen = mixture.chosen.integer(names, 1, MAX_SIZE)
        if self._chosen > self._routed:
            fields = builder.settings.field(*mixture.chosen.names, *mixture.count.names)
            raise LoadError(f"{fields}: too many, got {self._chosen} of {self._routed} ({mixture.where})")
        latent_size = 0 if mixture.latent is None else mixture.latent.size.integer(names, 0, MAX_SIZE)
        self._latent = mixture.latent if latent_size else None
        self._inputs = latent_size or self._width  # elements of a row that experts read
        self._gate, self._up, self._gate_up, self._down = mixture.gate, mixture.up, mixture.gate_up, mixture.down
        together = mixture.together
        if together is not None and builder.weights.has(f"{builder.path}{together.gate_up.tensor}"):
            self._gate_up, self._down = together.gate_up, together.down

    def mixed(self, x: str) -> str:
        """Return the weighted sum of the selected experts' results for x."""
        add, mixture, rows = self._add, self._mixture, self._rows
        # The router stays float: a rounded router may select other experts, which is no small error.
        routed = self._builder.linear(mixture.router, x, self._width, self._routed, min_bits=f32.bits)
        weights, experts = self._sparsemixer(routed) if mixture.scores == "sparsemixer" else self._selected(routed)
        weights, kept = self._scaled(weights), None
        if self._identities:
            weights, experts, kept = self._without_identities(weights, experts)
        weights = add("reshape", weights, hint="slots", shape=(rows, self._chosen, 1))
        read = x if self._latent is None else self._builder.linear(self._latent.into, x, self._width, self._inputs)
        slots = add("reshape", read, hint="slots", shape=(rows, 1, self._inputs))
        if mixture.at == "input":
            slots = add("mul", slots, weights, hint="weighted")
        results = self._product(self._down, self._inner(slots, experts), experts, self._size, self._inputs)
        if mixture.at == "output":
            results = add("mul", results, weights, hint="weighted")
        total = add("reduce_sum", results, axes=(1,), keepdims=False, hint="mixture")
        if self._latent is not None:
            total = self._builder.linear(self._latent.out_of, total, self._inputs, self._width)
        return total if kept is None else add("add", total, add("mul", x, kept, hint="kept"), hint="mixture")

    def _without_identities(self, weights: str, experts: str) -> tuple[str, str, str]:
        """Return weights and experts in which those that return their row have weight 0, and the sum of these
        experts' weights, [rows, 1].
        """
        add, constant = self._add, self._builder.constant
        dtype, zero = self._builder.graph.type(experts).dtype, constant(0.0)
        has_matrices = add("less", experts, constant(self._count, dtype), hint="has_matrices")
        kept = add("where", has_matrices, zero, weights, hint="kept")
        kept = add("reduce_sum", kept, axes=(1,), keepdims=True, hint="kept")
        experts = add("where", has_matrices, experts, constant(0, dtype), hint="chosen")
        return add("where", has_matrices, weights, zero, hint="shares"), experts, kept

    def _selected(self, routed: str) -> tuple[str, str]:
        """Return the weights [rows, chosen] of the selected experts, and their numbers."""
        mixture = self._mixture
        scores = routed if mixture.scores == "logits" else self._normed(mixture.scores, routed)
        ranked = scores
        if mixture.correction is not None and self._has(mixture.correction):
            shape = (1,) * (mixture.correction.rank - 1) + (self._routed,)
            ranked = self._add("add", scores, self._tensor(mixture.correction.tensor, shape), hint="corrected")
        if mixture.groups is not None:
            ranked = self._open(mixture.groups, ranked)
        weights, experts = self._best(ranked, self._chosen, 1)
        if ranked != scores:
            weights = self._add("gather_elements", scores, experts, hint="shares.chosen", axis=1)
        if mixture.weights != "scores":
            weights = self._normed(mixture.weights, weights)
        return weights, experts

    def _has(self, correction: Correction) -> bool:
        builder = self._builder
        is_there = not correction.is_optional or builder.weights.has(f"{builder.path}{correction.tensor}")
        return is_there and bool(correction.when.evaluate(builder.names))

    def _normed(self, kind: str, x: str) -> str:
        return self._add("softmax", x, axis=1) if kind == "softmax" else self._add("sigmoid", x)

    def _scaled(self, weights: str) -> str:
        """Normalise the weights and multiply them by the factor."""
        names, factor = self._builder.names, self._mixture.factor.number(self._builder.names)
        if self._mixture.normalised.evaluate(names):
            total = self._add("reduce_sum", weights, axes=(1,), keepdims=True, hint="shares.total")
            floor, epsilon = self._mixture.floor.number(names), self._mixture.epsilon.number(names)
            if epsilon > 0:
                total = self._add("add", total, self._builder.constant(epsilon), hint="shares.total")
            if floor > 0:
                total = self._add("clip", total, minimum=floor, hint="shares.total")
            weights = self._add("div", weights, total, hint="shares")
        return weights if factor == 1.0 else self._add("mul", weights, self._builder.constant(factor), hint="shares")

    def _best(self, x: str, k: int, axis: int) -> tuple[str, str]:
        """Return the k largest elements along an axis, and their indices."""
        graph, path = self._builder.graph, self._builder.path
        outputs = [f"{path}shares.chosen", f"{path}chosen"]
        values, indices = graph.add("topk", [x], outputs, k=k, axis=axis, largest=True).outputs
        return values, indices

    def _open(self, groups: Groups, scores: str) -> str:
        """Set the scores of experts outside the best groups of a row to -inf."""
        names, add, rows = self._builder.names, self._add, self._rows
        count, opened = groups.count.integer(names, 1, MAX_EXPERTS), groups.chosen.integer(names, 1, MAX_EXPERTS)
        best = groups.best.integer(names, 1, MAX_EXPERTS)
        each, rest = divmod(self._routed, count)
        if rest or opened > count or best > each or opened * each < self._chosen:
            fields = self._builder.settings.field(*groups.count.names, *groups.chosen.names)
            got = f"{opened} of {count} groups, for {self._chosen} of {self._routed} experts"
            raise LoadError(f"{fields}: groups do not fit, got {got} ({self._mixture.where})")
        if opened == count:
            return scores
        grouped = add("reshape", scores, hint="groups", shape=(rows, count, each))
        largest, _ = self._best(grouped, best, 2)
        _, chosen = self._best(add("reduce_sum", largest, axes=(2,), keepdims=False, hint="groups"), opened, 1)
        numbers = self._builder.graph.add_constant(
            self._builder.graph.fresh("groups.numbers"), np.arange(count, dtype=np.int64)
        )
        chosen = add("reshape", chosen, hint="groups.chosen", shape=(rows, opened, 1))
        hits = add("cast", add("equal", chosen, numbers, hint="groups.hit"), hint="groups.hits", dtype=f32)
        hits = add("reduce_sum", hits, axes=(1,), keepdims=False, hint="groups.open")
        is_open = add("greater", hits, self._builder.constant(0.0), hint="groups.open")
        is_open = add("reshape", is_open, hint="groups.open", shape=(rows, count, 1))
        masked = add("where", is_open, grouped, self._builder.constant(float("-inf")), hint="groups.masked")
        return add("reshape", masked, hint="ranked", shape=(rows, self._routed))

    def _sparsemixer(self, routed: str) -> tuple[str, str]:
        """Select experts one after another; the weight of each is its softmax among the logits near the largest one."""
        add, builder = self._add, self._builder
        margin = builder.constant(2 * self._mixture.jitter.number(builder.names))
        nothing = builder.constant(float("-inf"))
        numbers = builder.graph.add_constant(
            builder.graph.fresh("experts.numbers"), np.arange(self._routed, dtype=np.int64)
        )
        weights, experts, left = [], [], routed
        for _ in range(self._chosen):
            largest, chosen = self._best(left, 1, 1)
            gap = add("sub", largest, routed, hint="gap")
            reach = add("maximum", add("abs", routed), largest, hint="reach")
            is_far = add("greater", add("div", gap, reach, hint="gap"), margin, hint="far")
            shares = add("softmax", add("where", is_far, nothing, left, hint="near"), axis=1)
            weights.append(add("gather_elements", shares, chosen, hint="share", axis=1))
            experts.append(chosen)
            left = add("where", add("equal", chosen, numbers, hint="taken"), nothing, left, hint="left")
        return add("concat", *weights, axis=1, hint="shares"), add("concat", *experts, axis=1, hint="chosen")

    def _inner(self, slots: str, experts: str) -> str:
        """Return the inner values [rows, chosen, size] of the experts."""
        mixture, size, columns = self._mixture, self._size, self._builder.columns
        activation = ACTIVATIONS[mixture.activation.word(self._builder.names, ACTIVATIONS)]
        if self._gate_up is not None:
            both = self._product(self._gate_up, slots, experts, self._inputs, 2 * size)
            if self._gate_up.alternates:
                gate, up = columns(both, 0, 2 * size, 2), columns(both, 1, 2 * size, 2)
            else:
                gate, up = columns(both, 0, size), columns(both, size, 2 * size)
        else:
            assert self._up
            if self._gate is None:
                return activation(self._builder, self._product(self._up, slots, experts, self._inputs, size))
            gate = self._product(self._gate, slots, experts, self._inputs, size)
            up = self._product(self._up, slots, experts, self._inputs, size)
        if mixture.clamp is not None:
            return self._clamped(mixture.clamp, gate, up)
        return self._add("mul", activation(self._builder, gate), up, hint="gated")

    def _clamped(self, clamp: Clamp, gate: str, up: str) -> str:
        builder, add = self._builder, self._add
        limit, alpha, shift = (each.number(builder.names) for each in (clamp.limit, clamp.alpha, clamp.shift))
        gate = add("clip", gate, maximum=limit, hint="gate.limited")
        up = add("clip", up, minimum=-limit, maximum=limit, hint="up.limited")
        share = add("sigmoid", add("mul", gate, builder.constant(alpha), hint="gate.scaled"))
        activated = add("mul", gate, share, hint="activated")
        return add("mul", add("add", up, builder.constant(shift), hint="up.shifted"), activated, hint="gated")

    def _product(self, experts: Experts, x: str, selected: str, inputs: int, outputs: int) -> str:
        """Multiply x [rows, slots or 1, inputs] by the matrix of each slot's expert: [rows, slots, outputs]."""
        hint = experts.tensor.removesuffix(".weight")
        product = self._add("expert_matmul", x, selected, self._matrices(experts, hint, inputs, outputs), hint=hint)
        if experts.bias is None:
            return product
        bias = self._add("gather", self._tensor(experts.bias, (self._count, outputs)), selected, hint="bias", axis=0)
        return self._add("add", product, bias, hint=f"{hint}.biased")

    def _matrices(self, experts: Experts, hint: str, inputs: int, outputs: int) -> str:
        """Return the matrices of all experts, [count, outputs, inputs]."""
        builder, count = self._builder, self._count
        shape = (inputs, outputs) if experts.transposed else (outputs, inputs)
        name = f"{builder.path}{experts.tensor}"
        if "{expert}" not in name:
            return builder.weights.stack(name, (count, *shape), experts.where, experts.transposed, experts.is_flat)
        names = [name.replace("{expert}", str(expert)) for expert in range(count)]
        matrices = builder.weights.below(names, shape, experts.where)
        matrices = self._add("reshape", matrices, hint=f"{hint}.all", shape=(count, *shape))
        return self._add("permute", matrices, hint=f"{hint}.all", axes=(0, 2, 1)) if experts.transposed else matrices

    def _tensor(self, name: str, shape: tuple[int, ...]) -> str:
        return self._builder.weights.value(f"{self._builder.path}{name}", shape, self._mixture.where, is_exact=True)

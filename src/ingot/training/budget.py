"""The graphs of a trainer's steps within a memory budget, and the bytes of their plan. No weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.compile import Mode, compile_mode, sharing_weights
from ingot.errors import InputError
from ingot.ir.graph import Graph
from ingot.lower import Target
from ingot.passes.precision import F32, STEP_PRECISIONS, Precision, precision_of
from ingot.plan.memory import Placement
from ingot.run.library import load
from ingot.support.machine import usable_threads
from ingot.training.graph import LOSS, gradient_graph, step_graph, update_graph
from ingot.training.losses import CrossEntropy
from ingot.training.optimizers import Optimizer
from ingot.training.recompute import Trade, fit_budget

TRAIN, GRADIENTS, UPDATE = "train", "gradients", "update"  # a full step; the two programs of an accumulated step
EVALUATE, METRICS = "evaluate", "metrics"  # the loss; the loss and a metric


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes of steps. weights: frozen weights, as kernels read them; states: parameters, moments and, with
    accumulation, gradients; arena: activations and scratch; arrays: inputs and the loss.
    """

    weights: int
    states: int
    arena: int
    arrays: int

    @property
    def total(self) -> int:
        return self.weights + self.states + self.arena + self.arrays


def step_target(precision: str, threads: int) -> tuple[Target, Precision]:
    """Return the target of training steps and their precision, given by name. threads: 0 means as many as the machine
    allows. Raises InputError for a name not in STEP_PRECISIONS, and UnsupportedError if the CPU lacks the dot products.
    """
    if precision not in STEP_PRECISIONS:
        expected = f"one of {list(STEP_PRECISIONS)}"
        raise InputError(f"option precision: unknown value, got {precision!r}, expected {expected}")
    library, row = load(), precision_of(precision)
    isa = library.isa()
    rounded = row.rounded(library.dots(isa))
    return Target(isa, threads or usable_threads(), rounded=rounded, split_sums=row.split_sums), row


def training_graphs(
    forward: Graph,
    loss: str | CrossEntropy,
    optimizer: Optimizer,
    trained: list[str],
    clip: float | None,
    accumulate: int,
    target: Target,
    budget: int | None,
    seed: int = 0,
    precision: Precision = F32,
) -> tuple[dict[str, Graph], Trade | None]:
    """Return the graphs of a step by name, and the trade chosen for a budget, if any.

    The graphs are TRAIN, or with accumulation GRADIENTS and UPDATE. budget: the most bytes that they may use together.
    Raises the errors of `step_graph` and `fit_budget`.
    """
    if accumulate == 1:
        first, others = step_graph(forward, loss, optimizer, trained, clip, seed, precision), {}
    else:
        first = gradient_graph(forward, loss, trained, accumulate, seed, precision)
        others = {UPDATE: update_graph(first, optimizer, clip)}
    name, trade = GRADIENTS if others else TRAIN, None
    if budget is not None:

        def nbytes_of(graph: Graph) -> int:
            return step_bytes({name: graph, **others}, target).total

        first, trade = fit_budget(first, first.outputs[LOSS], nbytes_of, budget)
    return {name: first, **others}, trade


def step_bytes(graphs: Mapping[str, Graph], target: Target) -> StepBytes:
    """Return the bytes of programs that share states, weights and an arena; the arrays are those of the first graph."""
    placement, plans = Placement(), []
    for name, graph in graphs.items():
        compiled = compile_mode(graph, target, Mode(name), placement=placement)
        plans.append(compiled.native[1])
        target = sharing_weights(target, compiled)
    return StepBytes(
        placement.weight_bytes,
        max(plan.regions.get("state", 0) for plan in plans),
        max(plan.arena_bytes for plan in plans),
        sum(size for name, size in plans[0].regions.items() if name.startswith(("input:", "output:"))),
    )

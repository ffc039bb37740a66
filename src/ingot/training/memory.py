"""The bytes that fine-tuning a language model takes, from headers alone."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from ingot.compile import Mode, compile_mode
from ingot.dtype import i64
from ingot.lower import Target
from ingot.machine import usable_threads
from ingot.plan import Placement
from ingot.run.library import load
from ingot.training.adapters import Lora
from ingot.training.graph import gradient_graph, step_graph, update_graph
from ingot.training.optimizers import AdamW
from ingot.training.sources import load_trained, trained_weights


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes of a trainer. weights: frozen ones, as kernels read them; states: parameters, moments and, where a batch is
    taken in parts, gradients; arena: activations and scratch; arrays: inputs and the loss.
    """

    context: int
    batch: int
    parameters: int
    weights: int
    states: int
    arena: int
    arrays: int

    @property
    def total(self) -> int:
        return self.weights + self.states + self.arena + self.arrays


def fit_training(
    folder: str | os.PathLike[str],
    *,
    adapters: Lora | None,
    context: int = 256,
    batch: int = 4,
    accumulate: int = 1,
    clip: float | None = 1.0,
    threads: int = 0,
) -> TrainingMemory:
    """What `FineTuning` with the same options allocates for steps, to the byte; no weight is read.

    `parameters` counts the numbers that are trained. Raises what `Trainer` raises.
    """
    ids = np.zeros((batch // accumulate, context), i64.numpy)
    forward, candidates = load_trained(os.fspath(folder), (ids,))
    trained, _ = trained_weights(forward, candidates, adapters)
    optimizer = AdamW()
    if accumulate == 1:
        graphs = [step_graph(forward, "cross_entropy", optimizer, trained, clip)]
    else:
        gradients = gradient_graph(forward, "cross_entropy", trained, accumulate)
        graphs = [gradients, update_graph(gradients, optimizer, clip)]
    target = Target(load().isa(), threads or usable_threads())
    placement = Placement()
    plans = [compile_mode(graph, target, Mode("train"), placement=placement).native[1] for graph in graphs]
    return TrainingMemory(
        context,
        batch,
        sum(math.prod(graphs[0].type(name).dims) for name in trained),
        placement.weight_bytes,
        max(plan.regions.get("state", 0) for plan in plans),
        max(plan.arena_bytes for plan in plans),
        sum(size for name, size in plans[0].regions.items() if name.startswith(("input:", "output:"))),
    )
